-- Ends tokens: a lock that is ours goes to the first in line, or becomes free, or stays taken for a hold; and the
-- token leaves the queue.
-- KEYS: counter; for each release: lock, queue, alive.
-- ARGV: for each release: token, member or '' (never queued), hold in ms (0: give it on now).
-- One answer for each release: 1 it was ours   {1, us} it was, before this call   {0, us} nobody holds it
-- {2, us} another holds it
local function release(lock, queue, alive, token, member, hold)
  local holder = redis.call('GET', lock)
  if holder == token then
    if hold ~= '0' then
      -- Another value, so that late renewals, claims and releases of the token no longer match it.
      redis.call('SET', lock, '=' .. token, 'PX', hold)
    elseif redis.call('EXISTS', queue) == 0 then
      redis.call('DEL', lock)
    else
      read_clock()
      local ok, given = pcall(hand_off, lock, queue, alive)
      -- Whatever is wrong with the queue must not keep the lock.
      if not (ok and given) then redis.call('DEL', lock) end
    end
    return 1
  end
  read_clock()
  if member ~= '' then leave(queue, alive, member) end
  if holder == '=' .. token then return {1, us} end
  return {holder and 2 or 0, us}
end

local answers = {}
for i = 1, (#KEYS - 1) / 3 do
  local k, a = 3 * i - 1, 3 * i - 2
  local ok, answer = pcall(release, KEYS[k], KEYS[k + 1], KEYS[k + 2], unpack(ARGV, a, a + 2))
  answers[i] = ok and answer or redis.error_reply(words(answer))
end
keep_numbers()
return answers
