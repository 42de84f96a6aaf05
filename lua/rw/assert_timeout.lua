-- Lengthens the lease of a read hold's timeout key alone: while a slot migrates, the lock may be on another node.
--
-- KEYS[1] timeout   - string that lives as long as the lease of the read hold
-- ARGV[1] lease     - ms, 1 to 2^53
--
-- Returns   -2
-- Publishes nothing
-- Repeat    no TTL shrinks
local timeout, lease_ms = KEYS[1], tonumber(ARGV[1])
if not string.match(ARGV[1] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local keep_ms = string.format('%.0f', math.max(redis.call('PTTL', timeout), lease_ms))
if redis.call('PEXPIRE', timeout, keep_ms) == 0 then redis.call('SET', timeout, '1', 'PX', keep_ms) end
return -2
