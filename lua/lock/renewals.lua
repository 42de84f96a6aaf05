-- Part of the scripts that renew many holds at once, each for itself: one bad key does not cost the others.
--
-- KEYS[i]     lock    - of the type that the script behind it says
-- ARGV[2i-1]  hold id
-- ARGV[2i]    lease   - ms, 1 to 2^53; 0 only looks whether the hold is there
--
-- Returns   by `renew_all`, an integer per lock, by itself when there is one: 1 held; 0 the hold is not there (nor
--           when the key is of another type); -1 refused, unknown. An error of the whole server (such as READONLY)
--           instead of all that: what came before it may have been renewed
-- Publishes nothing
-- Repeat    the TTL may grow, never shrink
local of_server = { READONLY = 1, NOREPLICAS = 1, MISCONF = 1, OOM = 1, MASTERDOWN = 1 }
local function lengthen(lock, lease_ms)
  local ttl_ms = redis.pcall('PTTL', lock)
  if type(ttl_ms) == 'table' then return ttl_ms end
  if lease_ms < 1 or lease_ms > 2 ^ 53 then return -1 end
  -- Also when it changes nothing: a server that became a replica cannot answer a write.
  local set = redis.pcall('PEXPIRE', lock, string.format('%.0f', math.max(ttl_ms, lease_ms)))
  return set == 0 and -1 or set
end
-- `find` says whether the lock has the hold: 1, 0 or an error.
local function renew_all(find)
  local replies = {}
  for i, lock in ipairs(KEYS) do
    local lease_ms = string.match(ARGV[2 * i], '^%d+$') and tonumber(ARGV[2 * i]) or -1
    local held = find(lock, ARGV[2 * i - 1])
    if held == 1 and lease_ms ~= 0 then held = lengthen(lock, lease_ms) end
    if type(held) == 'table' then
      -- Redis 6.2 says first where it was raised.
      local err = string.gsub(held.err, '^@user_script: ?%d+: ', '')
      local code = string.match(err, '^%-?(%u+)')
      if of_server[code] then return { err = string.gsub(err, '^%-', '') } end
      held = code == 'WRONGTYPE' and 0 or -1
    end
    replies[i] = held
  end
  -- Which is quicker to read, and in a cluster most renewals are of one lock.
  return #replies == 1 and replies[1] or replies
end
