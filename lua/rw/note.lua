-- Leaves or removes the note of a client whose writer waits. New readers stay out while they heed a note: those of all
-- clients for one cycle from the first one on, then none for a third of it.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] writers   - zset: client of a waiting writer -> ms of server time until which readers heed it, at most 3 s from
--                     now; 'cycle' -> minus the ms of server time until which readers heed any
-- ARGV[1] client    - uuid
-- ARGV[2] cycle     - ms for which readers heed notes; 0 removes the note
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   -2 left or removed the note; -5 did neither: nobody reads, readers heed none now, or there was no note
-- Publishes '1' (every waiter that can enter may try) when it removed the last note and readers have the lock
-- Repeat    the note lasts as long, counted from the repeat; a second removal publishes nothing
local lock, writers, client, cycle_ms, channel = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3]
local note_ms = 3000
local reads = redis.call('HGET', lock, 'mode') == 'read'
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
if cycle_ms > 0 then
  if not reads then return -5 end
  local pause_ms, ends = math.floor(cycle_ms / 3), tonumber(redis.call('ZSCORE', writers, 'cycle'))
  -- The smaller of the two when a client has a shorter cycle, or the server's time went back.
  ends = ends and math.min(-ends, now_ms + cycle_ms)
  if not ends or now_ms >= ends + pause_ms then ends = now_ms + cycle_ms end
  if now_ms >= ends then return -5 end
  local until_ms = string.format('%.0f', math.min(now_ms + note_ms, ends))
  redis.call('ZADD', writers, until_ms, client, string.format('%.0f', -ends), 'cycle')
  -- The last note of a cycle leaves the key for the pause.
  local keep_ms = now_ms + note_ms < ends and note_ms or ends + pause_ms - now_ms
  local expires = redis.pcall('PEXPIRE', writers, string.format('%.0f', keep_ms))
  if type(expires) == 'table' then
    redis.call('ZREM', writers, client, 'cycle')
    return expires
  end
  return -2
end

if redis.call('ZREM', writers, client) == 0 then return -5 end
local heeded = { string.format('(%.0f', now_ms), string.format('%.0f', now_ms + note_ms) }
if redis.call('ZCOUNT', writers, heeded[1], heeded[2]) > 0 then return -2 end
redis.call('DEL', writers)
if reads then redis.pcall(ARGV[4] or 'PUBLISH', channel, '1') end
return -2
