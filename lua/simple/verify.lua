-- Checks that a hold exists and lengthens its lease. Always writes, so that a server that became a replica refuses it.
-- Also adds a level: Redis does not store the hold count.
--
-- KEYS[1] lock      - string: hold id
-- ARGV[1] hold id
-- ARGV[2] lease     - ms, 1 to 2^53
--
-- Returns   -2 the hold exists; -5 it does not, also when the key has another type
-- Publishes nothing
-- Repeat    the TTL never shrinks
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local holder = redis.pcall('GET', lock)
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE') and -5 or holder
end
if holder ~= hold_id then return -5 end

-- A longer TTL is written back unchanged: no time passes while a script runs.
redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
return -2
