-- Sets the count of a latch that is not there, or deletes a latch.
--
-- KEYS[1] count     - string: number of counts
-- ARGV[1] how       - 'set' or 'delete'
-- ARGV[2] counts    - from 1 up, to set
-- ARGV[3] channel   - waiters listen to it
-- ARGV[4] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   {-2, 1} changed; {-8, 1} changed, and the message was refused; {-2, 0} not changed; -3 the key is not that of a
--           latch
-- Publishes '1' when it set the count: a '0' opens Redisson's waiters until then. '0' when it deleted the latch
-- Repeat    changes nothing
local key, sets = KEYS[1], ARGV[1] == 'set'
if sets and not string.match(ARGV[2], '^[1-9]%d*$') then return redis.error_reply('ERR counts out of range') end

local value = redis.pcall('GET', key)
local wrong = type(value) == 'table' and value.err
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end

if (number ~= false) == sets then return { -2, 0 } end
if sets then
  redis.call('SET', key, ARGV[2])
else
  redis.call('DEL', key)
end
local heard = redis.pcall(ARGV[4] or 'PUBLISH', ARGV[3], sets and '1' or '0')
return { type(heard) == 'table' and heard.err and -8 or -2, 1 }
