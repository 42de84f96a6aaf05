-- Checks that permits are recorded and lengthens their lease. Always writes, so that a server that became a replica
-- refuses it. Takes permits back whose lease is over.
--
-- KEYS[1] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- KEYS[2] free      - string: number of free permits; left out where the two keys are at different nodes for a while
-- ARGV[1] lease     - ms, 1 to 2^53
-- ARGV[2] channel   - waiters listen to it
-- ARGV[3] count     - of permits
-- ARGV[4] and on    - their ids; then the command that wakes waiters, PUBLISH when missing
--
-- Returns   -2 all are recorded; -5 one is not, also when a key has another type
-- Publishes the number of free permits, when it took some back and they are positive
-- Repeat    the leases never shrink
local taken, free, channel = KEYS[1], KEYS[2], ARGV[2]
local lease_ms, count = tonumber(ARGV[1]), tonumber(ARGV[3])
if not string.match(ARGV[1] or '', '^%d+$') or lease_ms < 1 or lease_ms > 2 ^ 53 then
  return redis.error_reply('ERR lease out of range')
end
if not count or #ARGV < 3 + count then return redis.error_reply('ERR permit ids are missing') end

local function failed(reply) return type(reply) == 'table' and reply.err end
-- False when there is nothing, nil when the key has another type.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' then return reply end
  if string.find(reply.err, 'WRONGTYPE') then return nil end
  return redis.call(...) -- fails again
end
local number = not free or read('GET', free)
if not number then
  -- Without a number they are records of nothing.
  if number == false and read('ZCARD', taken) then redis.call('DEL', taken) end
  return -5
end
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local own, scores = {}, {}
for i = 4, 3 + count do
  local ends = read('ZSCORE', taken, ARGV[i])
  if not ends then return -5 end
  own[ARGV[i]] = true
  -- Later in any case, because replicas can only acknowledge a write.
  scores[#scores + 1] = string.format('%.0f', math.max(now_ms + lease_ms, tonumber(ends) + 1))
  scores[#scores + 1] = ARGV[i]
end
local ttl_ms, taken_ttl_ms = free and redis.call('PTTL', free) or -1, redis.call('PTTL', taken)
local back, restore = {}, {}
local over = free and redis.call('ZRANGEBYSCORE', taken, '-inf', string.format('%.0f', now_ms), 'WITHSCORES', 'LIMIT', 0, 100)
for i = 1, over and #over or 0, 2 do
  if not own[over[i]] then
    back[#back + 1] = over[i]
    restore[#restore + 1], restore[#restore + 2] = over[i + 1], over[i]
  end
end

-- A write that needs no memory comes first, though it removes nothing: behind it Redis refuses none.
redis.call('ZREM', taken, '')
redis.call('ZADD', taken, 'XX', unpack(scores))
-- The records live as long as the number, and as their leases, because somebody may make the number live longer.
local last = ttl_ms >= 0 and redis.pcall('ZRANGE', taken, -1, -1, 'WITHSCORES')
if last and not failed(last) then
  redis.pcall('PEXPIRE', taken, string.format('%.0f', math.max(ttl_ms, tonumber(last[2]) - now_ms)))
end
if free and ttl_ms < 0 and taken_ttl_ms >= 0 then redis.pcall('PERSIST', taken) end
if #back == 0 or failed(redis.pcall('ZREM', taken, unpack(back))) then return -2 end
local left = redis.pcall('INCRBY', free, #back)
if failed(left) then
  redis.call('ZADD', taken, unpack(restore))
elseif left > 0 and left < 2 ^ 31 then
  redis.pcall(ARGV[4 + count] or 'PUBLISH', channel, string.format('%.0f', left))
end
return -2
