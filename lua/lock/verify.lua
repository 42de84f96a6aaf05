-- Checks that a hold exists and lengthens its lease. Always writes, so that a server that became a replica refuses it.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- ARGV[1] hold id   - field
-- ARGV[2] lease     - ms, 1 to 2^53
--
-- Returns   -2 the hold exists; -5 it does not, also when the key has another type
-- Publishes nothing
-- Repeat    the TTL never shrinks
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local held = redis.pcall('HEXISTS', lock, hold_id)
if type(held) == 'table' then
  return string.find(held.err, 'WRONGTYPE') and -5 or held
end
if held == 0 then return -5 end

-- A longer TTL is written back unchanged: no time passes while a script runs.
redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
return -2
