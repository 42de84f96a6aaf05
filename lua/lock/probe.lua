-- Asks which commands the server allows in scripts. Takes no lock, and writes nothing.
--
-- KEYS[1] lock      - a key that does not exist; none where writes need not be asked for
-- ARGV[1] channel   - one that nobody listens to
--
-- Returns   {-2, n}, or -2 when n is 0. n is the sum of 1 for TIME, 2 for a write and 4 for PUBLISH, each if the server
--           does not know it, or refuses it behind TIME. What only an ACL denies does not count
-- Publishes '' to the channel
-- Repeat    nothing changes
local function lacks(...)
  local said = redis.pcall(...)
  local refusal = type(said) == 'table' and said.err or ''
  return string.find(refusal, 'nknown') or string.find(refusal, 'non deterministic')
end

local n = lacks('TIME') and 1 or 0
if KEYS[1] and lacks('PEXPIRE', KEYS[1], '1') then n = n + 2 end
if lacks('PUBLISH', ARGV[1], '') then n = n + 4 end
return n > 0 and { -2, n } or -2
