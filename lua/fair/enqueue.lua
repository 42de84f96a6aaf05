-- Gives waiters of one client their places in the queue, behind those that it has, and takes no lock.
-- Follows queue.lua, keys.lua, places.lua, turn.lua, enter.lua, grant.lua
--
-- KEYS[1] to KEYS[4], ARGV[1], ARGV[2] - as in queue.lua
-- ARGV[3] ahead     - hold id of the client's waiter ahead of these, which has a place; '' if there is none
-- ARGV[4] takes     - 1: the lock may be handed over to the new ones, 0: to none of these
-- ARGV[5] and on    - hold ids, in the order of their waiters
--
-- Returns   {code, number, arrivals}: 1 done, 0 not done, since the place ahead was lost, -3 the key is no lock; 1 when
--           the head is of this client, else 0; when done, for each hold id: its arrival, or 0 if it had a place, or the
--           lock, before
-- Publishes nothing
-- Repeat    who has a place keeps it, who has the lock gets none
if call('EXISTS', lock) == 1 and not holder() then return { -3, 0 } end
local ahead = ARGV[3]
if ahead ~= '' and not arrival_of(ahead) and call('HEXISTS', lock, ahead) == 0 then return { 0, 0 } end
local ids, answer = { unpack(ARGV, 5) }, { 1 }
local refused = enqueue(ids, ARGV[4] == '1' and 0.5)
if refused then return refused end
answer[2] = is_next(client_of(ids[1]))
for i, id in ipairs(ids) do
  local marked = arrival_of(id) or 0
  local arrival = math.floor(marked)
  if ARGV[4] ~= '1' and marked > arrival then call('ZADD', waiters, text(arrival), id) end
  answer[i + 2] = arrival == now_us + i and arrival or 0
end
return answer
