-- Says that a client's writer waits, or does not any more. Readers that are not in yet heed it.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] writers   - zset: client of a waiting writer -> server ms until which readers heed it
-- ARGV[1] client    - uuid
-- ARGV[2] mark      - ms for which it is heeded; 0 takes it away
-- ARGV[3] channel   - where waiters listen
-- ARGV[4] publish   - the command that tells them; PUBLISH unless there is one
--
-- Returns   1 marked, or taken away; 0 there was nothing to mark, or to take away
-- Publishes '1' (all who can enter may try) when the last mark is taken away and readers have the lock
-- Repeat    marks for as long, counted from then; finds nothing to take away and publishes nothing
local lock, writers, client, mark_ms, channel = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3]
local reads = redis.call('HGET', lock, 'mode') == 'read'
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
if mark_ms > 0 then
  if not reads then return 0 end
  -- It lives no longer than the last mark in it.
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
