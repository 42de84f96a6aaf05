-- Gives permits back. Only those that have a record: nobody gives back what others have got since.
--
-- KEYS[1] free      - string: number of free permits
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- ARGV[1] channel   - waiters listen to it
-- ARGV[2] count     - of permits
-- ARGV[3] and on    - their ids; then the command that wakes waiters, PUBLISH when missing
--
-- Returns   {-7, n} given back, and n clients received the wake-up, or -7 when none did; -8 given back, but the wake-up
--           was refused; -2 given back, and none is free; -5 a record was missing: those that were there are given back
-- Publishes the number of free permits, when it is positive
-- Repeat    finds no record, returns -5 and publishes nothing
local free, taken, channel, count = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if not count or #ARGV < 2 + count then return redis.error_reply('ERR permit ids are missing') end

local number = redis.call('GET', free)
if not number then
  redis.call('ZCARD', taken) -- fails for a key of another type
  redis.call('DEL', taken) -- without a number they are records of nothing
  return -5
end
local mine, restore = {}, {}
for i = 3, 2 + count do
  local ends = redis.call('ZSCORE', taken, ARGV[i])
  if ends then
    mine[#mine + 1] = ARGV[i]
    restore[#restore + 1], restore[#restore + 2] = ends, ARGV[i]
  end
end
local ttl_ms = redis.call('PTTL', taken)

-- A write that needs no memory comes first: behind it Redis refuses none, and a server that became a replica refuses it,
-- also when nothing is removed.
redis.call('ZREM', taken, unpack(#mine > 0 and mine or { '' }))
if #mine == 0 then return -5 end
local left = redis.pcall('INCRBY', free, #mine)
if type(left) == 'table' then
  redis.call('ZADD', taken, unpack(restore))
  if ttl_ms >= 0 then redis.call('PEXPIRE', taken, ttl_ms) end
  return left
end
local heard
if left > 0 and left < 2 ^ 31 then
  heard = redis.pcall(ARGV[3 + count] or 'PUBLISH', channel, string.format('%.0f', left))
end
if #mine < count then return -5 end
if not heard then return -2 end
if type(heard) == 'table' then return -8 end
return heard > 0 and { -7, heard } or -7
