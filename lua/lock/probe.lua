-- Asks which commands the server allows in scripts. Takes no lock, and writes nothing.
--
-- KEYS[1] lock      - a key that does not exist; none where writes need not be asked for
-- ARGV[1] channel   - one that nobody listens to
--
-- Returns   {TIME, write, PUBLISH}: 1 for each that is allowed or that only an ACL denies; 0 for one that the server does
--           not know, or refuses behind TIME
-- Publishes '' to the channel
-- Repeat    nothing changes
local function allowed(...)
  local said = redis.pcall(...)
  local refusal = type(said) == 'table' and said.err or ''
  return (string.find(refusal, 'nknown') or string.find(refusal, 'non deterministic')) and 0 or 1
end

local time = allowed('TIME')
return { time, KEYS[1] and allowed('PEXPIRE', KEYS[1], '1') or 1, allowed('PUBLISH', ARGV[1], '') }
