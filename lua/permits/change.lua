-- Changes how many permits there are, or deletes the semaphore.
--
-- KEYS[1] free      - string: number of free permits, may be negative
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- ARGV[1] how       - 'first' sets the number if it is missing; 'more' adds to it; 'total' sets the sum of free and taken
--                     permits; 'delete' deletes both keys
-- ARGV[2] permits   - for 'more' also negative
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   {-2, 1} changed; {-2, 0} not changed; {-12, n} n or -n would be out of range; -3 the keys are not those of a
--           semaphore. Nothing was written but with the first
-- Publishes the number of free permits, when it is positive and changed; 1 when they are deleted: whoever waits finds out
-- Repeat    of 'more' adds once more, so a client sends it once; the others change nothing
local free, taken, how, permits = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if not string.match(ARGV[2] or '', '^%-?%d+$') then return redis.error_reply('ERR permits out of range') end

local function failed(reply) return type(reply) == 'table' and reply.err end
local value, records = redis.pcall('GET', free), redis.pcall('ZCARD', taken)
local wrong = failed(value) or failed(records)
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end

if how == 'delete' then
  redis.call('DEL', free, taken)
  if number then redis.pcall(ARGV[4] or 'PUBLISH', ARGV[3], '1') end
  return { -2, number and 1 or 0 }
end
if how == 'first' and number then return { -2, 0 } end
local before = number or 0
local left = how == 'total' and permits - (number and records or 0) or how == 'more' and before + permits or permits
if math.abs(left) >= 2 ^ 31 then return { -12, math.abs(left) } end
if left == number then return { -2, 1 } end

if not number then redis.call('DEL', taken) end -- without a number they are records of nothing
redis.call('INCRBY', free, string.format('%.0f', left - before))
if left > 0 then redis.pcall(ARGV[4] or 'PUBLISH', ARGV[3], string.format('%.0f', left)) end
return { -2, 1 }
