-- Ends a read or write hold. The lock remains while other readers have it.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string that lives as long as the lease of this hold when it is a read hold
-- KEYS[3] channel   - waiters listen to it. It is passed as a key of the same slot, so that a node whose slot migrates
--                     refuses the script: the other readers' timeout keys, which only the fields name, may have moved
-- ARGV[1] hold id
-- ARGV[2] publish   - command that wakes the waiters; PUBLISH when missing
--
-- Returns   0 the hold does not exist; -2 ended, and others have the lock; -1 ended, but the wake-up was refused;
--           else the lock is free: 1, plus the number of clients that received the wake-up
-- Publishes '1' (every waiter that can enter may try) when the lock is free, then '00', which is for Redisson: it reads
--           a 0 and keeps it for a thread that is about to wait
-- Repeat    finds no hold, returns 0 and publishes nothing
local lock, timeout, channel, hold_id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local suffix, most = ':rwlock_timeout:', 1000
local prefix = string.sub(timeout, 1, #timeout - #hold_id - #suffix - 1)

-- Returns the longer of two PTTLs: -2 is no key, -1 no TTL.
local function longer(a, b)
  if a == -1 or b == -1 then return -1 end
  return math.max(a, b)
end

local fields, gone, mine, alive, longest_ms = redis.call('HGETALL', lock), {}, false, false, -2
for i = 1, #fields, 2 do
  local field, count, left_ms = fields[i], tonumber(fields[i + 1]) or 0, -2
  for level = 1, math.min(count, most) do
    left_ms = longer(left_ms, redis.call('PTTL', prefix .. field .. suffix .. level))
  end
  -- A write hold has no timeout keys, and a hold may have too many to look at. The lease of the lock stands for them.
  if count > most or string.find(field, ':write$') then left_ms = redis.call('PTTL', lock) end
  if field == hold_id or field == hold_id .. ':write' then mine, left_ms = true, -2 end
  if field ~= 'mode' and left_ms == -2 then gone[#gone + 1] = field end
  alive = alive or (field ~= 'mode' and left_ms ~= -2)
  longest_ms = longer(longest_ms, left_ms)
end

redis.call('DEL', timeout)
if not mine then return 0 end
for _, field in ipairs(gone) do redis.call('HDEL', lock, field) end
if alive then
  if longest_ms >= 0 then redis.call('PEXPIRE', lock, longest_ms) end
  return -2
end

redis.call('DEL', lock)
local heard = redis.pcall(ARGV[2] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[2] or 'PUBLISH', channel, '00')
return type(heard) == 'table' and -1 or 1 + heard
