-- Takes the lock if it is free or ours already, and numbers the grant.
-- KEYS: lock, fence counter. ARGV: token, ttl in ms, server time in us after which the claim is void.
-- {1, us, fence} granted: the lock lasts at least ttl from us
-- {0, us, pttl}  held by another for pttl ms (-1: it has no expiry)
-- {3, us}        void: delivered too late, nothing was done
-- error LOCK     the grant could not be numbered: nothing is held
local lock, counter = KEYS[1], KEYS[2]
local token, ttl = ARGV[1], ARGV[2]

local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
if us > tonumber(ARGV[3]) then return {3, us} end

if not redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  local holder = redis.call('GET', lock)
  local left = redis.call('PTTL', lock)
  if holder ~= token then return {0, us, left} end
  -- Our own claim, delivered again. Never shorten what the holder may believe in.
  if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
end

-- The number is the clock, or one more than the last number if the clock stands or went back:
-- it grows even if the counter is lost, and even if the clock is, unless both are at once.
-- The first SET writes the clock and reads the counter in one call, without formatting a number.
local last = redis.pcall('SET', counter, string.format('%s%06d', time[1], time[2]), 'GET')
if not last then return {1, us, us} end
if type(last) == 'string' then
  local text = last
  last = tonumber(text) or 0
  if last < us then return {1, us, us} end
  if last < 9007199254740991 then
    redis.call('SET', counter, string.format('%.0f', last + 1))
    return {1, us, last + 1}
  end
  redis.call('SET', counter, text)
end
redis.call('DEL', lock)
return redis.error_reply('LOCK ' .. (type(last) == 'table' and last.err or 'the fence counter is exhausted'))
