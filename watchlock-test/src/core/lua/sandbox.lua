-- What a script finds around it, as Redis 7 has it. Vanilla Lua has no tables that cannot be written, so scripts see
-- empty tables that look up the real ones.
--
-- Gets     native: functions of the server; globals: the table of standard functions
-- Returns  proxy: the globals of scripts; visible: what the proxy looks up; run(number): runs a compiled script, and
--          says whether its result is a mere list;
--          add(f): keeps a compiled script and returns its number; clear(): forgets all
local native, globals = ...
local error, type, tostring, rawget, next, select = error, type, tostring, rawget, next, select
local plain_pcall, plain_xpcall, plain_pairs, plain_next = pcall, xpcall, pairs, next
local plain_rawset, plain_setmetatable, plain_getmetatable = rawset, setmetatable, getmetatable
local plain_loadstring, concat, find = loadstring, table.concat, string.find
local resume = coroutine.resume
local originals = {}

-- Errors of the server's functions are objects of the host; scripts see tables, as Redis raises them.
local function seen(failed)
  if type(failed) == 'userdata' then return native.failure(failed) end
  return failed
end

local function readonly() error('Attempt to modify a readonly table', 2) end

local function protect(original)
  local proxy = plain_setmetatable({}, { __index = original, __newindex = readonly })
  originals[proxy] = original
  return proxy
end

local function caught(ok, failed, ...)
  if ok then return ok, failed, ... end
  failed = seen(failed)
  local text = type(failed) == 'table' and failed.err
  return false, type(text) == 'string' and text or failed
end

local function resumed(ok, failed, ...)
  if ok then return ok, failed, ... end
  return false, seen(failed)
end

local redis = {
  call = native.call,
  pcall = native.pcall,
  sha1hex = native.sha1hex,
  log = native.log,
  setresp = native.setresp,
  LOG_DEBUG = 0,
  LOG_VERBOSE = 1,
  LOG_NOTICE = 2,
  LOG_WARNING = 3,
  REPL_NONE = 0,
  REPL_AOF = 1,
  REPL_SLAVE = 2,
  REPL_REPLICA = 2,
  REPL_ALL = 3,
  REDIS_VERSION = native.version,
  REDIS_VERSION_NUM = native.version_number,
  replicate_commands = function() return true end,
  set_repl = function() end,
  breakpoint = function() return false end,
  debug = function() end,
}

function redis.status_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then return native.error('wrong number or type of arguments') end
  return { ok = text }
end

function redis.error_reply(...)
  local text = ...
  if select('#', ...) ~= 1 or type(text) ~= 'string' then return native.error('wrong number or type of arguments') end
  return native.error(find(text, '^%-') and text or '-' .. text)
end

math.random, math.randomseed = native.random, native.randomseed

local visible = {
  redis = protect(redis),
  string = protect(string),
  table = protect(table),
  math = protect(math),
  coroutine = protect(coroutine),
  KEYS = {},
  ARGV = {},
}
for _, name in plain_next, {
  '_VERSION', 'assert', 'collectgarbage', 'error', 'gcinfo', 'ipairs', 'rawequal', 'rawget', 'select', 'tonumber',
  'tostring', 'type', 'unpack',
} do visible[name] = globals[name] end

function visible.pcall(...) return caught(plain_pcall(...)) end

function visible.xpcall(f, handler)
  return plain_xpcall(f, function(failed) return handler(seen(failed)) end)
end

function coroutine.resume(...) return resumed(resume(...)) end

function visible.rawset(t, key, value)
  if originals[t] then error('Attempt to modify a readonly table', 0) end
  return plain_rawset(t, key, value)
end

function visible.setmetatable(t, meta)
  if originals[t] then error('Attempt to modify a readonly table', 0) end
  return plain_setmetatable(t, meta)
end

function visible.getmetatable(t)
  if originals[t] or type(t) == 'string' then return {} end
  return plain_getmetatable(t)
end

function visible.next(t, key) return plain_next(originals[t] or t, key) end

function visible.pairs(t) return plain_pairs(originals[t] or t) end

-- Only text: compiled chunks could do anything.
function visible.loadstring(text, name)
  if type(text) == 'string' and find(text, '^\27') then return nil, 'bytecode is not allowed' end
  return plain_loadstring(text, name)
end

function visible.load(pieces, name)
  local text = {}
  while true do
    local piece = pieces()
    if piece == nil or piece == '' then break end
    text[#text + 1] = piece
  end
  return visible.loadstring(concat(text), name or '=(load)')
end

plain_setmetatable(visible, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})
local proxy = protect(visible)
visible._G = proxy

-- Adds to an error where it was raised, as Redis does.
local function located(failed)
  local source, line = native.place()
  failed = seen(failed)
  if type(failed) ~= 'table' then failed = { err = 'ERR ' .. tostring(failed) } end
  if source then failed.source, failed.line = source, line end
  return failed
end

-- Most scripts return a list, and a look at its fields is quicker here than from outside.
local function with_sort(ok, result, ...)
  if not ok or type(result) ~= 'table' then return ok, result, false end
  local is_special = rawget(result, 'err') ~= nil or rawget(result, 'ok') ~= nil or rawget(result, 'double') ~= nil
    or rawget(result, 'map') ~= nil or rawget(result, 'set') ~= nil or rawget(result, 'verbatim_string') ~= nil
  return ok, result, not is_special
end

local scripts = {}
local function run(number) return with_sort(plain_xpcall(scripts[number], located)) end
local function add(f)
  scripts[#scripts + 1] = f
  return #scripts
end
local function clear() scripts = {} end
return proxy, visible, run, add, clear
