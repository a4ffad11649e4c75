-- Lengthens the lock if it is ours; never creates or shortens it.
-- KEYS: lock. ARGV: token, ttl in ms.
-- {1, us} lasts at least ttl from us   {0, us} nobody holds it   {2, us} another holds it
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local holder = redis.call('GET', KEYS[1])
if holder ~= ARGV[1] then return {holder and 2 or 0, us} end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return {1, us}
