-- Asks whether a hold is there, by a write: a server that became a replica does not take it.
--
-- KEYS[1] lock    - hash: hold id -> hold count
-- ARGV[1] hold id - field
-- ARGV[2] lease   - ms, 1 to 2^53
--
-- Returns   1 the hold is there; 0 it is not (nor when the key is of another type)
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local held = redis.pcall('HEXISTS', lock, hold_id)
if type(held) == 'table' then
  return string.find(held.err, 'WRONGTYPE') and 0 or held
end
if held == 0 then return 0 end
-- Written also when it changes nothing. Time stands still in a script, so what is left stays.
redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
return 1
