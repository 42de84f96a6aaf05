-- Part of the fair lock's scripts: whose turn it is, and how one leaves.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
-- last ARGV          - how to publish: SPUBLISH, else PUBLISH
--
-- Returns   nothing: the script behind it does
-- Publishes '0' to the head, in wake()
-- Repeat    who left is not there any more
local publish = ARGV[#ARGV] == 'SPUBLISH' and 'SPUBLISH' or 'PUBLISH'
local function wake(id) return redis.pcall(publish, channel .. ':' .. id, '0') end

-- Up to when one is waited for: ours while its client vouches for it, Redisson's up to its score.
local function waited_for_until(id, score)
  return arrival_of(id) and vouched_until(id) or score or 0
end
local function leave(id)
  local place = call('LPOS', queue, id)
  local sooner = take_out(id, score_of(id))
  if place then shift(place, -sooner) end
  tidy()
end
-- Whose turn it is on a free lock, and up to when that one is waited for. Heads that nobody waits for are dropped.
local function head()
  if call('EXISTS', queue, scores, waiters) == 0 then return false end
  local sooner, _, dropped = 0, pcall(restore)
  while true do
    local id = call('LINDEX', queue, 0)
    local score = id and score_of(id)
    score = score and score - sooner
    local last = id and waited_for_until(id, score)
    if not id or last > now then
      shift(0, -sooner)
      if dropped or not id then tidy() end
      return id, last
    end
    call('ZREM', waiters, client_of(id))
    sooner, dropped = sooner + take_out(id, score), true
  end
end
