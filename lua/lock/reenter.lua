-- Adds a level to a hold: writes the hold count and lengthens the lease.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- ARGV[1] hold id   - field
-- ARGV[2] count     - hold count with the new level
-- ARGV[3] lease     - ms, 1 to 2^53
--
-- Returns   -2 entered; -5 the hold does not exist, also when the key has another type
-- Publishes nothing
-- Repeat    writes the same count; the TTL never shrinks
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[3])
if not lease_ms or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end
local held = redis.pcall('HEXISTS', lock, hold_id)
if type(held) == 'table' then
  return string.find(held.err, 'WRONGTYPE') and -5 or held
end
if held == 0 then return -5 end

local ttl_ms = redis.call('PTTL', lock)
if ttl_ms < lease_ms then
  redis.call('PEXPIRE', lock, ARGV[3])
end
-- The count is for other readers of the hash. Without memory it is not written, and the hold stays. Then the TTL is
-- written even when it stays as it is, because replicas can only acknowledge a write.
local counted = redis.pcall('HSET', lock, hold_id, ARGV[2])
if type(counted) == 'table' and ttl_ms >= lease_ms then
  redis.call('PEXPIRE', lock, string.format('%.0f', ttl_ms))
end
return -2
