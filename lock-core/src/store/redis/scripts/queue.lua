-- What acquire and release share: the clock, the numbers, and the queue of those who wait.
-- KEYS[1] is the counter from which the namespace takes its fencing tokens and tickets.
local counter = KEYS[1]
local time, us -- the server's clock
local number   -- the next one to give away; none if that cannot be said

-- A number is the clock, or one more than the last number if the clock stands or went back: it grows even if
-- the counter is lost, and even if the clock is, unless both are at once. One command writes the clock and reads the counter,
-- without formatting a number; `finish` writes what came after. An error is returned, with nothing done and no number.
local function begin()
  time = redis.call('TIME')
  us = time[1] * 1000000 + time[2]
  local last = redis.pcall('SET', counter, string.format('%s%06d', time[1], time[2]), 'GET')
  if type(last) == 'table' then
    if string.find(last.err, 'WRONGTYPE', 1, true) then return redis.error_reply('LOCK ' .. last.err) end
    return redis.error_reply(last.err)
  end
  local before = last and tonumber(last) or 0
  -- Beyond 2^53 two numbers of Lua may be the same.
  if before > 9007199254740991 - 4 * #KEYS then
    redis.call('SET', counter, last)
    return redis.error_reply('LOCK the fence counter is exhausted')
  end
  number = before < us and us or before + 1
end

local function finish()
  if number and number - 1 > us then redis.call('SET', counter, string.format('%.0f', number - 1)) end
end

-- Whether who asks is written to behind the others.
local behind

-- Made where it is first needed: most calls meet no queue.
--
-- A queue is two sorted sets with the same members: by ticket, which is the order of service, and by the
-- server's time in ms until which the ticket is good. A member is `token:claim_ms:(=|~)inbox`. `=`: the inbox is
-- subscribed, so a message that nobody receives is for one who is gone. `~`: nobody can tell.
local function line_of(lock, queue)
  local line = { alive = string.gsub(queue, ':q:', ':a:', 1) }

  function line.forget_expired(most)
    local gone = redis.call('ZRANGEBYSCORE', line.alive, '-inf', math.floor(us / 1000), 'LIMIT', 0, most)
    if gone[1] then
      redis.call('ZREM', queue, unpack(gone))
      redis.call('ZREM', line.alive, unpack(gone))
    end
  end

  function line.leave(member)
    redis.call('ZREM', queue, member)
    redis.call('ZREM', line.alive, member)
  end

  -- Gives the lock to the first who is still there, for the time that its claim names: true, or nil if none was found
  -- among the first 256. The first write comes before the message, since after it Redis refuses no other for want
  -- of memory: a grant that was told must not fail to be stored.
  -- `own`: the inbox of who asks, on the connection that is answered, or ''. Redis 7.0 writes first to the client that was last
  -- to get something to read. That shall be the new holder, on whom everybody waits, so who asks gets an empty message before
  -- it. Nothing but speed depends on that.
  function line.hand_off(own)
    line.forget_expired(256)
    local fence
    for _ = 1, 256 do
      local head = redis.call('ZPOPMIN', queue)
      local member = head[1]
      if not member then
        redis.call('DEL', line.alive)
        return nil
      end
      redis.call('ZREM', line.alive, member)
      local token, claim, sign, inbox = string.match(member, '^([^:]+):(%d+):([=~])(.*)$')
      if token then
        if not fence then
          fence = number
          number = number + 1
        end
        local heard = 0
        if inbox ~= '' then
          if own ~= '' and own ~= inbox and not behind then behind = redis.pcall('PUBLISH', own, '') end
          -- Whoever may not publish cannot tell either.
          heard = redis.pcall('PUBLISH', inbox,
            string.format('%s %s %.0f %.0f %s %s', token, head[2], fence, us, claim, lock))
        end
        if type(heard) ~= 'number' or heard > 0 or sign == '~' then
          redis.call('SET', lock, token, 'PX', claim)
          return true
        end
      end
    end
  end

  return line
end

-- Errors are tables since Redis 7, strings before.
local function words(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

