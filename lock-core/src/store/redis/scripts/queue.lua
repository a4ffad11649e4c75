-- What acquire and release share: the clock, the numbers, and the queue of those who wait.
-- KEYS[1] is the counter from which the namespace takes its fencing tokens and tickets.
--
-- A queue is two sorted sets with the same members: by ticket, which is the order of service, and by the
-- server's time in ms until which the ticket is good. A member is `token:claim_ms:(=|~)inbox`. `=`: the inbox is
-- subscribed, so a message that nobody receives is for one who is gone. `~`: nobody can tell.
local counter = KEYS[1]
local LARGEST = 9007199254740991 -- beyond it two numbers of Lua may be the same

local time, us, ms
local function read_clock()
  if time then return end
  time = redis.call('TIME')
  us = time[1] * 1000000 + time[2]
  ms = math.floor(us / 1000)
end

-- A number is the clock, or one more than the last number if the clock stands or went back: it grows even if
-- the counter is lost, and even if the clock is, unless both are at once. The first of a call writes the clock
-- and reads the counter in one command, without formatting a number; `keep_numbers` writes what came after.
local last, unwritten
local function mint()
  if not last then
    local text = redis.call('SET', counter, string.format('%s%06d', time[1], time[2]), 'GET')
    local before = text and tonumber(text) or 0
    if before < us then
      last = us
      return us
    end
    if before >= LARGEST then
      redis.call('SET', counter, text)
      error('the fence counter is exhausted', 0)
    end
    last = before
  elseif last >= LARGEST then
    error('the fence counter is exhausted', 0)
  end
  last = last + 1
  unwritten = true
  return last
end

local function keep_numbers()
  if unwritten then redis.call('SET', counter, string.format('%.0f', last)) end
end

-- Errors are tables since Redis 7, strings before.
local function words(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

local function without_number(problem)
  return redis.error_reply('LOCK ' .. words(problem))
end

local function forget_expired(queue, alive, most)
  local gone = redis.call('ZRANGEBYSCORE', alive, '-inf', ms, 'LIMIT', 0, most)
  if gone[1] then
    redis.call('ZREM', queue, unpack(gone))
    redis.call('ZREM', alive, unpack(gone))
  end
end

local function leave(queue, alive, member)
  redis.call('ZREM', queue, member)
  redis.call('ZREM', alive, member)
end

-- Gives the lock to the first who is still there, for the time that its claim names: true, or nil if none was found
-- among the first 256. The first write comes before the message, since after it Redis refuses no other for want
-- of memory: a grant that was told must not fail to be stored.
local function hand_off(lock, queue, alive)
  forget_expired(queue, alive, 256)
  local number
  for _ = 1, 256 do
    local head = redis.call('ZPOPMIN', queue)
    local member = head[1]
    if not member then
      redis.call('DEL', alive)
      return nil
    end
    redis.call('ZREM', alive, member)
    local token, claim, sign, inbox = string.match(member, '^([^:]+):(%d+):([=~])(.*)$')
    if token then
      number = number or mint()
      local heard = 0
      if inbox ~= '' then
        -- Whoever may not publish cannot tell either.
        heard = redis.pcall('PUBLISH', inbox, string.format('%s %s %.0f %.0f %s %s', token, head[2], number, us, claim, lock))
      end
      if type(heard) ~= 'number' or heard > 0 or sign == '~' then
        redis.call('SET', lock, token, 'PX', claim)
        return true
      end
    end
  end
end
