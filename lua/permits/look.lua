-- Counts permits as they are once those are taken back whose lease is over. Writes nothing.
--
-- KEYS[1] free      - string: number of free permits, may be negative
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- ARGV[1] what      - 'free', 'taken', or 'total'; or a number of permits: whether they could be taken
-- ARGV[2] initial   - permits that who asks whether would set if the number is missing; 0 when left out
--
-- Returns   {-2, n} so many, and {-11, n} for -n; asked for a number: -2 yes, -1 no; -3 the keys are not those of a
--           semaphore
-- Publishes nothing
-- Repeat    changes nothing
local function failed(reply) return type(reply) == 'table' and reply.err end
local value, records = redis.pcall('GET', KEYS[1]), redis.pcall('ZCARD', KEYS[2])
local wrong = failed(value) or failed(records)
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end

local now = redis.call('TIME')
local now_ms = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
local over = number and redis.call('ZCOUNT', KEYS[2], '-inf', now_ms) or 0
if not number then number, records = 0, 0 end -- without a number they are records of nothing
local counts = { free = number + over, taken = records - over, total = number + records }
local count = counts[ARGV[1]]
if not count then
  local free = value and counts.free or tonumber(ARGV[2]) or 0
  return free >= (tonumber(ARGV[1]) or 1) and -2 or -1
end
return count < 0 and { -11, -count } or { -2, count }
