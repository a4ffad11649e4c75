-- Takes each lock that is free or already holds the claim's token, and numbers the grant. A free
-- lock with a queue goes to the head of the queue, whichever client claims. A claim with a member
-- takes a place in the queue, or refreshes its place.
--
-- KEYS: counter; for each claim its lock; for each claim its queue; for each claim the same waiters
-- by the expiry of their tickets.
-- ARGV: how long tickets are kept in ms; for each claim its token, its ttl in ms, and the server
-- time in us after which it is void; then, unless no claim queues, for each claim its member.
--
-- Returns us, and one reply for each claim:
-- the grant number: granted, the lock lasts at least ttl from us
-- -1: void, delivered too late, nothing was done
-- {2, pttl, by_token, ticket, place}: queued; another holds the lock for pttl ms (-1: no expiry);
--   by_token is 1 if the holder's value is a token
-- {0, pttl, by_token}: held by another
local keep_ms = ARGV[1]
local count = (#KEYS - 1) / 3
local has_places = #ARGV > 1 + 3 * count
-- Whether the present claim has just set the lock, and has not handed it on since.
local taken

-- The reply to a claim that met a queue or an owner; nil if it is granted.
local function queued(lock, queue, alive, token, ttl, member)
  local waiters = waiters_of(lock, queue, alive)
  if taken then
    -- The lock was free and has a queue. The claim keeps it only if it is first in the queue.
    waiters.forget_expired()
    local head = redis.call('ZRANGE', queue, 0, 0)[1]
    if not (head and head ~= member and waiters.hand_off('')) then
      if member then waiters.leave(member) end
      return nil
    end
    taken = false
  end
  local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
  if holder == token then
    -- The claim was repeated, or the lock was handed to it meanwhile. Never shorten the expiry: the
    -- client may rely on it.
    if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
    return nil
  end
  local by_token = holder and string.find(string.gsub(holder, '^=', ''), TOKEN) and 1 or 0
  if not member then return {0, left, by_token} end
  waiters.forget_expired()
  local ticket = number
  local is_new = redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), member) == 1
  if is_new then
    number = number + 1
  else
    ticket = tonumber(redis.call('ZSCORE', queue, member))
  end
  redis.call('ZADD', alive, math.floor(us / 1000) + keep_ms, member)
  local place = redis.call('ZRANK', queue, member)
  if is_new and place > 0 then
    waiters.skip_foreign()
    place = redis.call('ZRANK', queue, member)
  end
  -- Both sets are kept together. Where locks are held briefly, no claim finds its token first.
  if is_new or place == 0 then
    redis.call('PEXPIRE', queue, QUEUE_MS)
    redis.call('PEXPIRE', alive, QUEUE_MS)
  end
  return {2, left, by_token, ticket, place}
end

-- Checked once for all claims, before any write: where EXISTS is forbidden, the script must leave
-- neither a lock nor a number behind.
local waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count, 1 + 2 * count))
if type(waiting) == 'table' then return waiting end
local problem = begin()
if problem then return problem end
local replies = {us}
for i = 1, count do
  local lock, token, ttl, void_after = KEYS[1 + i], ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  if us > tonumber(void_after) then
    replies[i + 1] = -1
  else
    local set = redis.pcall('SET', lock, token, 'NX', 'PX', ttl)
    local ok, reply = true, nil
    if set and set.err then
      reply = set
    elseif not set or waiting > 0 then
      taken = set
      local member = has_places and ARGV[1 + 3 * count + i]
      local queue, alive = KEYS[1 + count + i], KEYS[1 + 2 * count + i]
      ok, reply = pcall(queued, lock, queue, alive, token, ttl, member)
      if not ok then
        -- The reply is an error, so the lock must not stay.
        if taken then redis.call('DEL', lock) end
        reply = redis.error_reply(error_text(reply))
      end
    end
    if not reply then
      reply = number
      number = number + 1
    end
    replies[i + 1] = reply
  end
end
finish()
return replies
