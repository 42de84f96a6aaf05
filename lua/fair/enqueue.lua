-- Gives waiters of one client their places in the queue, behind the places that the client has. Takes no lock.
-- Follows queue.lua, enter.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2] - as in queue.lua
-- ARGV[3] ahead     - hold id of the client's last waiter that has a place; '' when none has
-- ARGV[4] and on    - hold ids, in the order of their waiters
--
-- Returns   {-2, n} each of these n waiters has a place or the lock; {-9, n} the same, and the head belongs to this
--           client; -5 gave no place, because the waiter ahead has lost its own; -3 the key is not a plain or fair lock
-- Publishes nothing
-- Repeat    a waiter that has a place keeps it; the holder gets none
if call('EXISTS', lock) == 1 and not holder() then return -3 end
local ahead = ARGV[3]
if ahead ~= '' and not arrival_of(ahead) and call('HEXISTS', lock, ahead) == 0 then return -5 end
local refused = enqueue({ unpack(ARGV, 4) })
return refused or { is_next(client_of(ARGV[4])) and -9 or -2, #ARGV - 3 }
