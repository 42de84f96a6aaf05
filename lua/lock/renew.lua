-- Renews many holds at once, each for itself: one bad key does not cost the others.
--
-- KEYS[i]     lock    - hash: hold id -> hold count
-- ARGV[2i-1]  hold id - field
-- ARGV[2i]    lease   - ms, 1 to 2^53; 0 only looks whether the hold is there
--
-- Returns   an integer per lock: 1 held; 0 the hold is not there (nor when the key is of another type);
--           -1 refused, unknown
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
local replies = {}
for i, lock in ipairs(KEYS) do
  local lease_ms = tonumber(ARGV[2 * i]) or -1
  local held = redis.pcall('HEXISTS', lock, ARGV[2 * i - 1])
  if held == 1 and lease_ms ~= 0 then
    local ttl_ms = redis.pcall('PTTL', lock)
    if type(ttl_ms) == 'table' or lease_ms < 1 or lease_ms > 2 ^ 53 then
      held = -1
    elseif ttl_ms < lease_ms and redis.pcall('PEXPIRE', lock, ARGV[2 * i]) ~= 1 then
      held = -1
    end
  end
  if type(held) == 'table' then
    held = string.find(held.err, 'WRONGTYPE') and 0 or -1
  end
  replies[i] = held
end
return replies
