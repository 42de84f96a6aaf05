-- Starts a hold: takes the lock when it is free.
--
-- KEYS[1] lock      - string: hold id
-- ARGV[1] hold id   - fresh for every attempt
-- ARGV[2] lease     - ms, 1 to 2^53
--
-- Returns   -2 acquired; -3 the key is not a string; else busy: the holder's PTTL in ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own hold id and returns "acquired" again; the TTL never shrinks
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not lease_ms or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local ttl_ms = redis.call('PTTL', lock)
if ttl_ms == -2 then
  redis.call('SET', lock, hold_id, 'PX', ARGV[2])
  return -2
end

local holder = redis.pcall('GET', lock)
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE') and -3 or holder
end
if holder ~= hold_id then return ttl_ms end

-- Written even when the TTL stays as it is, because replicas can only acknowledge a write.
redis.call('PEXPIRE', lock, ttl_ms >= lease_ms and string.format('%.0f', ttl_ms) or ARGV[2])
return -2
