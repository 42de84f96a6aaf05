-- Ends the hold of whoever has the lock. Waiters keep their places.
-- Follows queue.lua, head.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua
-- ARGV[3] client    - uuid of the caller, by which it recognises its own holds
--
-- Returns   {-2, n} ended; {-8, n} ended, but the wake-up was refused; n: number of the ended hold when it was the
--           caller's own, else 0. -5 free; -3 the key is not a plain or fair lock
-- Publishes '0' to the head when it ended a hold
-- Repeat    finds no hold, returns -5 and publishes nothing
if call('EXISTS', lock) == 0 then return -5 end
local by = holder()
if not by then return -3 end

call('DEL', lock)
local first = head()
local woken = first and wake(first)
local number = client_of(by) == ARGV[3] and tonumber(string.sub(by, #ARGV[3] + 2)) or 0
return { type(woken) == 'table' and -8 or -2, number }
