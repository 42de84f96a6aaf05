-- Starts a write hold: takes the lock when it is free. A try that waits leaves a mark, and new readers stay out.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] writers   - zset: client of a waiting writer -> ms of server time until which readers heed it
-- ARGV[1] hold id   - fresh for every attempt; begins with the client
-- ARGV[2] lease     - ms, 1 to 2^53
-- ARGV[3] mark      - ms for which readers heed the mark; 0 leaves no mark
--
-- Returns   -2 acquired; -3 the key is not a read/write lock; else busy: the lock's PTTL in ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own field and returns "acquired" again; the TTL never shrinks
local lock, writers, field, lease_ms = KEYS[1], KEYS[2], ARGV[1] .. ':write', tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local client, mark_ms = string.match(ARGV[1], '^[^:]*'), tonumber(ARGV[3]) or 0
local ttl_ms = redis.call('PTTL', lock)
if ttl_ms ~= -2 and redis.call('HEXISTS', lock, field) == 0 then
  local mode = redis.call('HGET', lock, 'mode')
  if mode ~= 'read' and mode ~= 'write' then return -3 end
  if mark_ms > 0 then
    local now = redis.call('TIME')
    local until_ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000) + mark_ms)
    -- The key expires with the last mark in it.
    local keep_ms = math.max(redis.call('PTTL', writers), mark_ms)
    redis.pcall('ZADD', writers, until_ms, client)
    local expires = redis.pcall('PEXPIRE', writers, keep_ms)
    if type(expires) == 'table' then redis.pcall('ZREM', writers, client) end
  end
  return ttl_ms
end

if ttl_ms == -2 then redis.call('HSET', lock, 'mode', 'write', field, '1') end
-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and string.format('%.0f', ttl_ms) or ARGV[2])
if type(expires) == 'table' then
  if ttl_ms == -2 then redis.call('HDEL', lock, 'mode', field) end -- no field without a TTL
  return expires
end
redis.pcall('ZREM', writers, client)
return -2
