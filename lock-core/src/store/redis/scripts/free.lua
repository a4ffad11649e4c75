-- Frees a lock that has the token, without handing it on: for a lock whose slot is on its way to
-- another node of a cluster, so that its queue cannot be reached. The next claim of a waiter finds
-- it free.
--
-- KEYS: lock. ARGV: token, and its hold in ms (0: free the lock now).
--
-- Returns the server's time in us, and
-- 1 the token held the lock   3 it did, before this call   0 the lock is free   2 another holds it
local lock, token, hold = KEYS[1], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local holder = redis.call('GET', lock)
if holder ~= token then
  if holder == '=' .. token then return {us, 3} end
  return {us, holder and 2 or 0}
end
if hold == '0' then
  redis.call('DEL', lock)
else
  redis.call('SET', lock, '=' .. token, 'PX', hold)
end
return {us, 1}
