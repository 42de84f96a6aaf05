-- Counts a latch down by one, once for each id. The last count deletes the latch.
--
-- KEYS[1] count     - string: number of counts
-- KEYS[2] counted   - zset: id of a count -> ms of server time when it counted; ends an hour after the last
-- ARGV[1] id        - of this count
-- ARGV[2] channel   - waiters listen to it
-- ARGV[3] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   {-2, n} n counts are left; {-8, 0} none is left, and the message was refused; -3 the keys are not those of a
--           latch
-- Publishes '0' when it deleted the latch
-- Repeat    finds its id for an hour, and does not count; it deletes a latch whose count is 0
local key, counted, id = KEYS[1], KEYS[2], ARGV[1]
local HOUR = 3600000

local function failed(reply) return type(reply) == 'table' and reply.err end
local value, before = redis.pcall('GET', key), redis.pcall('ZSCORE', counted, id)
local wrong = failed(value) or failed(before)
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end
if not number then
  redis.call('ZREM', counted, '') -- a server that became a replica refuses it, and does not say that the latch is open
  return { -2, 0 }
end

local counts = not before and number > 0
local left = counts and number - 1 or number
local done = false
if counts then
  local now = redis.call('TIME')
  local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  -- Without effect. It shows that the undo is allowed, and behind a write that needs no memory no other is refused for the lack
  -- of it.
  redis.call('ZREM', counted, id)
  redis.call('ZREMRANGEBYSCORE', counted, '-inf', string.format('%.0f', now_ms - HOUR))
  redis.call('ZADD', counted, string.format('%.0f', now_ms), id)
  done = redis.pcall('PEXPIRE', counted, HOUR)
end
if not failed(done) and (counts or left < 1) then
  done = redis.pcall(left > 0 and 'DECR' or 'DEL', key)
end
if failed(done) then
  if counts then redis.call('ZREM', counted, id) end
  return redis.error_reply(failed(done))
end
if left > 0 then return { -2, left } end
local heard = redis.pcall(ARGV[3] or 'PUBLISH', ARGV[2], '0')
return { failed(heard) and -8 or -2, 0 }
