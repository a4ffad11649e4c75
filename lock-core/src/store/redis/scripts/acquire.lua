-- Takes each lock that is free, or ours already, and numbers the grant. A free lock with a queue goes to the first in line,
-- whoever asks. A claim that names a member gets a place in the queue, or refreshes the one that it has.
-- KEYS: counter; for each claim its lock; for each claim its queue.
-- ARGV: how long tickets are good in ms; for each claim its token, its ttl in ms, and the server time in us after which it is
-- void; then, unless none wants a place, for each claim its member.
-- us, and one answer for each claim:
-- fence: granted, the lock lasts at least ttl from us
-- -1: void, delivered too late, nothing was done
-- {2, pttl, ours, ticket, place}: queued; another holds the lock for pttl ms (-1: it has no expiry); ours: by a token
-- {0, pttl, ours}: held by another
local life = ARGV[1]
local count = (#KEYS - 1) / 2
local asks_for_place = #ARGV > 1 + 3 * count
-- Whether the claim that is served has just set the lock, and nobody else has it since.
local taken

local function queued(lock, queue, token, ttl, member)
  local line = line_of(lock, queue)
  if taken then
    -- It is free, with a queue, and ours for the moment: for good only if nobody stands before us.
    line.forget_expired(256)
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not (head and head ~= member and line.hand_off('')) then
      if member then line.leave(member) end
      number = number + 1
      return number - 1
    end
    taken = false
  end
  local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
  if holder == token then
    -- Our own claim again, or the lock came to us in between. Never shorten what the holder may believe in.
    if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
    number = number + 1
    return number - 1
  end
  local ours = holder and string.match(holder,
    '^=?%x%x%x%x%x%x%x%x%-%x%x%x%x%-4%x%x%x%-[89ab]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$') and 1 or 0
  if not member then return {0, left, ours} end
  line.forget_expired(64)
  local ticket = number
  if redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), member) == 1 then
    number = number + 1
  else
    ticket = tonumber(redis.call('ZSCORE', queue, member))
  end
  redis.call('ZADD', line.alive, math.floor(us / 1000) + life, member)
  local place = redis.call('ZRANK', queue, member)
  -- Whoever is first asks often, and a queue begins with it.
  if place == 0 then
    redis.call('PEXPIRE', queue, 120000)
    redis.call('PEXPIRE', line.alive, 120000)
  end
  return {2, left, ours, ticket, place}
end

-- Asked once for all, before anything is done: where it is forbidden, neither a lock nor a number may be left behind.
local waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count))
if type(waiting) == 'table' then return waiting end
local problem = begin()
if problem then return problem end
local answers = {us}
for i = 1, count do
  local lock, token, ttl, void_after = KEYS[1 + i], ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  if us > tonumber(void_after) then
    answers[i + 1] = -1
  else
    local set = redis.pcall('SET', lock, token, 'NX', 'PX', ttl)
    if set and set.err then
      answers[i + 1] = set
    elseif set and waiting == 0 then
      answers[i + 1] = number
      number = number + 1
    else
      taken = set
      local member = asks_for_place and ARGV[1 + 3 * count + i]
      local ok, answer = pcall(queued, lock, KEYS[1 + count + i], token, ttl, member)
      if not ok then
        -- Not ours unless it is on the record.
        if taken then redis.call('DEL', lock) end
        answer = redis.error_reply(words(answer))
      end
      answers[i + 1] = answer
    end
  end
end
finish()
return answers
