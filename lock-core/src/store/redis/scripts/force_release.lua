-- Takes a lock from one owner: it goes to the head of its queue, or becomes free.
--
-- KEYS: counter, lock, queue, the same waiters by the expiry of their tickets. ARGV: the value that
-- the lock has under that owner, and the channel on which its client listens (empty: none).
--
-- Returns 1 if it was taken, or 0 if the lock has another value or none.
local lock, queue, alive = KEYS[2], KEYS[3], KEYS[4]
if redis.call('GET', lock) ~= ARGV[1] then return 0 end

local function hand_off()
  -- Redis does not refuse this write for lack of memory, and refuses no write after it.
  if redis.call('PEXPIRE', queue, QUEUE_MS) == 0 then return end
  begin()
  return number and waiters_of(lock, queue, alive).hand_off('')
end

local ok, given = pcall(hand_off)
-- An error in the queue must not keep the lock.
if not (ok and given) then redis.call('DEL', lock) end
finish()
-- Without the permission to publish, the owner finds out at its next renewal.
if ARGV[2] ~= '' then redis.pcall('PUBLISH', ARGV[2], ARGV[1]) end
return 1
