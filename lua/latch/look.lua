-- Asks how many counts a latch is waiting for. Changes nothing.
--
-- KEYS[1] count     - string: number of counts; a missing key or a number below 1 is an open latch
-- ARGV[1] what      - 'count' asks for the number, 'wait' whether to wait and for how long
--
-- Returns   {-2, n} n counts; to 'wait' -2 the latch is open, and from -1 up it is closed for at most so many ms, -1 if its
--           key has no TTL; -3 the key is not that of a latch
-- Publishes nothing
-- Repeat    changes nothing
local value = redis.pcall('GET', KEYS[1])
local wrong = type(value) == 'table' and value.err
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end

local left = math.max(number or 0, 0)
if ARGV[1] == 'count' then return { -2, left } end
if left > 0 then return redis.call('PTTL', KEYS[1]) end
-- A server that became a replica refuses it, and does not say that the latch is open.
if not value then redis.call('DEL', KEYS[1]) end
return -2
