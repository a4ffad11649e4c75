-- Writes a value unless a newer holder has. KEYS: value, fence. ARGV: value, token. Replies 1 if it
-- wrote and 0 if not.
-- Tokens are compared as text: they exceed what Lua's numbers hold exactly.
if KEYS[1] == KEYS[2] then
    return redis.error_reply('ERR the value would overwrite its own fence: use another key for the fence')
end
local seen, token = redis.call('GET', KEYS[2]) or '', ARGV[2]
if not token:find('^[1-9]%d*$') then
    return redis.error_reply('ERR not a fencing token: was the lock taken without fencing?')
end
if #token < #seen or (#token == #seen and token < seen) then return 0 end
redis.call('SET', KEYS[2], token)
redis.call('SET', KEYS[1], ARGV[1])
return 1
