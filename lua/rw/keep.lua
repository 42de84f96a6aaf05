-- Renews one hold by its part of the lock alone: while a slot migrates the other key may be at another node.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- ARGV[1] hold id
-- ARGV[2] lease     - ms, 1 to 2^53; 0 only looks whether the hold is there
--
-- Returns   2 it is a write hold, and renewed; 1 it is a read hold: its timeout key is to be kept, too; 0 it is not
--           there (nor when the key is of another type)
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
local lock, hold_id, lease_ms = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local fields = redis.pcall('HMGET', lock, hold_id, hold_id .. ':write')
if fields.err then return string.find(fields.err, 'WRONGTYPE') and 0 or fields end
if not fields[1] and not fields[2] then return 0 end
if lease_ms > 0 then
  redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
end
return fields[1] and 1 or 2
