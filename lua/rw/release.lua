-- Ends a read or write hold. The lock remains while other readers have it.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string that lives as long as the lease of this hold when it is a read hold
-- KEYS[3] channel   - waiters listen to it. It is passed as a key of the same slot, so that a node whose slot migrates
--                     refuses the script: the other readers' timeout keys, which only the fields name, may have moved
-- ARGV[1] hold id
-- ARGV[2] publish   - command that wakes the waiters; PUBLISH when missing
--
-- Returns   -2 ended, and others have the lock; {-7, n} the lock is free, and n clients received the wake-up, or -7 when
--           none did; -8 the lock is free, but the wake-up was refused; -5 there is no such hold, whatever the key
-- Publishes '1' (every waiter that can enter may try) when the lock is free, then '00', which is for Redisson: it reads
--           a 0 and keeps it for a thread that is about to wait
-- Repeat    finds no hold, returns -5 and publishes nothing
local lock, timeout, channel, hold_id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local suffix, most, sample, near_ms = ':rwlock_timeout:', 1000, 32, 1000
local prefix = string.sub(timeout, 1, #timeout - #hold_id - #suffix - 1)

-- Returns the ms that a key has left: infinite without a TTL, not positive when it is gone.
local function left_of(key)
  local ttl_ms = redis.call('PTTL', key)
  return ttl_ms == -1 and math.huge or ttl_ms
end

local mine = redis.pcall('HMGET', lock, hold_id, hold_id .. ':write')
if mine.err and not string.find(mine.err, 'WRONGTYPE') then return mine end
if not mine[1] and not mine[2] then
  redis.call('DEL', timeout)
  return -5
end

-- The lock lasts as long as the hold with the longest lease, give or take a second. If that is another hold, the first
-- live reader ends the search. If it may be this one, only a reader that lasts as long as the lock does.
local lock_ms = left_of(lock)
local enough_ms = 1
if mine[2] or lock_ms == math.huge or left_of(timeout) >= lock_ms - near_ms then
  enough_ms = math.max(1, lock_ms - near_ms)
end

local gone, longest_ms = {}, 0
-- Returns whether one of the fields has enough left, and notes those that are gone.
local function search(fields)
  for i = 1, #fields, 2 do
    local field, count, left_ms = fields[i], tonumber(fields[i + 1]) or 0, 0
    if field ~= 'mode' and field ~= hold_id and field ~= hold_id .. ':write' then
      -- A write hold has no timeout keys, and a hold may have too many to look at. The lease of the lock stands for them.
      if count > most or string.find(field, ':write$') then
        left_ms, count = lock_ms, 0
      end
      for level = 1, count do
        left_ms = math.max(left_ms, left_of(prefix .. field .. suffix .. level))
        if left_ms >= enough_ms then break end
      end
      if left_ms <= 0 then gone[#gone + 1] = field end
      longest_ms = math.max(longest_ms, left_ms)
      if longest_ms >= enough_ms then return true end
    end
  end
  return false
end
-- In random order, so that dead readers are found sooner or later, wherever they are in a long hash.
local is_long = redis.call('HLEN', lock) > sample
if not (is_long and search(redis.call('HRANDFIELD', lock, -sample, 'WITHVALUES'))) then
  search(redis.call('HGETALL', lock))
end

redis.call('DEL', timeout)
redis.call('HDEL', lock, hold_id, hold_id .. ':write')
for _, field in ipairs(gone) do redis.call('HDEL', lock, field) end
if longest_ms > 0 then
  local changes = longest_ms < enough_ms or longest_ms > lock_ms
  if changes and longest_ms < math.huge then redis.call('PEXPIRE', lock, longest_ms) end
  return -2
end

redis.call('DEL', lock)
local heard = redis.pcall(ARGV[2] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[2] or 'PUBLISH', channel, '00')
if type(heard) == 'table' then return -8 end
return heard > 0 and { -7, heard } or -7
