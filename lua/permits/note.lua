-- Notes that a request for permits waits, so that younger requests of other clients leave it what it needs; or removes
-- the note. Whoever notes something removes the notes that are over.
--
-- KEYS[1] free      - string: number of free permits
-- KEYS[2] needs     - hash with TTL: client whose request waits -> permits:since:until, in ms of server time
-- ARGV[1] client    - uuid
-- ARGV[2] permits   - that it asks for
-- ARGV[3] waited    - ms for which it has waited
-- ARGV[4] note      - ms for which the note counts; 0 removes it
-- ARGV[5] channel   - waiters listen to it
-- ARGV[6] publish   - command that wakes them; PUBLISH when missing
--
-- Returns   -2 noted, or removed; -5 there was nothing to remove
-- Publishes the number of free permits, when it removed the note and they are positive
-- Repeat    the note counts as long, counted from the repeat; a second removal publishes nothing
local free, needs, client, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[5]
for i = 2, 4 do
  if not string.match(ARGV[i] or '', '^%d+$') then return redis.error_reply('ERR argument out of range') end
end
local waited_ms, note_ms = tonumber(ARGV[3]), tonumber(ARGV[4])

if note_ms > 0 then
  local now = redis.call('TIME')
  local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
  local keep_ms = math.max(note_ms, redis.call('PTTL', needs))
  local note = string.format('%s:%.0f:%.0f', ARGV[2], math.max(0, now_ms - waited_ms), now_ms + note_ms)
  redis.call('HSET', needs, client, note)
  local expires = redis.pcall('PEXPIRE', needs, string.format('%.0f', keep_ms))
  if type(expires) == 'table' then
    redis.call('HDEL', needs, client) -- no note without a TTL
    return expires
  end
  -- The notes of clients that are gone live as long as anybody's.
  local notes, over = redis.pcall('HGETALL', needs), {}
  for i = 1, #notes, 2 do
    local till = tonumber(string.match(notes[i + 1], ':(%d+)$')) or 0
    if till < now_ms and #over < 100 then over[#over + 1] = notes[i] end
  end
  if #over > 0 then redis.pcall('HDEL', needs, unpack(over)) end
  return -2
end

local left = tonumber(redis.call('GET', free)) or 0
if redis.call('HDEL', needs, client) == 0 then return -5 end
if left > 0 and left < 2 ^ 31 then
  redis.pcall(ARGV[6] or 'PUBLISH', channel, string.format('%.0f', left))
end
return -2
