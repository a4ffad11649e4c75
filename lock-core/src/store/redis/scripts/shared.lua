-- What acquire, release and force_release share: the clock, the numbers, and the queue of waiters.
-- KEYS[1] is the counter from which the namespace takes its grant numbers and tickets.
local counter = KEYS[1]
local time, us -- the server's clock
local number   -- the next to give away; nil if it cannot be determined
-- How many dead members are skipped in one call, each for a number at most: about 15 ms.
local MOST_SKIPPED = 10000

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
  if before > 9007199254740991 - MOST_SKIPPED * #KEYS then
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
-- The longest hand-off TTL in ms: how long a lock is handed to a waiter for, which lengthens it.
local HAND_OFF_MS = 3000
-- How many expired members are removed by one command.
local MOST_EXPIRED = 256
-- How long in ms a queue is kept without another claim.
local QUEUE_MS = 120000

-- Whether the releasing client was sent an empty message already.
local releaser_flushed

-- Called where it is first needed, because most calls meet no queue and closures cost as much as a
-- command.
--
-- A queue is two sorted sets with the same members: `queue` by ticket, which is the order of
-- service, and `alive` by the server's time in ms at which the ticket expires. A member is
-- `token:hand_off_ms:(=|#|~)inbox`. `=`: the inbox is subscribed, so if no client receives the
-- message, the waiter is gone. `#`: the same, and the inbox is a sharded channel of the lock's
-- slot, on a cluster. `~`: the number of receivers says nothing.
local function waiters_of(lock, queue, alive)
  local waiters = {}

  function waiters.forget_expired()
    local expired = redis.call('ZRANGEBYSCORE', alive, '-inf', math.floor(us / 1000), 'LIMIT', 0,
      MOST_EXPIRED)
    if expired[1] then
      redis.call('ZREM', queue, unpack(expired))
      redis.call('ZREM', alive, unpack(expired))
    end
    return #expired
  end

  function waiters.leave(member)
    redis.call('ZREM', queue, member)
    redis.call('ZREM', alive, member)
  end

  -- What a member consists of: token, hand_off_ms, sign, inbox. Nothing if this library wrote none
  -- such.
  local function read(member)
    local token, ttl, sign, inbox = string.match(member, '^([^:]+):(%d+):([=~#])(.*)$')
    if token and string.find(token, TOKEN) and tonumber(ttl) > 0 then
      return token, ttl, sign, inbox
    end
  end

  -- Removes what is no claim from the front of the queue.
  function waiters.skip_foreign()
    for _ = 1, MOST_SKIPPED do
      local head = redis.call('ZRANGE', queue, 0, 0)[1]
      if not head or read(head) and redis.call('ZSCORE', alive, head) then return end
      waiters.leave(head)
    end
  end

  -- Gives the lock to the first waiter that is still there, for the hand-off TTL that its member
  -- names, but no longer than HAND_OFF_MS. Returns true, or nil if there was none.
  --
  -- The first write comes before the message, because after a write Redis refuses no later one for
  -- lack of memory: a grant that was published must not fail to be stored.
  --
  -- `own`: the inbox of the releasing client, on the connection that receives the reply, or ''.
  -- Redis 7.0 flushes the most recently written client first. Publish an empty message to the
  -- releasing client before the grant, so that the new holder is flushed first: all other waiters
  -- wait for it. Only speed depends on this.
  function waiters.hand_off(own)
    repeat until waiters.forget_expired() < MOST_EXPIRED
    -- Inboxes without a subscriber: the waiters of a process share one.
    local unsubscribed = {}
    for _ = 1, MOST_SKIPPED do
      local head = redis.call('ZPOPMIN', queue)
      local member = head[1]
      if not member then
        redis.call('DEL', alive)
        return nil
      end
      local is_known = redis.call('ZREM', alive, member) == 1
      local token, ttl, sign, inbox = read(member)
      if is_known and token and not unsubscribed[inbox] then
        -- Each message has a number of its own: one that no receiver was counted for may arrive all
        -- the same, because replicas pass it on.
        local grant = number
        number = number + 1
        ttl = math.min(tonumber(ttl), HAND_OFF_MS)
        local receivers = 0
        if inbox ~= '' then
          if own ~= '' and own ~= inbox and not releaser_flushed then
            releaser_flushed = redis.pcall('PUBLISH', own, '')
          end
          -- Kept from replicas: a former master would pass it on to its clients, which are not
          -- counted. On a cluster this has no effect, and a former master ends the subscriptions.
          if sign == '=' then pcall(redis.set_repl, redis.REPL_NONE) end
          -- A client that may not publish does not learn the number of receivers either.
          receivers = redis.pcall(sign == '#' and 'SPUBLISH' or 'PUBLISH', inbox,
            string.format('%s %s %.0f %.0f %.0f %s', token, head[2], grant, us, ttl, lock))
          if sign == '=' then pcall(redis.set_repl, redis.REPL_ALL) end
        end
        if type(receivers) ~= 'number' or receivers > 0 or sign == '~' then
          redis.call('SET', lock, token, 'PX', string.format('%.0f', ttl))
          return true
        end
        unsubscribed[inbox] = true
      end
    end
  end

  return waiters
end

-- Errors are tables since Redis 7, strings before.
local function error_text(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

