-- Takes a lock from its owner: it goes to the head of its queue, or becomes free.
--
-- KEYS: counter, lock, queue.
--
-- Returns the value that the lock had (false: it was free), and its expiry in ms (-1: none).
local lock, queue = KEYS[2], KEYS[3]
local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
if not holder then return {false, -2} end

local function hand_off()
  -- Redis does not refuse this write for lack of memory, and refuses no write after it.
  if redis.call('PEXPIRE', queue, 120000) == 0 then return end
  begin()
  return number and line_of(lock, queue).hand_off('')
end

local ok, given = pcall(hand_off)
-- An error in the queue must not keep the lock.
if not (ok and given) then redis.call('DEL', lock) end
finish()
return {holder, left}
