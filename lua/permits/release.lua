-- Gives permits back. Only those that have a record: nobody gives back what others have got since.
--
-- KEYS[1] free      - string: number of free permits
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- ARGV[1] channel   - waiters listen to it
-- ARGV[2] forgotten - what becomes of records that never end: 'given' back, as the others; 'removed'; or 'kept'
-- ARGV[3] count     - of permits
-- ARGV[4] and on    - their ids; then the command that wakes waiters, PUBLISH when missing
--
-- Returns   {-7, n} given back, and n clients received the wake-up, or -7 when none did; -8 given back, but the wake-up
--           was refused; -2 given back, and none is free, or all are forgotten; -5 a record was missing, also because a
--           key has another type: those that were there are given back
-- Publishes the number of free permits, when it is positive
-- Repeat    finds no record, returns -5 and publishes nothing
local free, taken, channel, forgotten, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
if not count or #ARGV < 3 + count then return redis.error_reply('ERR permit ids are missing') end

-- False when there is nothing, nil when the key has another type.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' then return reply end
  if string.find(reply.err, 'WRONGTYPE') then return nil end
  return redis.call(...) -- fails again
end
local number = read('GET', free)
if not number then
  -- Without a number they are records of nothing.
  if number == false and read('ZCARD', taken) then redis.call('DEL', taken) end
  return -5
end
local mine, gone, restore, kept = {}, {}, {}, 0
for i = 4, 3 + count do
  local ends = read('ZSCORE', taken, ARGV[i])
  if ends == nil then return -5 end
  local never = ends and forgotten ~= 'given' and tonumber(ends) >= 922337203685477
  if never then kept = kept + 1 end
  if ends and not (never and forgotten == 'kept') then gone[#gone + 1] = ARGV[i] end
  if ends and not never then
    mine[#mine + 1] = ARGV[i]
    restore[#restore + 1], restore[#restore + 2] = ends, ARGV[i]
  end
end
local ttl_ms = redis.call('PTTL', taken)

-- A write that needs no memory comes first: behind it Redis refuses none, and a server that became a replica refuses it,
-- also when nothing is removed.
redis.call('ZREM', taken, unpack(#gone > 0 and gone or { '' }))
if #mine == 0 then return kept == count and -2 or -5 end
local left = redis.pcall('INCRBY', free, #mine)
if type(left) == 'table' then
  redis.call('ZADD', taken, unpack(restore))
  if ttl_ms >= 0 then redis.call('PEXPIRE', taken, ttl_ms) end
  return left
end
local heard
if left > 0 and left < 2 ^ 31 then
  heard = redis.pcall(ARGV[4 + count] or 'PUBLISH', channel, string.format('%.0f', left))
end
if #mine + kept < count then return -5 end
if not heard then return -2 end
if type(heard) == 'table' then return -8 end
return heard > 0 and { -7, heard } or -7
