-- Ends a read or write hold; the lock lives on for as long as other readers have it.
--
-- KEYS[1] lock      - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2] timeout   - string, lives as long as this hold's lease when it is a read hold
-- KEYS[3] channel   - where waiters listen; no key, but of the lock's slot, as are the other readers' timeout
--                     keys, which are only known by the fields: while that slot migrates nothing is done
-- ARGV[1] hold id
-- ARGV[2] publish   - the command that tells them; PUBLISH unless there is one
--
-- Returns   0 the hold is not there; -2 ended, and others have the lock; -1 ended, but the wake-up was refused;
--           else the lock is free: 1, and one more for every client that heard it
-- Publishes '1' (all who can enter may try) and '00' (a 0 to Redisson, kept for one about to wait) when the lock is free
-- Repeat    finds nothing to end, answers 0 and publishes nothing
local lock, timeout, channel, hold_id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local suffix, most = ':rwlock_timeout:', 1000
local prefix = string.sub(timeout, 1, #timeout - #hold_id - #suffix - 1)
local fields, gone, mine, alive, longest_ms = redis.call('HGETALL', lock), {}, false, false, -2
for i = 1, #fields, 2 do
  local field, count, left_ms = fields[i], tonumber(fields[i + 1]) or 0, -2
  for level = 1, math.min(count, most) do
    local ms = redis.call('PTTL', prefix .. field .. suffix .. level)
    left_ms = (ms == -1 or left_ms == -1) and -1 or math.max(left_ms, ms)
  end
  -- Of a hold without timeout keys that is no reader, or has too many levels to count, the lock tells.
  if count > most or string.find(field, ':write$') then left_ms = redis.call('PTTL', lock) end
  if field == hold_id or field == hold_id .. ':write' then mine, left_ms = true, -2 end
  if field ~= 'mode' and left_ms == -2 then gone[#gone + 1] = field end
  alive = alive or (field ~= 'mode' and left_ms ~= -2)
  longest_ms = (left_ms == -1 or longest_ms == -1) and -1 or math.max(longest_ms, left_ms)
end

redis.call('DEL', timeout)
if not mine then return 0 end
for _, field in ipairs(gone) do redis.call('HDEL', lock, field) end
if alive and longest_ms >= 0 then redis.call('PEXPIRE', lock, longest_ms) end
if alive then return -2 end
redis.call('DEL', lock)
local heard = redis.pcall(ARGV[2] or 'PUBLISH', channel, '1')
redis.pcall(ARGV[2] or 'PUBLISH', channel, '00')
return type(heard) == 'table' and -1 or 1 + heard
