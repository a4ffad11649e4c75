-- Writes unless a newer holder has. KEYS: value, fence. ARGV: value, token. 1 written, 0 refused.
-- Tokens are compared as text: they exceed what Lua's numbers hold exactly.
local seen, token = redis.call('GET', KEYS[2]) or '', ARGV[2]
if #token < #seen or (#token == #seen and token < seen) then return 0 end
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], ARGV[1])
return 1
