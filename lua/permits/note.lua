-- Notes that a request for permits waits, so that younger requests of other clients leave it what it needs; or removes
-- the note. The first note of a request removes the notes of others that are over.
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
-- Publishes the number of free permits, when they are positive and it removed the note, or replaced it by that of a younger
--           request or one for fewer
-- Repeat    the note counts as long, counted from the repeat; a second removal publishes nothing
local free, needs, client, channel = KEYS[1], KEYS[2], ARGV[1], ARGV[5]
for i = 2, 4 do
  if not string.match(ARGV[i] or '', '^%d+$') then return redis.error_reply('ERR argument out of range') end
end
local waited_ms, note_ms = tonumber(ARGV[3]), tonumber(ARGV[4])

local left = tonumber(redis.call('GET', free)) or 0
local function wake()
  if left > 0 and left < 2 ^ 31 then redis.pcall(ARGV[6] or 'PUBLISH', channel, string.format('%.0f', left)) end
end
if note_ms == 0 then
  if redis.call('HDEL', needs, client) == 0 then return -5 end
  wake()
  return -2
end

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local since = math.max(0, now_ms - waited_ms)
local keep_ms = math.max(note_ms, redis.call('PTTL', needs))
-- Each note makes the key live longer, so the notes of clients that are gone stay. To look for them costs more the more
-- clients wait, so only the first note of a request does.
local own, over, gives_way = redis.call('HGET', needs, client), {}, false
local notes = own and { client, own } or redis.call('HGETALL', needs)
for i = 1, #notes, 2 do
  local permits, from, till = string.match(notes[i + 1], '^(%d+):(%d+):(%d+)$')
  local is_over = (tonumber(till) or 0) < now_ms
  if notes[i] == client then
    gives_way = not is_over and (tonumber(ARGV[2]) < tonumber(permits) or since > tonumber(from) + 100)
  elseif is_over and #over < 100 then
    over[#over + 1] = notes[i]
  end
end
redis.call('HSET', needs, client, string.format('%s:%.0f:%.0f', ARGV[2], since, now_ms + note_ms))
local expires = redis.pcall('PEXPIRE', needs, string.format('%.0f', keep_ms))
if type(expires) == 'table' then
  redis.call('HDEL', needs, client) -- no note without a TTL
  return expires
end
if #over > 0 then redis.pcall('HDEL', needs, unpack(over)) end
-- Others may take what the note before kept from them.
if gives_way then wake() end
return -2
