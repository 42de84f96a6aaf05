-- Takes the end off the records of permits: they stay taken, whoever dies. `release` removes the records of a plain
-- semaphore later, once it is certain that they are forgotten.
--
-- KEYS[1] free      - string: number of free permits
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends, 922337203685477: never
-- ARGV[1] count     - of permits
-- ARGV[2] and on    - their ids
--
-- Returns   -2 none of them ends any more; -5 a record is missing, also when a key has another type, and nothing changed
-- Publishes nothing
-- Repeat    changes nothing
local free, taken, count = KEYS[1], KEYS[2], tonumber(ARGV[1])
if not count or #ARGV < 1 + count then return redis.error_reply('ERR permit ids are missing') end

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
local scores = {}
for i = 2, 1 + count do
  local ends = read('ZSCORE', taken, ARGV[i])
  if not ends then return -5 end
  scores[#scores + 1] = string.format('%.0f', math.max(922337203685477, tonumber(ends)))
  scores[#scores + 1] = ARGV[i]
end
redis.call('ZREM', taken, '') -- a write that needs no memory comes first: behind it Redis refuses none
redis.call('ZADD', taken, 'XX', unpack(scores))
return -2
