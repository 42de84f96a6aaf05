-- Grants requests for permits in their order, each all or none, until one does not fit: each permit has a record, and is
-- taken off the number of free permits.
--
-- KEYS[1] free      - string: number of free permits, may be negative
-- KEYS[2] taken     - zset: id of a taken permit -> ms of server time when its lease ends
-- KEYS[3] needs     - hash with TTL: client whose request waits -> permits:since:until, in ms of server time
-- ARGV[1] lease     - ms, 1 to 2^53
-- ARGV[2] initial   - permits to set if the number is missing; 0 sets none
-- ARGV[3] client    - uuid
-- ARGV[4] channel   - waiters listen to it
-- ARGV[5] count     - of permits that each request asks for; of all together 1 to 1024
-- ARGV[6] requests  - how many
-- ARGV[7] and on    - the ids of the permits, fresh for every attempt; then the command that wakes waiters, PUBLISH when
--                     missing
--
-- Returns   {-2, n} all n requests are granted; {-13, n, ms} the first n are, and a next one is busy; {-14, n, ms} the same,
--           and a request of another client has waited; -3 the keys are not those of a semaphore; else busy. ms: until a
--           lease ends, -1 if none does
-- Publishes the number of free permits, when others may take some that they could not take before
-- Repeat    finds its own records, and takes only permits whose record is gone
local free, taken, needs = KEYS[1], KEYS[2], KEYS[3]
local lease_ms, initial, client = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local channel, count, requests = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
for i, least in pairs({ [1] = 1, [2] = 0, [5] = 1, [6] = 1 }) do
  local number = string.match(ARGV[i] or '', '^%d+$') and tonumber(ARGV[i])
  if not number or number < least or number > 2 ^ 53 then return redis.error_reply('ERR argument out of range') end
end
local last_id = 6 + count * requests
if last_id > 6 + 1024 then return redis.error_reply('ERR argument out of range') end
if #ARGV < last_id then return redis.error_reply('ERR permit ids are missing') end

local function failed(reply) return type(reply) == 'table' and reply.err end
local value, records = redis.pcall('GET', free), redis.pcall('ZCARD', taken)
local wrong = failed(value) or failed(records)
if wrong then return string.find(wrong, 'WRONGTYPE') and -3 or redis.error_reply(wrong) end
local number = value and string.match(value, '^%-?%d+$') and tonumber(value)
if value and (not number or math.abs(number) >= 2 ^ 53) then return -3 end
if not number and initial < 1 then
  redis.pcall('DEL', taken) -- without a number they are records of nothing
  return -1
end

local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
-- A record of the first request is renewed, however late. Those of the others may be taken back.
local first, asked = {}, {}
for i = 7, last_id do
  first[ARGV[i]], asked[ARGV[i]] = i < 7 + count, true
end
local back, restore, is_back = {}, {}, {}
local over = number and redis.call('ZRANGEBYSCORE', taken, '-inf', string.format('%.0f', now_ms), 'WITHSCORES', 'LIMIT', 0,
  math.max(100, last_id))
