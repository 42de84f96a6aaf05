-- Leaves or removes the mark of a client whose writer waits. New readers stay out while they heed a mark.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] writers   - zset: client of a waiting writer -> ms of server time until which readers heed it
-- ARGV[1] client    - uuid
-- ARGV[2] mark      - ms for which readers heed the mark; 0 removes it
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   1 left or removed the mark; 0 did neither: nobody reads, or there was no mark
-- Publishes '1' (every waiter that can enter may try) when it removed the last mark and readers have the lock
-- Repeat    the mark lasts as long, counted from the repeat; a second removal publishes nothing
local lock, writers, client, mark_ms, channel = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3]
local reads = redis.call('HGET', lock, 'mode') == 'read'
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
if mark_ms > 0 then
  if not reads then return 0 end
  -- The key expires with the last mark in it.
  local keep_ms = math.max(redis.call('PTTL', writers), mark_ms)
  redis.call('ZADD', writers, string.format('%.0f', now_ms + mark_ms), client)
  local expires = redis.pcall('PEXPIRE', writers, keep_ms)
  if type(expires) == 'table' then
    redis.call('ZREM', writers, client)
    return expires
  end
  return 1
end

if redis.call('ZREM', writers, client) == 0 then return 0 end
local others = redis.call('ZCOUNT', writers, string.format('(%.0f', now_ms), '+inf')
if reads and others == 0 then redis.pcall(ARGV[4] or 'PUBLISH', channel, '1') end
return 1
