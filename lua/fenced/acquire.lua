-- Starts a hold with a fencing token: takes the lock when it is free, and the next token with it.
--
-- KEYS[1] lock      - hash: hold id -> hold count
-- KEYS[2] token     - string: the newest fencing token of the lock
-- ARGV[1] hold id   - field, fresh for every attempt
-- ARGV[2] lease     - ms, 1 to 2^53
-- ARGV[3] token ttl - ms for which Redis keeps the token key; 0 keeps it for ever
--
-- Returns   {-10, token} acquired; -3 the lock is not a plain lock, or the token is not a number; -4 no token up to 2^53 is
--           left; else busy: the holder's PTTL in ms (-1: no TTL)
-- Publishes nothing
-- Repeat    finds its own field and returns the same token, or a new one when the token key is gone; the TTL never
--           shrinks
local lock, tokens, hold_id, lease_ms = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local function is_error(reply) return type(reply) == 'table' and reply.err end

if not (lease_ms and lease_ms >= 1 and lease_ms <= 2 ^ 53) then
  return redis.error_reply('ERR lease out of range')
end
local ttl_ms = redis.call('PTTL', lock)
if ttl_ms ~= -2 then
  if redis.call('HLEN', lock) ~= 1 then return -3 end
  local holder = redis.call('HGETALL', lock)
  if holder[1] == 'mode' or not string.match(holder[2], '^%d+$') then return -3 end
  if holder[1] ~= hold_id then return ttl_ms end
end
local stored, now = redis.call('GET', tokens) or '0', redis.call('TIME')
if stored ~= '0' and not string.match(stored, '^-?[1-9]%d*$') then return -3 end
local token = tonumber(stored)
local takes_token = ttl_ms == -2 or token < 1
-- A repeat may find the last token of all.
if token >= 2 ^ 53 and (takes_token or stored ~= '9007199254740992') then return -4 end

local reply
if ttl_ms == -2 then redis.call('HSET', lock, hold_id, '1') end
if ttl_ms < lease_ms then
  reply = redis.pcall('PEXPIRE', lock, ARGV[2])
elseif not takes_token then
  -- Written although the TTL stays as it is, because replicas can only acknowledge a write.
  reply = redis.pcall('PEXPIRE', lock, string.format('%.0f', ttl_ms))
end
if takes_token and not is_error(reply) then
  token = math.max(token + 1, now[1] * 1000000 + now[2])
  local keep = ARGV[3] == '0' and {} or { 'PX', ARGV[3] }
  reply = redis.pcall('SET', tokens, string.format('%.0f', token), unpack(keep))
end
if is_error(reply) then
  -- No field without a TTL, and no hold without a token.
  if ttl_ms == -2 then redis.call('HDEL', lock, hold_id) end
  return reply
end
return { -10, token }
