-- Lengthens each lock that holds the renewal's token; never creates or shortens one.
--
-- KEYS: for each renewal its lock. ARGV: for each renewal its token, and its ttl in ms.
--
-- Returns one reply for each renewal:
-- 1 the lock lasts at least ttl from now   0 it is free   2 another holds it
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