for i = 1, over and #over or 0, 2 do
  if not first[over[i]] then
    back[#back + 1], is_back[over[i]] = over[i], true
    restore[#restore + 1], restore[#restore + 2] = over[i + 1], over[i]
  end
end
-- An older request of another client, for 30 of every 40 s: what it needs must be left. The own note is about the first
-- request; without one a request is the youngest.
local left, since, reserve, of_others = (number or initial) + #back, math.huge, 0, 0
local function note_of(text)
  local n, from, till = string.match(text or '', '^(%d+):(%d+):(%d+)$')
  till = tonumber(till)
  -- A note counts for seconds. One that ends in more than a minute is older than a clock that was set back.
  if till and till >= now_ms and till <= now_ms + 60000 then return tonumber(n), tonumber(from) end
end
-- When nothing is free, notes decide nothing, and many may wait.
if left > 0 or number and redis.call('ZSCORE', taken, ARGV[7]) then
  local _, own = note_of(redis.call('HGET', needs, client))
  since = own or since
  local notes = redis.call('HGETALL', needs)
  for i = 1, #notes, 2 do
    local n, from = note_of(notes[i + 1])
    if n and notes[i] ~= client and (now_ms - from) % 40000 < 30000 then
      of_others = math.max(of_others, n)
      if from < since or from == since and notes[i] < client then reserve = math.max(reserve, n) end
    end
  end
end
local ttl_ms, taken_ttl_ms = redis.call('PTTL', free), redis.call('PTTL', taken)

local granted = 0
local scores, missing = {}, {}
while granted < requests do
  local ends, lacks = {}, {}
  for i = 7 + granted * count, 6 + (granted + 1) * count do
    ends[i] = number and not is_back[ARGV[i]] and tonumber(redis.call('ZSCORE', taken, ARGV[i]))
    if not ends[i] then lacks[#lacks + 1] = ARGV[i] end
  end
  if #lacks > 0 and left - #lacks < reserve then break end
  granted, left, reserve = granted + 1, left - #lacks, of_others
  for _, id in ipairs(lacks) do missing[#missing + 1] = id end
  for i = 7 + (granted - 1) * count, 6 + granted * count do
    -- Later in any case, because replicas can only acknowledge a write.
    scores[#scores + 1] = string.format('%.0f', math.max(now_ms + lease_ms, (ends[i] or 0) + 1))
    scores[#scores + 1] = ARGV[i]
  end
end
if not number then
  redis.call('DEL', taken)
  redis.call('SET', free, ARGV[2])
  number = initial
end
if #back > 0 then redis.call('ZREM', taken, unpack(back)) end
local counted = left ~= number and redis.pcall('INCRBY', free, string.format('%.0f', left - number))
if failed(counted) then
  if #back > 0 then redis.call('ZADD', taken, unpack(restore)) end
  if #back > 0 and taken_ttl_ms >= 0 then redis.call('PEXPIRE', taken, string.format('%.0f', taken_ttl_ms)) end
  return counted
end
local function wake()
  if left > 0 and left < 2 ^ 31 then redis.pcall(ARGV[last_id + 1] or 'PUBLISH', channel, string.format('%.0f', left)) end
end
-- When a lease ends that is not of these requests: an end of theirs frees nothing for them.
local function busy_ms()
  local records = redis.pcall('ZRANGE', taken, 0, last_id - 6, 'WITHSCORES')
  for i = 1, #records, 2 do
    local ends = not asked[records[i]] and tonumber(records[i + 1])
    if ends then return ends < 922337203685477 and math.max(0, math.ceil(ends - now_ms)) or -1 end
  end
  return -1
end
-- Somebody may have made the number live longer.
if number and ttl_ms == -1 and taken_ttl_ms >= 0 then redis.pcall('PERSIST', taken) end
if granted == 0 then
  if #back > 0 or ttl_ms == -2 then wake() end
  return busy_ms()
end

-- The records live as long as the number, and as their leases, because somebody may make the number live longer.
local recorded = redis.pcall('ZADD', taken, unpack(scores))
if not failed(recorded) and ttl_ms >= 0 then
  local last = redis.pcall('ZRANGE', taken, -1, -1, 'WITHSCORES')
  local left_ms = failed(last) and 0 or math.max(ttl_ms, tonumber(last[2]) - now_ms)
  recorded = failed(last) and last or redis.pcall('PEXPIRE', taken, string.format('%.0f', left_ms))
end
if not failed(recorded) and ttl_ms < 0 and taken_ttl_ms >= 0 then recorded = redis.pcall('PERSIST', taken) end
if failed(recorded) then
  if #missing > 0 then
    redis.pcall('ZREM', taken, unpack(missing))
    redis.call('INCRBY', free, #missing)
  end
  return recorded
end
local noted = since < math.huge and redis.pcall('HDEL', needs, client) == 1
if noted or #back > 0 or ttl_ms == -2 then wake() end
if granted < requests or left < 1 then return { of_others > 0 and -14 or -13, granted, busy_ms() } end
return { -2, granted }
