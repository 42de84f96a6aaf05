-- Starts a write hold: takes the lock when it is free. A try that waits leaves a note, and new readers stay out.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] writers   - as in note.lua
-- ARGV[1] hold id   - fresh for every attempt; begins with the client
-- ARGV[2] lease     - ms, 1 to 2^53
-- ARGV[3] cycle     - ms for which readers heed notes, as in note.lua; 0 leaves no note
--
-- Returns   -2 acquired; -3 the key is not a read/write lock; else busy: the lock's PTTL in ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own field and returns "acquired" again; the TTL never shrinks
local lock, writers, field, lease_ms = KEYS[1], KEYS[2], ARGV[1] .. ':write', tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local client, cycle_ms = string.match(ARGV[1], '^[^:]*'), tonumber(ARGV[3]) or 0
local note_ms = 3000

-- As note.lua does, but whatever is refused does not fail the try.
local function leave_note()
  local now = redis.call('TIME')
  local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  local pause_ms, ends = math.floor(cycle_ms / 3), tonumber(redis.call('ZSCORE', writers, 'cycle'))
  ends = ends and math.min(-ends, now_ms + cycle_ms)
  if not ends or now_ms >= ends + pause_ms then ends = now_ms + cycle_ms end
  if now_ms >= ends then return end
  local until_ms = string.format('%.0f', math.min(now_ms + note_ms, ends))
  redis.call('ZADD', writers, until_ms, client, string.format('%.0f', -ends), 'cycle')
  local keep_ms = now_ms + note_ms < ends and note_ms or ends + pause_ms - now_ms
  local expires = redis.pcall('PEXPIRE', writers, string.format('%.0f', keep_ms))
  if type(expires) == 'table' then redis.call('ZREM', writers, client, 'cycle') end
end

local ttl_ms = redis.call('PTTL', lock)
if ttl_ms ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  local mode = redis.call('HGET', lock, 'mode')
  if mode ~= 'read' and mode ~= 'write' then return -3 end
  if cycle_ms > 0 then pcall(leave_note) end
  return ttl_ms
end

if ttl_ms == -2 then redis.call('HSET', lock, 'mode', 'write', field, '1') end
-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and string.format('%.0f', ttl_ms) or ARGV[2])
if type(expires) == 'table' then
  if ttl_ms == -2 then redis.call('HDEL', lock, 'mode', field) end -- no field without a TTL
  return expires
end
-- Without any other note the cycle is over.
if redis.pcall('ZREM', writers, client) == 1 and redis.pcall('ZCOUNT', writers, '(0', '+inf') == 0 then
  redis.pcall('DEL', writers)
end
return -2
