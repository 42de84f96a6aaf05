-- Gives waiters of one client their places in the queue, behind those that it has, and takes no lock.
-- Follows queue.lua, keys.lua, places.lua, turn.lua, enter.lua, grant.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2] - as in queue.lua
-- ARGV[3] ahead     - hold id of the client's waiter ahead of these, which has a place; '' if there is none
-- ARGV[4] and on    - hold ids, in the order of their waiters
--
-- Returns   {code, number}: 1 done, 0 not done, since the place ahead was lost, -3 the key is no lock; 1 when the
--           head is of this client, else 0
-- Publishes nothing
-- Repeat    who has a place keeps it, who has the lock gets none
if call('EXISTS', lock) == 1 and not holder() then return { -3, 0 } end
local ahead = ARGV[3]
if ahead ~= '' and not arrival_of(ahead) and call('HEXISTS', lock, ahead) == 0 then return { 0, 0 } end
return enqueue({ unpack(ARGV, 4) }) or { 1, is_next(client_of(ARGV[4])) }
