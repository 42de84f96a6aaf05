-- Ends the hold of whoever has the lock. Waiters keep their places.
-- Follows queue.lua, head.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] client    - uuid of the caller, by which it recognises its own holds
--
-- Returns   {code, number}: code 1 ended, 2 ended but the wake-up was refused, 0 free, -3 the key is not a plain or
--           fair lock; number: of the ended hold when it was the caller's own, else 0
-- Publishes '0' to the head when it ended a hold
-- Repeat    finds no hold, returns {0, 0} and publishes nothing
if call('EXISTS', lock) == 0 then return { 0, 0 } end
local by = holder()
if not by then return { -3, 0 } end

call('DEL', lock)
local first = head()
local woken = first and wake(first)
local number = client_of(by) == ARGV[3] and tonumber(string.sub(by, #ARGV[3] + 2)) or 0
return { type(woken) == 'table' and 2 or 1, number }
