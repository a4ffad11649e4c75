-- Ends tokens. A lock that holds the token goes to the head of its queue, or becomes free, or stays
-- taken for a hold; and the token leaves the queue.
--
-- KEYS: counter; for each release its lock; for each release its queue; for each release the same
-- waiters by the expiry of their tickets.
-- ARGV: the client's inbox, if it is subscribed on this connection, or ''; for each release its
-- token, and its hold in ms (0: hand the lock on now); then, unless no token has a place, for
-- each release its member.
--
-- Returns the server's time in us, or 0 if it was not needed, and one reply for each release:
-- 1 the token held the lock   3 it did, before this call   0 the lock is free   2 another holds it
local count = (#KEYS - 1) / 3
local has_places = #ARGV > 1 + 2 * count

local function hand_off(lock, queue, alive)
  if count > 1 then redis.call('PEXPIRE', queue, QUEUE_MS) end
  if not us then begin() end
  return number and waiters_of(lock, queue, alive).hand_off(ARGV[1])
end

local replies = {0}
-- How many of the queues exist; none if the user may not ask. A single queue is checked by PEXPIRE:
-- Redis does not refuse that write for lack of memory, and refuses no write after it.
local waiting
if count == 1 then
  waiting = redis.pcall('PEXPIRE', KEYS[3], QUEUE_MS)
else
  waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count, 1 + 2 * count))
end
if type(waiting) ~= 'number' then waiting = 0 end

-- Without waiters for any of the locks, those that hold their tokens are freed together.
local function free_together()
  local holders = redis.pcall('MGET', unpack(KEYS, 2, 1 + count))
  if holders.err then return end
  local free = {}
  for i = 1, count do
    if holders[i] == ARGV[2 * i] and ARGV[2 * i + 1] == '0' then
      replies[i + 1] = 1
      free[#free + 1] = KEYS[1 + i]
    end
  end
  if free[1] then redis.call('DEL', unpack(free)) end
end

local function release(i)
  local lock, queue, alive = KEYS[1 + i], KEYS[1 + count + i], KEYS[1 + 2 * count + i]
  local token, hold = ARGV[2 * i], ARGV[2 * i + 1]
  local holder = redis.pcall('GET', lock)
  if holder == token then
    replies[i + 1] = 1
    if hold ~= '0' then
      -- Another value, so that late renewals, claims and releases of the token no longer match.
      redis.call('PEXPIRE', lock, hold)
      redis.call('SET', lock, '=' .. token, 'PX', hold)
    elseif waiting < count and redis.pcall('EXISTS', queue) ~= 1 then
      redis.call('DEL', lock)
    else
      local ok, given = pcall(hand_off, lock, queue, alive)
      -- An error in the queue must not keep the lock.
      if not (ok and given) then redis.call('DEL', lock) end
    end
  else
    if replies[1] == 0 then
      local now = redis.call('TIME')
      replies[1] = now[1] * 1000000 + now[2]
    end
    local member = has_places and ARGV[1 + 2 * count + i] or ''
    if member ~= '' then pcall(waiters_of(lock, queue, alive).leave, member) end
    if type(holder) == 'table' then
      replies[i + 1] = holder
    elseif holder == '=' .. token then
      replies[i + 1] = 3
    else
      replies[i + 1] = holder and 2 or 0
    end
  end
end

if waiting == 0 then free_together() end
for i = 1, count do
  if not replies[i + 1] then
    local ok, problem = pcall(release, i)
    if not ok then replies[i + 1] = redis.error_reply(error_text(problem)) end
  end
end
finish()
return replies
