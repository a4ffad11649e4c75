-- Frees the lock if it is ours, at once or after a hold.
-- KEYS: lock. ARGV: token, hold in ms (0: free it now).
-- {1, us} it was ours   {0, us} nobody holds it   {2, us} another holds it
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  if tonumber(ARGV[2]) > 0 then
    -- Another value, so that late renewals, claims and releases of the token no longer match it.
    redis.call('SET', KEYS[1], '=' .. ARGV[1], 'PX', ARGV[2])
  else
    redis.call('DEL', KEYS[1])
  end
  return {1, us}
end
if holder == '=' .. ARGV[1] then return {1, us} end
return {holder and 2 or 0, us}
