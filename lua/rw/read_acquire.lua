-- Starts a read hold: takes the lock when it is free, or joins its readers unless a writer waits.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string that lives as long as the lease of this read hold
-- KEYS[3] writers   - as in note.lua
-- ARGV[1] hold id   - field, fresh for every attempt
-- ARGV[2] lease     - ms, 1 to 2^53
--
-- Returns   -2 acquired; -6 acquired, and a writer waits; -3 the key is not a read/write lock; else busy: for at most
--           so many ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own field and returns "acquired" again; no TTL shrinks
local lock, timeout, writers, hold_id, lease_ms = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local function is_error(reply) return type(reply) == 'table' and reply.err end

if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end
local ttl_ms, mode = redis.call('PTTL', lock), redis.call('HGET', lock, 'mode')
if mode ~= 'read' and mode ~= 'write' and ttl_ms ~= -2 then return -3 end
if mode == 'write' then return ttl_ms end
local again = redis.call('HEXISTS', lock, hold_id) == 1
local waits_ms, last = 0, redis.call('ZREVRANGE', writers, 0, 0, 'WITHSCORES')[2]
if last then
  local now = redis.call('TIME')
  waits_ms = last - now[1] * 1000 - math.floor(now[2] / 1000)
  -- A note that would last longer than any is left from before the server's time went back.
  if waits_ms < 0 or waits_ms > 3000 then waits_ms = 0 end
end
if mode and not again and waits_ms > 0 then
  return ttl_ms < 0 and waits_ms or math.min(ttl_ms, waits_ms)
end

local keep_ms = string.format('%.0f', math.max(redis.call('PTTL', timeout), lease_ms))
local done = redis.pcall('SET', timeout, '1', 'PX', keep_ms)
if not is_error(done) and not again then
  done = redis.pcall('HSET', lock, 'mode', 'read', hold_id, '1')
end
if not is_error(done) and ttl_ms < lease_ms then
  done = redis.pcall('PEXPIRE', lock, ARGV[2])
end
if is_error(done) then
  -- Neither key may stay without the other, or without a TTL.
  if not again then
    redis.call('HDEL', lock, hold_id, ttl_ms == -2 and 'mode' or hold_id)
    redis.call('DEL', timeout)
  end
  return done
end
return waits_ms > 0 and -6 or -2
