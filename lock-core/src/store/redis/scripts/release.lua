-- Ends tokens: a lock that is ours goes to the first in line, or becomes free, or stays taken for a hold; and the
-- token leaves the queue.
-- KEYS: counter; for each release its lock; for each release its queue.
-- ARGV: the inbox of who asks, if it hears that on this connection; for each release its token, and its hold in ms (0: give it
-- on now); then, unless none has a place, for each its member.
-- The server's time in us, or 0 if it was not needed, and one answer for each release:
-- 1 it was ours   3 it was, before this call   0 nobody holds it   2 another holds it
local count = (#KEYS - 1) / 2
local has_places = #ARGV > 1 + 2 * count

local function hand_off(lock, queue)
  if count > 1 then redis.call('PEXPIRE', queue, 120000) end
  if not us then begin() end
  return number and line_of(lock, queue).hand_off(ARGV[1])
end

local answers = {0}
-- How many of the queues there are. Where that may not be asked, there are none. PEXPIRE is a write that no want of memory
-- forbids, after which Redis forbids no other; a single queue is asked for by it.
local waiting
if count == 1 then
  waiting = redis.pcall('PEXPIRE', KEYS[3], 120000)
else
  waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + count))
end
if type(waiting) ~= 'number' then waiting = 0 end

-- Where nobody waits for any of them, those that are ours are freed together.
local function free_together()
  local holders = redis.pcall('MGET', unpack(KEYS, 2, 1 + count))
  if holders.err then return end
  local free = {}
  for i = 1, count do
    if holders[i] == ARGV[2 * i] and ARGV[2 * i + 1] == '0' then
      answers[i + 1] = 1
      free[#free + 1] = KEYS[1 + i]
    end
  end
  if free[1] then redis.call('DEL', unpack(free)) end
end

local function release(i)
  local lock, queue, token, hold = KEYS[1 + i], KEYS[1 + count + i], ARGV[2 * i], ARGV[2 * i + 1]
  local holder = redis.pcall('GET', lock)
  if holder == token then
    answers[i + 1] = 1
    if hold ~= '0' then
      -- Another value, so that late renewals, claims and releases of the token no longer match it.
      redis.call('PEXPIRE', lock, hold)
      redis.call('SET', lock, '=' .. token, 'PX', hold)
    elseif waiting < count and redis.pcall('EXISTS', queue) ~= 1 then
      redis.call('DEL', lock)
    else
      local ok, given = pcall(hand_off, lock, queue)
      -- Whatever is wrong with the queue must not keep the lock.
      if not (ok and given) then redis.call('DEL', lock) end
    end
  else
    if answers[1] == 0 then
      local now = redis.call('TIME')
      answers[1] = now[1] * 1000000 + now[2]
    end
    local member = has_places and ARGV[1 + 2 * count + i] or ''
    if member ~= '' then pcall(line_of(lock, queue).leave, member) end
    if type(holder) == 'table' then
      answers[i + 1] = holder
    elseif holder == '=' .. token then
      answers[i + 1] = 3
    else
      answers[i + 1] = holder and 2 or 0
    end
  end
end

if waiting == 0 then free_together() end
for i = 1, count do
  if not answers[i + 1] then
    local ok, problem = pcall(release, i)
    if not ok then answers[i + 1] = redis.error_reply(words(problem)) end
  end
end
finish()
return answers
