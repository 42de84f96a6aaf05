-- Turns a write hold into a read hold, without a moment in between.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string, lives as long as the read hold's lease
-- ARGV[1] hold id
-- ARGV[2] lease     - ms, 1 to 2^53; what is left of the write hold's counts when that is more
-- ARGV[3] channel   - where waiters listen
-- ARGV[4] publish   - the command that tells them; PUBLISH unless there is one
--
-- Returns   1 it is a read hold; 2 it is, but the wake-up was refused; -5 the hold is not there
-- Publishes '1' (all who can enter may try) when it was a write hold, and '00' as a release does
-- Repeat    finds the read hold, answers 1; no TTL shrinks
local lock, timeout, hold_id, lease_ms, channel = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end

local fields = redis.call('HMGET', lock, hold_id, hold_id .. ':write', 'mode')
if not fields[1] and not fields[2] then return -5 end
-- In an order in which each step leaves a hold with a lease, should the next one be refused.
local keep_ms = string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms))
redis.call('SET', timeout, '1', 'PX', keep_ms)
redis.call('PEXPIRE', lock, keep_ms)
if not fields[2] then return 1 end
redis.call('HSET', lock, hold_id, '1')
redis.call('HDEL', lock, hold_id .. ':write')
redis.call('HSET', lock, 'mode', 'read')
local woken = redis.pcall(ARGV[4] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[4] or 'PUBLISH', channel, '00')
return type(woken) == 'table' and 2 or 1
