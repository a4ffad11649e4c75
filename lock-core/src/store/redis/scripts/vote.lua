-- One server's vote in a quorum. Takes each lock that is free or already holds the claim's token,
-- and accepts the number that the claim proposes if it is larger than each number accepted before
-- it. A server that may have forgotten locks votes for no claim until all of them are over.
--
-- KEYS: birth mark; for each claim its lock; for each claim its number; for each claim the set of
-- waiters for its lock by the expiry of their tickets.
-- ARGV: the run id of the server ('': it is not compared), the restart delay in ms; for each claim
-- its token, its ttl in ms, the server time in us after which it is void, and the number that it
-- proposes (0: none, -1: none, and a lock that is free is left so, -2: none, and it is for a lease
-- that a majority keeps).
--
-- Returns us, and one reply for each claim:
-- {1, number}: the lock lasts at least ttl from us, and the number is accepted
-- {3, least}: the lock lasts as well, the number is refused: larger ones than `least` may do
-- {0, pttl, least}: another holds it   {2}: it is free, and left to its waiters or as it is
-- {4, left}: no votes for so many ms   -1: void, delivered too late, nothing was done
local time = redis.call('TIME')
local us = time[1] * 1000000 + time[2]
local run_id, delay = ARGV[1], tonumber(ARGV[2])
local count = (#KEYS - 1) / 3
-- How far from the server's clock a number may be, in us. Less than half of each restart delay: so
-- what a server accepts after it has forgotten its numbers is larger than all that it accepted
-- before.
local WINDOW = 1000000

-- What removes locks, or hides that they were removed. Redis 6.2 counts all of CONFIG together.
local FORGETFUL = { 'flushall', 'flushdb', 'swapdb', 'debug', 'replicaof', 'slaveof', 'config',
  'config|resetstat' }

-- When this process began to remember, by its own account: when it started, if nothing has removed
-- keys since; else now. With it, the run id that it tells.
local function remembers_since()
  local info = redis.pcall('INFO', 'all')
  if type(info) ~= 'string' then return time[1] .. string.format('%06d', time[2]), run_id end
  local id = string.match(info, '\nrun_id:(%x+)') or run_id
  local uptime = tonumber(string.match(info, '\nuptime_in_seconds:(%d+)'))
  local is_intact = uptime and string.find(info, '\nevicted_keys:0%s')
  for _, command in ipairs(FORGETFUL) do
    local calls = string.match(info, '\ncmdstat_' .. command .. ':calls=(%d+)')
    if calls and calls ~= '0' then is_intact = false end
  end
  -- Whole seconds of the same clock, so up to one too many.
  local seconds = is_intact and math.max(time[1] - uptime + 1, 0)
  if seconds then return string.format('%.0f000000', seconds), id end
  return time[1] .. string.format('%06d', time[2]), id
end

-- For how many ms the server does not vote. The mark says since when it remembers, in which
-- process, and the longest restart delay of its clients.
local function quarantine()
  local mark = redis.call('GET', KEYS[1])
  local since, id, longest = string.match(mark or '', '^(%d+) (%x*) ?(%d*)$')
  longest = tonumber(longest) or 0
  local is_known = since and (run_id == '' or id == run_id)
  -- The clock went back, so how much of the delay is over is not known.
  if is_known and tonumber(since) > us then is_known = false end
  if not is_known then since, id = remembers_since() end
  if not is_known or longest < delay then
    longest = math.max(longest, delay)
    redis.call('SET', KEYS[1], string.format('%s %s %.0f', since, id, longest))
  end
  return longest - (us - tonumber(since)) / 1000
end

local function least_of(numbers)
  return math.max(tonumber(redis.call('GET', numbers) or 0) or 0, us - WINDOW)
end

-- Sets of waiters that exist.
local waiting
local taken

-- Whether a lock that is free is the claim's. It is left to its waiters if any of them lives, but
-- for a lease that a majority keeps: they wait in vain until it ends. Such a claim mostly finds its
-- token, and looks before it takes the lock: without memory Redis refuses SET, and not PEXPIRE.
local function is_open(number, lock, alive)
  if number == '-2' then return redis.call('EXISTS', lock) == 0 end
  return number ~= '-1' and (waiting == 0
    or redis.call('ZCOUNT', alive, '(' .. math.floor(us / 1000), '+inf') == 0)
end

local function vote(i)
  local lock, numbers, alive = KEYS[1 + i], KEYS[1 + count + i], KEYS[1 + 2 * count + i]
  local token, ttl, number = ARGV[4 * i - 1], ARGV[4 * i], ARGV[4 * i + 2]
  local may_take = is_open(number, lock, alive)
  taken = may_take and redis.call('SET', lock, token, 'NX', 'PX', ttl)
  if not taken then
    local holder, left = redis.call('GET', lock), redis.call('PTTL', lock)
    if not holder then return {2} end
    if holder ~= token then return {0, left, least_of(numbers)} end
    if left < tonumber(ttl) then redis.call('PEXPIRE', lock, ttl) end
  end
  local proposed = tonumber(number)
  if proposed <= 0 then return {1, 0} end
  local least = least_of(numbers)
  if proposed <= least or proposed > us + WINDOW then return {3, least} end
  redis.call('SET', numbers, number)
  return {1, proposed}
end

waiting = redis.pcall('EXISTS', unpack(KEYS, 2 + 2 * count))
if type(waiting) == 'table' then return waiting end
local left = quarantine()
local replies = {us}
for i = 1, count do
  if us > tonumber(ARGV[4 * i + 1]) then
    replies[i + 1] = -1
  elseif left > 0 then
    replies[i + 1] = {4, math.ceil(left)}
  else
    taken = false
    local ok, reply = pcall(vote, i)
    if not ok then
      -- The reply is an error, so the lock must not stay.
      if taken then redis.call('DEL', KEYS[1 + i]) end
      reply = redis.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
    end
    replies[i + 1] = reply
  end
end
return replies
