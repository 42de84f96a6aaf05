-- Lengthens the lease of a hold that is there, by a write: a server that became a replica does not take it.
-- Levels are known to the client alone, so this is also how one is entered.
--
-- KEYS[1] lock    - string: hold id
-- ARGV[1] hold id
-- ARGV[2] lease   - ms, 1 to 2^53
--
-- Returns   1 the hold is there; 0 it is not (nor when the key is of another type)
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local holder = redis.pcall('GET', lock)
if type(holder) == 'table' then
  return string.find(holder.err, 'WRONGTYPE') and 0 or holder
end
if holder ~= hold_id then return 0 end
-- Written also when it changes nothing. Time stands still in a script, so what is left stays.
redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
return 1
