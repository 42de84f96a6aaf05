-- Renews many read and write holds at once, each for itself: one bad key does not cost the others.
--
-- KEYS[2i-1]  lock    - hash: mode -> read or write; hold id, or hold id:write -> hold count
-- KEYS[2i]    timeout - string, lives as long as the hold's lease when it is a read hold
-- ARGV[2i-1]  hold id
-- ARGV[2i]    lease   - ms, 1 to 2^53; 0 only looks whether the hold is there
--
-- Returns   an integer per hold, by itself when there is one: 1 held; 0 it is not there (nor when the key is of
--           another type); -1 refused, unknown. An error of the whole server (such as READONLY) instead of all that:
--           what came before it may have been renewed
-- Publishes nothing
-- Repeat    no TTL shrinks. A timeout key that is missing is written anew
local of_server = { READONLY = 1, NOREPLICAS = 1, MISCONF = 1, MASTERDOWN = 1 }
-- Also when it changes nothing: a server that became a replica cannot answer a write.
local function keep(key, lease_ms)
  return redis.call('PEXPIRE', key, string.format('%.0f', math.max(redis.call('PTTL', key), lease_ms)))
end
local function renew(lock, timeout, hold_id, lease)
  local fields, lease_ms = redis.call('HMGET', lock, hold_id, hold_id .. ':write'), tonumber(lease) or -1
  if not fields[1] and not fields[2] then return 0 end
  if lease_ms == 0 then return 1 end
  if not string.match(lease, '^%d+$') or lease_ms > 2 ^ 53 then return -1 end
  if fields[1] and keep(timeout, lease_ms) == 0 then redis.call('SET', timeout, '1', 'PX', lease) end
  return keep(lock, lease_ms) == 1 and 1 or -1
end
local replies = {}
for i = 1, #KEYS / 2 do
  local done, reply = pcall(renew, KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i - 1], ARGV[2 * i])
  if not done then
    -- Redis 6.2 says first where it was raised.
    local err = string.gsub(reply.err or reply, '^.*@user_script: ?%d+: ', '')
    local code = string.match(err, '^%-?(%u+)')
    if of_server[code] then return { err = string.gsub(err, '^%-', '') } end
    reply = code == 'WRONGTYPE' and 0 or -1
  end
  replies[i] = reply
end
return #replies == 1 and replies[1] or replies
