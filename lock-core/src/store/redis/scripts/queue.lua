-- What acquire and release share: the clock, the numbers, and the queue of waiters.
-- KEYS[1] is the counter from which the namespace takes its fencing tokens and tickets.
local counter = KEYS[1]
local time, us -- the server's clock
local number   -- the next to give away; nil if it cannot be determined

-- A number is the clock, or one more than the last number if the clock stands or went back. It
-- grows even if the counter is lost, and even if the clock is, unless both are lost at once. One
-- command writes the clock and reads the counter, without formatting a number; `finish` writes the
-- last number given away. Returns an error if there is one; then nothing was done and there is no
-- number.
local function begin()
  time = redis.call('TIME')
  us = time[1] * 1000000 + time[2]
  local last = redis.pcall('SET', counter, string.format('%s%06d', time[1], time[2]), 'GET')
  if type(last) == 'table' then
    if string.find(last.err, 'WRONGTYPE', 1, true) then return redis.error_reply('LOCK ' .. last.err) end
    return redis.error_reply(last.err)
  end
  local before = last and tonumber(last) or 0
  -- Beyond 2^53 two different numbers may be equal in Lua.
  if before > 9007199254740991 - 4 * #KEYS then
    redis.call('SET', counter, last)
    return redis.error_reply('LOCK the fence counter is exhausted')
  end
  number = before < us and us or before + 1
end

local function finish()
  if number and number - 1 > us then redis.call('SET', counter, string.format('%.0f', number - 1)) end
end

-- The form of a token.
local TOKEN = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-4%x%x%x%-[89ab]%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$'
-- The longest time in ms for which a lock is handed to a waiter, which lengthens it.
local CLAIM_MS = 3000
-- How many dead members are skipped in one call: about 15 ms.
local MOST_SKIPPED = 10000
-- How long in ms a queue is kept without another claim.
local QUEUE_MS = 120000

-- Whether the releasing client was sent an empty message already.
local behind

-- Called where it is first needed, because most calls meet no queue and closures cost as much as a
-- command.
--
-- A queue is two sorted sets with the same members: by ticket, which is the order of service, and
-- by the server's time in ms at which the ticket expires. A member is `token:claim_ms:(=|~)inbox`.
-- `=`: the inbox is subscribed, so if no client receives the message, the waiter is gone. `~`: the
-- number of receivers says nothing.
local function line_of(lock, queue)
  local line = { alive = string.gsub(queue, ':q:', ':a:', 1) }

  function line.forget_expired(most)
    local gone = redis.call('ZRANGEBYSCORE', line.alive, '-inf', math.floor(us / 1000), 'LIMIT', 0, most)
    if gone[1] then
      redis.call('ZREM', queue, unpack(gone))
      redis.call('ZREM', line.alive, unpack(gone))
    end
    return #gone
  end

  function line.leave(member)
    redis.call('ZREM', queue, member)
    redis.call('ZREM', line.alive, member)
  end

  -- What a member consists of: token, claim_ms, sign, inbox. Nothing if this library wrote none
  -- such.
  local function read(member)
    local token, claim, sign, inbox = string.match(member, '^([^:]+):(%d+):([=~])(.*)$')
    if token and string.find(token, TOKEN) and tonumber(claim) > 0 then
      return token, claim, sign, inbox
    end
  end

  -- Removes what is no claim from the front of the queue.
  function line.skip_foreign()
    for _ = 1, MOST_SKIPPED do
      local head = redis.call('ZRANGE', queue, 0, 0)[1]
      if not head or read(head) and redis.call('ZSCORE', line.alive, head) then return end
      line.leave(head)
    end
  end

  -- Gives the lock to the first waiter that is still there, for the time that its member names, but
  -- no longer than a claim lasts. Returns true, or nil if there was none.
  --
  -- The first write comes before the message, because after a write Redis refuses no later one for
  -- lack of memory: a grant that was published must not fail to be stored.
  --
  -- `own`: the inbox of the releasing client, on the connection that receives the reply, or ''.
  -- Redis 7.0 flushes the most recently written client first. Publish an empty message to the
  -- releasing client before the grant, so that the new holder is flushed first: all other waiters
  -- wait for it. Only speed depends on this.
  function line.hand_off(own)
    repeat until line.forget_expired(256) < 256
    -- Inboxes without a subscriber: the waiters of a process share one.
    local fence, unsubscribed = nil, {}
    for _ = 1, MOST_SKIPPED do
      local head = redis.call('ZPOPMIN', queue)
      local member = head[1]
      if not member then
        redis.call('DEL', line.alive)
        return nil
      end
      local is_known = redis.call('ZREM', line.alive, member) == 1
      local token, claim, sign, inbox = read(member)
      if is_known and token and not unsubscribed[inbox] then
        if not fence then
          fence = number
          number = number + 1
        end
        claim = math.min(tonumber(claim), CLAIM_MS)
        local heard = 0
        if inbox ~= '' then
          if own ~= '' and own ~= inbox and not behind then behind = redis.pcall('PUBLISH', own, '') end
          -- A client that may not publish does not learn the number of receivers either.
          heard = redis.pcall('PUBLISH', inbox,
            string.format('%s %s %.0f %.0f %.0f %s', token, head[2], fence, us, claim, lock))
        end
        if type(heard) ~= 'number' or heard > 0 or sign == '~' then
          redis.call('SET', lock, token, 'PX', string.format('%.0f', claim))
          return true
        end
        unsubscribed[inbox] = true
      end
    end
  end

  return line
end

-- Errors are tables since Redis 7, strings before.
local function words(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

