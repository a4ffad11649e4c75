-- Takes a lock from one owner of a quorum. For the rest of its expiry it holds what its release
-- with a hold would leave, so that no renewal takes it again on servers that lost it.
--
-- KEYS: lock. ARGV: the value that the lock has under that owner.
--
-- Returns 1 if it was taken, or 0 if the lock has another value or none.
local lock, value = KEYS[1], ARGV[1]
if redis.call('GET', lock) ~= value then return 0 end
local left = redis.call('PTTL', lock)
if string.sub(value, 1, 1) == '=' or left < 0 then
  redis.call('DEL', lock)
else
  left = math.max(left, 1)
  -- Redis does not refuse this write for lack of memory, and refuses no write after it.
  redis.call('PEXPIRE', lock, left)
  redis.call('SET', lock, '=' .. value, 'PX', left)
end
return 1
