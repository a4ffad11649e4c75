-- Reads a lock without changing anything.
--
-- KEYS: counter, lock, set of waiters by the expiry of their tickets.
--
-- Returns the lock's value (false: it is free), its expiry in ms (-1: none), the number of waiters
-- (false: the user may not count them), and the last number given away.
local time = redis.call('TIME')
local value = redis.call('GET', KEYS[2])
local waiting = redis.pcall('ZCOUNT', KEYS[3], '(' .. math.floor(time[1] * 1000 + time[2] / 1000), '+inf')
if type(waiting) ~= 'number' then waiting = false end
local last = redis.pcall('GET', KEYS[1])
return {value, redis.call('PTTL', KEYS[2]), waiting, type(last) == 'string' and last or '0'}
