-- Part of the fair lock's scripts: whose turn it is.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
-- last ARGV          - how to publish: SPUBLISH, else PUBLISH
--
-- Returns   nothing: the script behind it does
-- Publishes '0' to the head, in wake()
-- Repeat    the head is the same, and may be woken again
local publish = ARGV[#ARGV] == 'SPUBLISH' and 'SPUBLISH' or 'PUBLISH'
local function wake(id) return redis.pcall(publish, channel .. ':' .. id, '0') end

-- Whose turn it is on a free lock, and up to when that one is waited for. Heads that nobody waits for are dropped. Who
-- calls may know already up to when `mine` is vouched for: `alive`.
local function head(mine, alive)
  local id = call('LINDEX', queue, '0')
  if not id and call('EXISTS', scores, waiters) == 0 then return false end
  -- The head that is also the first of ours: nobody ahead of it was dropped.
  if id and id == call('ZRANGEBYSCORE', waiters, ARRIVALS, '+inf', 'LIMIT', '0', '1')[1] then
    local last = id == mine and alive or vouched_until(id)
    if last > now then return id, last end
  end
  local sooner, _, dropped = 0, pcall(restore)
  while true do
    id = call('LINDEX', queue, '0')
    local score = id and score_of(id)
    score = score and score - sooner
    -- Ours is waited for while its client vouches for it, Redisson's up to its score.
    local last = id and (arrival_of(id) and vouched_until(id) or score or 0)
    if not id or last > now then
      shift('0', -sooner)
      if dropped or not id then tidy() end
      return id, last
    end
    call('ZREM', waiters, client_of(id))
    sooner, dropped = sooner + take_out(id, score), true
  end
end
