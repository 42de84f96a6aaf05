-- Starts a hold: takes the lock when it is free.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- ARGV[1] hold id   - field, fresh for every attempt
-- ARGV[2] lease     - ms, 1 to 2^53
--
-- Returns   -2 acquired; -3 the key is not a plain lock; else busy: the holder's PTTL in ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own field and returns "acquired" again; the TTL never shrinks
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not lease_ms or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local ttl_ms = redis.call('PTTL', lock)
if ttl_ms == -2 then
  redis.call('HSET', lock, hold_id, '1')
else
  if redis.call('HLEN', lock) ~= 1 then return -3 end
  local holder = redis.call('HGETALL', lock)
  if holder[1] == 'mode' or not string.match(holder[2], '^%d+$') then return -3 end
  if holder[1] ~= hold_id then return ttl_ms end
end

-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and string.format('%.0f', ttl_ms) or ARGV[2])
if type(expires) == 'table' then
  if ttl_ms == -2 then redis.call('HDEL', lock, hold_id) end -- no field without a TTL
  return expires
end
return -2
