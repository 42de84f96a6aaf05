-- Raises the newest fencing token of a lock to the token of a hold that exists on several servers.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] token     - string: the newest fencing token of the lock
-- ARGV[1] hold id   - field
-- ARGV[2] token     - the hold's token, the largest that any of the servers gave, 1 to 2^53
-- ARGV[3] token ttl - ms for which Redis keeps the token key; 0 keeps it for ever
--
-- Returns   -2 this token or a larger one is stored; -5 the hold does not exist; -3 the stored token is not a number
-- Publishes nothing
-- Repeat    finds that token or a larger one, and writes nothing
local lock, tokens, hold_id, token = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
if not (token and token >= 1 and token <= 2 ^ 53) then
  return redis.error_reply('ERR token out of range')
end
if redis.call('HEXISTS', lock, hold_id) == 0 then return -5 end
local stored = redis.call('GET', tokens) or '0'
if stored ~= '0' and not string.match(stored, '^-?[1-9]%d*$') then return -3 end

if tonumber(stored) < token then
  local keep = ARGV[3] == '0' and {} or { 'PX', ARGV[3] }
  redis.call('SET', tokens, string.format('%.0f', token), unpack(keep))
end
return -2
