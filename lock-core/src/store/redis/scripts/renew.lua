-- Lengthens each lock that holds the renewal's token; never creates one. Shortens one only for a
-- renewal that cuts, which the client sends when this server's clock went back.
--
-- KEYS: for each renewal its lock. ARGV: for each renewal its token, and its ttl in ms; then,
-- unless no renewal cuts, for each renewal the longest time in ms that it leaves to the lock, and
-- the server time in us after which it leaves any (0: it does not cut).
--
-- Returns one reply for each renewal, in an array of their own, and us:
-- 1 the lock lasts at least ttl from now   0 it is free   2 another holds it
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local count = #KEYS
local has_cuts = #ARGV > 2 * count

local function renew(lock, token, ttl, longest)
  local holder = redis.call('GET', lock)
  if holder ~= token then return holder and 2 or 0 end
  local left = redis.call('PTTL', lock)
  if left < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  elseif longest and left > tonumber(longest) then
    redis.call('PEXPIRE', lock, longest)
  else
    -- Changes nothing, but is a write: `WAIT` tells who has the last write of its connection, and
    -- what this reply rests on may have been written on another one.
    redis.call('PEXPIRE', lock, left)
  end
  return 1
end

local replies = {}
for i, lock in ipairs(KEYS) do
  local cuts = has_cuts and us <= tonumber(ARGV[2 * (count + i)])
  local longest = cuts and ARGV[2 * (count + i) - 1]
  local ok, reply = pcall(renew, lock, ARGV[2 * i - 1], ARGV[2 * i], longest)
  replies[i] = ok and reply or redis.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
end
return {replies, us}
