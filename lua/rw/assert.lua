-- Checks that a read or write hold exists, and lengthens its lease. Asks for one more reader whether a writer waits.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string that lives as long as the lease of a read hold; missing while a slot migrates
-- KEYS[3] writers   - as in note.lua; likewise
-- ARGV[1] hold id
-- ARGV[2] lease     - ms, 1 to 2^53; 0 leaves the lease as it is
-- ARGV[3] count     - hold count of a write hold; 0 leaves the count as it is
-- ARGV[4] joins     - 1: one more reader wants to share the hold, and the lease is written only if no writer waits
--
-- Returns   -2 the hold exists; {-2, 1} it is a read hold, and the call has no timeout key; -5 it does not exist, also
--           when the key has another type; else, when one more reader wants to share it, a writer waits, whose note
--           readers heed for so many ms
-- Publishes nothing
-- Repeat    writes the same count; no TTL shrinks
local lock, timeout, writers, hold_id, lease_ms = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%d+$') or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end
local fields = redis.pcall('HMGET', lock, hold_id, hold_id .. ':write')
if fields.err then return string.find(fields.err, 'WRONGTYPE') and -5 or fields end
local reads, writes = fields[1], fields[2]
if not reads and not writes then return -5 end

-- Written even when the TTL stays as it is, so that a server that became a replica refuses it.
local function keep(key)
  return redis.call('PEXPIRE', key, string.format('%.0f', math.max(redis.call('PTTL', key), lease_ms)))
end

local joins, waits_ms = ARGV[4] == '1', 0
local last = joins and redis.call('ZREVRANGE', writers, 0, 0, 'WITHSCORES')[2]
if last then
  local now = redis.call('TIME')
  waits_ms = last - now[1] * 1000 - math.floor(now[2] / 1000)
  -- A note that would last longer than any is left from before the server's time went back.
  if waits_ms > 3000 then waits_ms = 0 end
end

if lease_ms > 0 and waits_ms <= 0 then
  if reads and timeout and keep(timeout) == 0 then redis.call('SET', timeout, '1', 'PX', ARGV[2]) end
  keep(lock)
end
-- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
if writes and ARGV[3] ~= '0' then redis.pcall('HSET', lock, hold_id .. ':write', ARGV[3]) end
if reads and not timeout then return { -2, 1 } end
return waits_ms > 0 and waits_ms or -2
