-- Adds a level to a hold that began without a fencing token, and takes the next token for it.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] token     - string: the newest fencing token of the lock
-- ARGV[1] hold id   - field
-- ARGV[2] count     - hold count with the new level
-- ARGV[3] lease     - ms, 1 to 2^53
-- ARGV[4] token ttl - ms for which Redis keeps the token key; 0 keeps it for ever
--
-- Returns   {-10, token} entered; -5 the hold does not exist, also when the lock's key has another type; -3 the token is
--           not a number; -4 it is 2^53 or more
-- Publishes nothing
-- Repeat    takes another token, which is as good as the first: no other holder can have one between them; returns -4
--           when the first took the last one; writes the same count; the TTL never shrinks
local lock, tokens, hold_id, lease_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3])
if not (lease_ms and lease_ms >= 1 and lease_ms <= 2 ^ 53) then
  return redis.error_reply('ERR lease out of range')
end
local held = redis.pcall('HEXISTS', lock, hold_id)
if type(held) == 'table' then
  return string.find(held.err, 'WRONGTYPE') and -5 or held
end
if held == 0 then return -5 end
local stored, now = redis.call('GET', tokens) or '0', redis.call('TIME')
if stored ~= '0' and not string.match(stored, '^-?[1-9]%d*$') then return -3 end
local token = tonumber(stored)
if token >= 2 ^ 53 then return -4 end

-- Written even when the TTL stays as it is: after a first write, Redis does not refuse the next for want of memory.
redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))
token = math.max(token + 1, now[1] * 1000000 + now[2])
local keep = ARGV[4] == '0' and {} or { 'PX', ARGV[4] }
redis.call('SET', tokens, string.format('%.0f', token), unpack(keep))
-- The count is for other readers of the hash. Without memory it is not written, and the hold stays.
redis.pcall('HSET', lock, hold_id, ARGV[2])
return { -10, token }
