-- Ends whoever holds the lock; who waits goes on waiting.
-- Follows queue.lua, keys.lua, places.lua, turn.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2], last ARGV - as in queue.lua and turn.lua
-- ARGV[3] client    - uuid of the caller, to tell its own holds from strangers'
--
-- Returns   {code, number}: code 1 ended, 2 ended but the wake-up was refused, 0 free, -3 the key is
--           no lock; number: of the hold that ended, when it is the caller's own, else 0
-- Publishes '0' to the head of the queue when a hold ended
-- Repeat    finds nothing to end, answers {0, 0} and publishes nothing
if call('EXISTS', lock) == 0 then return { 0, 0 } end
local by = holder()
if not by then return { -3, 0 } end

call('DEL', lock)
local first = head()
local woken = first and wake(first)
local number = client_of(by) == ARGV[3] and tonumber(string.sub(by, #ARGV[3] + 2)) or 0
return { type(woken) == 'table' and 2 or 1, number }
