-- Takes each lock that is free, or ours already, and numbers the grant. A free lock with a queue goes to the first in line,
-- whoever asks. A claim that names a member gets a place in the queue, or refreshes the one that it has.
-- KEYS: counter; for each claim: lock, queue, alive.
-- ARGV: for each claim: token, ttl in ms, server time in us after which the claim is void, member or '' (does not
-- queue), how long its ticket is good in ms.
-- One answer for each claim:
-- {1, us, fence} granted: the lock lasts at least ttl from us
-- {2, us, pttl, ours, ticket, place} queued: another holds it for pttl ms (-1: it has no expiry); ours: by a token
-- {0, us, pttl, ours} held by another
-- {3, us} void: delivered too late, nothing was done
-- error LOCK: the grant could not be numbered: nothing is held
local TOKEN = '^=?%x%x%x%x%x%x%x%x%-%x%x%x%x%-4%x%x%x%-[89ab]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$'

-- The number of the grant, for a lock that is ours for the moment; nil if an earlier waiter got it.
local function keep(lock, queue, alive, member)
  if redis.call('EXISTS', queue) == 1 then
    forget_expired(queue, alive, 256)
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if head and head ~= member and hand_off(lock, queue, alive) then return nil end
    if member ~= '' then leave(queue, alive, member) end
  end
  return mint()
end

local function claim(lock, queue, alive, token, ttl, void_after, member, life)
  if us > tonumber(void_after) then return {3, us} end
  if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
    local ok, number = pcall(keep, lock, queue, alive, member)
    if not ok then
      redis.call('DEL', lock)
      return without_number(number)
    end
    if number then return {1, us, number} end
  end
  local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
  if holder == token then
    -- Our own claim again, or the lock came to us in between. Never shorten what the holder may believe in.
    if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
    local ok, number = pcall(mint)
    if ok then return {1, us, number} end
    redis.call('DEL', lock)
    return without_number(number)
  end
  local ours = holder and string.match(holder, TOKEN) and 1 or 0
  if member == '' then return {0, us, left, ours} end
  forget_expired(queue, alive, 64)
  local ticket = redis.call('ZSCORE', queue, member)
  if not ticket then
    local ok, number = pcall(mint)
    if not ok then return without_number(number) end
    ticket = string.format('%.0f', number)
    redis.call('ZADD', queue, ticket, member)
  end
  redis.call('ZADD', alive, ms + life, member)
  redis.call('PEXPIRE', queue, 120000)
  redis.call('PEXPIRE', alive, 120000)
  return {2, us, left, ours, tonumber(ticket), redis.call('ZRANK', queue, member)}
end

read_clock()
local answers = {}
for i = 1, (#KEYS - 1) / 3 do
  local k, a = 3 * i - 1, 5 * i - 4
  local ok, answer = pcall(claim, KEYS[k], KEYS[k + 1], KEYS[k + 2], unpack(ARGV, a, a + 4))
  answers[i] = ok and answer or redis.error_reply(words(answer))
end
keep_numbers()
return answers
