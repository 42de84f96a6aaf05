-- Turns a write hold into a read hold. Nobody can write in between.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string that lives as long as the lease of the read hold
-- ARGV[1] hold id
-- ARGV[2] lease     - ms, 1 to 2^53; the remaining lease of the write hold counts when it is longer
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   -2 it is a read hold now; -8 it is, but the wake-up was refused; -5 the hold does not exist,
--           also when the key has another type
-- Publishes '1' (every reader may try) when it was a write hold, then '00' as release.lua does
-- Repeat    finds the read hold and returns -2; no TTL shrinks
local lock, timeout, hold_id, lease_ms, channel = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end
local fields = redis.pcall('HMGET', lock, hold_id, hold_id .. ':write', 'mode')
if fields.err then return string.find(fields.err, 'WRONGTYPE') and -5 or fields end
if not fields[1] and not fields[2] then return -5 end

-- In this order, each step leaves a hold with a lease if Redis refuses the next one.
local keep_ms = string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms))
redis.call('SET', timeout, '1', 'PX', keep_ms)
redis.call('PEXPIRE', lock, keep_ms)
if not fields[2] then return -2 end
redis.call('HSET', lock, hold_id, '1')
redis.call('HDEL', lock, hold_id .. ':write')
redis.call('HSET', lock, 'mode', 'read')

local woken = redis.pcall(ARGV[4] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[4] or 'PUBLISH', channel, '00')
return type(woken) == 'table' and -8 or -2
