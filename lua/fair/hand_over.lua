-- Part of the fair lock's scripts: the free lock is given to who heard that it is its turn, which need not ask for it.
--
-- KEYS[1] to KEYS[4] and
-- ARGV[1], ARGV[2]   - as in queue.lua
-- last ARGV          - as in turn.lua
--
-- Returns   nothing: the script behind it does
-- Publishes to the head: its hold id, its arrival, and 1 when the place behind it is of its client, else 0
-- Repeat    who left the queue has the lock

-- `id` is the head, and its client vouches for it until `last`: that is the lease, until the client renews it. Who does
-- not ask for this, or has little time left, goes on by itself.
local function hand_over(id, last)
  local arrival = arrival_of(id)
  if not arrival or arrival % 1 == 0 or last - now < VOUCH / 3 then return end
  -- Who was woken tries by itself, should this be refused.
  if type(redis.pcall('HSET', lock, id, '1')) == 'table' then return end
  if type(redis.pcall('PEXPIRE', lock, text(last - now))) == 'table' then return call('HDEL', lock, id) end
  local next_id = shift('0', -take_out(id, score_of(id)))
  tidy()
  local next_is_ours = next_id and client_of(next_id) == client_of(id) and '1' or '0'
  redis.pcall(publish, channel .. ':' .. id, id .. ' ' .. text(math.floor(arrival)) .. ' ' .. next_is_ours)
end
