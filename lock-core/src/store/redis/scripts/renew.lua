-- Lengthens each lock that is ours; never creates or shortens one.
-- KEYS: for each renewal its lock. ARGV: for each renewal token, ttl in ms.
-- One answer for each renewal: 1 lasts at least ttl from now   0 nobody holds it   2 another holds it
local function renew(lock, token, ttl)
  local holder = redis.call('GET', lock)
  if holder ~= token then return holder and 2 or 0 end
  if redis.call('PTTL', lock) < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
  return 1
end

local answers = {}
for i, lock in ipairs(KEYS) do
  local ok, answer = pcall(renew, lock, ARGV[2 * i - 1], ARGV[2 * i])
  answers[i] = ok and answer or redis.error_reply(type(answer) == 'table' and answer.err or tostring(answer))
end
return answers
