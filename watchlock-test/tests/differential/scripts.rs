//! Scripts: those of the crate with plausible and with wrong arguments, and small ones for what Lua does.

use std::path::Path;

use fastrand::Rng;

use crate::Step;
use crate::commands::{any, draw};
use crate::pair::CONNECTIONS;

/// The crate's scripts, with their keys and arguments. Words in capitals are drawn:
/// LOCK, QUEUE, SCORES, WAITERS, TOKEN, TIMEOUT, WRITERS, CHANNEL, ID, CLIENT, LEASE, COUNT, PUBLISH, MODE, CYCLE, FLAG.
const SCRIPTS: &[(&str, &str, &str)] = &[
    ("lock/acquire", "LOCK", "ID LEASE"),
    ("lock/reenter", "LOCK", "ID COUNT LEASE"),
    ("lock/verify", "LOCK", "ID LEASE"),
    ("lock/release", "LOCK", "ID COUNT CHANNEL PUBLISH"),
    ("lock/force_release", "LOCK", "CLIENT CHANNEL PUBLISH"),
    ("lock/probe", "NONE", "CHANNEL"),
    ("fenced/acquire", "LOCK TOKEN", "ID LEASE CYCLE"),
    ("fenced/raise", "LOCK TOKEN", "ID COUNT CYCLE"),
    ("fenced/reenter", "LOCK TOKEN", "ID COUNT LEASE CYCLE"),
    ("simple/acquire", "LOCK", "ID LEASE"),
    ("simple/verify", "LOCK", "ID LEASE"),
    ("simple/release", "LOCK", "ID COUNT CHANNEL PUBLISH"),
    ("simple/force_release", "LOCK", "CLIENT CHANNEL PUBLISH"),
    ("rw/read_acquire", "LOCK TIMEOUT WRITERS", "ID LEASE"),
    ("rw/write_acquire", "LOCK WRITERS", "ID LEASE CYCLE"),
    ("rw/assert", "LOCK TIMEOUT WRITERS", "ID LEASE COUNT FLAG"),
    ("rw/assert_timeout", "TIMEOUT", "LEASE"),
    ("rw/downgrade", "LOCK TIMEOUT", "ID LEASE CHANNEL PUBLISH"),
    ("rw/release", "LOCK TIMEOUT CHANNEL", "ID PUBLISH"),
    (
        "rw/force_release",
        "LOCK",
        "MODE CLIENT CHANNEL PREFIX PUBLISH",
    ),
    ("rw/look", "LOCK", "MODE"),
    ("rw/note", "LOCK WRITERS", "CLIENT CYCLE CHANNEL PUBLISH"),
    (
        "fair/acquire",
        "LOCK QUEUE SCORES WAITERS",
        "WAIT CHANNEL ID LEASE FLAG PUBLISH",
    ),
    (
        "fair/enqueue",
        "LOCK QUEUE SCORES WAITERS",
        "WAIT CHANNEL AHEAD ID ID PUBLISH",
    ),
    (
        "fair/vouch",
        "LOCK QUEUE SCORES WAITERS",
        "WAIT CHANNEL CLIENT ID ID PUBLISH",
    ),
    (
        "fair/release",
        "LOCK QUEUE SCORES WAITERS",
        "WAIT CHANNEL ID COUNT PUBLISH",
    ),
    (
        "fair/force_release",
        "LOCK QUEUE SCORES WAITERS",
        "WAIT CHANNEL CLIENT PUBLISH",
    ),
];

/// What strangers do to the same keys.
const STRANGERS: &[&str] = &[
    "del lock",
    "hset lock c1:1 1",
    "hset lock mode read",
    "hincrby lock c1:1 1",
    "pexpire lock {3600000|7200000}",
    "persist lock",
    "set lock x",
    "hdel lock {c1:1|c2:1|mode}",
    "lpop queue",
    "rpush queue {j:1|c1:1}",
    "lrem queue 0 c1:1",
    "zadd scores {1000000|4102444800000} {c1:1|c1:2|j:1}",
    "zrem scores {c1:1|c2:1}",
    "zrem waiters {c1|c2|c1:1}",
    "del waiters",
    "set queue x",
    "incr token",
    "set token x",
    "config set maxmemory {1|0|0}",
    "config set min-replicas-to-write {1|0|0}",
    "hgetall lock",
    "pttl lock",
    "zrange waiters 0 -1 WITHSCORES",
];

/// A script with those that it follows before it.
fn text(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a script");
    let path = root.join(format!("{name}.lua"));
    let own = read(&path);
    let parts = own
        .lines()
        .find_map(|line| line.strip_prefix("-- Follows "));
    let parts = parts.into_iter().flat_map(|parts| parts.split(", "));
    let mut text: String = parts.map(|part| read(&path.with_file_name(part))).collect();
    text += &own;
    text
}

fn word(random: &mut Rng, kind: &str) -> String {
    let ids = ["c1:1", "c1:2", "c1:3", "c2:1", "c2:2"];
    let choices: &[&str] = match kind {
        "ID" => &ids,
        "AHEAD" => &["", "", "c1:1", "c2:1"],
        "CLIENT" => &["c1", "c2"],
        "LEASE" => &[
            "3600000",
            "7200000",
            "3600000",
            "9007199254740992",
            "0",
            "x",
            "-1",
            "1e3x",
        ],
        "COUNT" => &["0", "1", "2", "0", "5"],
        "CYCLE" => &["3600000", "0", "86400000", "x"],
        "PUBLISH" => &["PUBLISH", "SPUBLISH", "PUBLISH"],
        "MODE" => &["read", "write"],
        "FLAG" => &["0", "1", "1"],
        "WAIT" => &["300000", "100000"],
        "CHANNEL" => &["ch"],
        "PREFIX" => &["timeouts"],
        "TIMEOUT" => &[
            "timeouts:c1:1:rwlock_timeout:1",
            "timeouts:c2:1:rwlock_timeout:1",
        ],
        _ => return kind.to_ascii_lowercase(),
    };
    random
        .choice(choices)
        .copied()
        .unwrap_or_default()
        .to_owned()
}

/// Cases of the crate's scripts, of a family, with strangers in between.
pub(crate) fn of_the_crate(random: &mut Rng, count: usize) -> Vec<Step> {
    let families = ["lock", "fenced", "simple", "rw", "fair", "fair", ""];
    let family = random.choice(&families).copied().unwrap_or_default();
    let scripts = SCRIPTS.iter().filter(|(name, ..)| name.starts_with(family));
    let scripts: Vec<_> = scripts.collect();
    let mut steps = Vec::new();
    for _ in 0..count {
        let words = match random.choice(&scripts) {
            Some(script) if random.u8(..6) > 0 => evaluation(random, script),
            _ => {
                let form = random.choice(STRANGERS).copied().unwrap_or("ping");
                draw(random, form)
            }
        };
        steps.push(Step {
            connection: random.usize(..CONNECTIONS),
            words,
        });
    }
    steps
}

fn evaluation(random: &mut Rng, (name, keys, arguments): &(&str, &str, &str)) -> Vec<Vec<u8>> {
    let keys: Vec<_> = keys.split(' ').map(|kind| word(random, kind)).collect();
    let mut arguments: Vec<_> = arguments
        .split(' ')
        .map(|kind| word(random, kind))
        .collect();
    match random.u8(..40) {
        0 => drop(arguments.pop()),
        1 => arguments.push("x".to_owned()),
        2 => arguments.clear(),
        _ => {}
    }
    let by_name = if random.u8(..10) == 0 {
        "EVAL_RO"
    } else {
        "EVAL"
    };
    let head = [by_name.to_owned(), text(name), keys.len().to_string()];
    let words = head.into_iter().chain(keys).chain(arguments);
    words.map(String::into_bytes).collect()
}

/// What Lua does with values, errors and what is around a script.
const SNIPPETS: &[&str] = &[
    "return 1",
    "return 1.9",
    "return -1.9",
    "return 'x'",
    "return true",
    "return false",
    "return nil",
    "return {}",
    "return {1, 2, nil, 4}",
    "return {1.5, true, false, 'x', {1, {2}}}",
    "return 1e300",
    "return 0/0",
    "return -0",
    "return 1, 2",
    "return function() end",
    "return {ok = 'fine'}",
    "return {err = 'My error'}",
    "return {err = 'bad\\nline'}",
    "return {ok = 1}",
    "return {err = 1}",
    "return {double = 1.5}",
    "return {map = {a = 1}}",
    "return {set = {a = true}}",
    "redis.setresp(3) return {double = 1.5}",
    "redis.setresp(3) return true",
    "redis.setresp(3) return redis.call('hgetall', 'a')",
    "redis.setresp(3) return redis.call('zscore', 'a', 'f')",
    "redis.setresp(3) return redis.call('get', 'none') == nil",
    "redis.setresp(3) return redis.call('smembers', 'a')",
    "redis.setresp(4)",
    "redis.setresp()",
    "return redis.status_reply('fine')",
    "return redis.error_reply('bad')",
    "return redis.error_reply('CODE bad')",
    "return redis.error_reply('-CODE bad')",
    "return redis.error_reply('')",
    "return redis.error_reply(1)",
    "return redis.status_reply(1)",
    "return redis.error_reply('a', 'b')",
    "return redis.sha1hex('')",
    "return redis.sha1hex(1)",
    "return redis.sha1hex()",
    "return redis.log(1)",
    "return redis.log(redis.LOG_WARNING, 'x')",
    "return redis.log(9, 'x')",
    "return redis.log('x', 'y')",
    "error('boo')",
    "error('boo', 0)",
    "error({err = 'CODE boo'})",
    "error()",
    "local t = nil; t.x = 1",
    "return 'a' .. {}",
    "string.rep()",
    "return x",
    "x = 1",
    "\n\nreturn y",
    "function f() end",
    "redis.call = 1",
    "string.format = 1",
    "_G.x = 1",
    "rawset(_G, 'x', 1)",
    "setmetatable(_G, {})",
    "return print",
    "return require",
    "return io",
    "return os",
    "return debug",
    "return dofile",
    "return getfenv",
    "return module",
    "return package",
    "return type(_G)",
    "return _VERSION",
    "return type(redis.call)",
    "syntax(",
    "return return",
    "return [[",
    "for",
    "",
    "-- nothing",
    "return #KEYS",
    "return KEYS[1]",
    "return ARGV[1]",
    "KEYS[1] = 'x' return KEYS[1]",
    "return tostring(redis.REDIS_VERSION)",
    "return redis.LOG_DEBUG",
    "return tostring(1e15)",
    "return tostring(0.1)",
    "return tostring(2^53)",
    "return string.format('%.17g', 0.1)",
    "return tonumber('0x10')",
    "return tonumber('x') or 'no'",
    "return math.floor(1.5)",
    "return math.huge",
    "return {math.max(1, 2), math.min(1, 2)}",
    "return #'\\0abc'",
    "return '\\0abc'",
    "return table.concat({1, 2, 3}, ',')",
    "local t = {3, 1, 2} table.sort(t) return t",
    "return {string.find('abc', 'b')}",
    "return string.gsub('hello', 'l', 'L')",
    "return {string.match('c1:2', '^(.*):')}",
    "return {unpack({1, 2, 3})}",
    "return select('#', 1, nil)",
    "local t = {} for k, v in pairs({a = 1}) do t[#t + 1] = k end return t",
    "local t = {} for i, v in ipairs({1, 2}) do t[i] = v * 2 end return t",
    "local ok, e = pcall(error, 'x') return {tostring(ok), tostring(e)}",
    "local ok, e = pcall(redis.call, 'nope') return {tostring(ok), type(e), tostring(e)}",
    "local ok, e = pcall(function() local x = nil + 1 end) return tostring(e)",
    "local ok, e = pcall(function() error({err = 'A b'}) end) return e",
    "local ok, e = pcall(function() error({1}) end) return {type(e), e[1]}",
    "local ok, e = xpcall(function() redis.call('nope') end, function(e) return type(e) == 'table' and e.err or e end) return e",
    "return pcall(redis.call, 'set', 'a', 'x')",
    "local t = redis.pcall('nope') return t.err",
    "return redis.pcall('nope')",
    "local t = redis.pcall('get', 'a', 'b') return {t.err, type(t.ok)}",
    "return redis.call()",
    "return redis.call({})",
    "return redis.call('get', nil)",
    "return redis.call('get', true)",
    "return redis.call('set', 'n', 0.1)",
    "return redis.call('set', 'n', 1e20)",
    "return redis.call('set', 'n', 12)",
    "return redis.call('set', 'n', -1.5e-7)",
    "return redis.call('get', 'none') == false",
    "return type(redis.call('get', 'none'))",
    "return redis.call('type', 'a').ok",
    "return redis.call('set', 'a', 'x').ok",
    "return {redis.call('get', 'none')}",
    "return redis.call('eval', 'return 1', 0)",
    "return redis.call('multi')",
    "return redis.call('subscribe', 'ch')",
    "return redis.call('select', '1')",
    "redis.call('select', '1') return redis.call('set', 'a', 'one')",
    "return redis.call('info', 'cluster')",
    "return redis.call('config', 'get', 'x')",
    "return redis.call('client', 'id')",
    "return redis.call('time')[1] + 0",
    "return type(redis.call('time')[2])",
    "return redis.call('ping')",
    "return redis.call('echo', 'x')",
    "return redis.call('wait', 0, 0)",
    "return redis.call('script', 'exists', 'x')",
    "return redis.call('acl', 'whoami')",
    "return redis.call('publish', 'ch', 'x')",
    "return redis.call('spublish', 'ch', 'x')",
    "return redis.call('pubsub', 'numsub', 'ch')",
    "#!lua\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('set', 'a', 'x')",
    "#!lua flags=allow-oom\nreturn redis.call('set', 'a', 'x')",
    "#!lua flags=x\nreturn 1",
    "#!ruby\nreturn 1",
    "#!lua",
    "#!lua x=y\nreturn 1",
    "return loadstring('return 7')()",
    "return loadstring('x = 1')()",
    "return load(function() return nil end)",
    "return tostring(loadstring('return ('))",
    "return type(coroutine.create(function() end))",
    "local c = coroutine.wrap(function() coroutine.yield(1) end) return c()",
    "return math.random(1, 1)",
    "return type(math.random())",
    "redis.replicate_commands() return 1",
    "redis.set_repl(redis.REPL_ALL) return 1",
    "local t = {} t[1] = 1 t[3] = 3 return t",
    "return redis.call('hset', 'a', 'f')",
    "return string.rep('x', 5)",
    "local t = setmetatable({}, {__index = function() return 5 end}) return t",
    "local t = setmetatable({}, {__index = function() return 5 end}) return t.x",
    "return tostring(nil)",
    "return tostring(true)",
    "local function f() error('deep') end f()",
    "local function f() return redis.call('nope') end return f()",
    "\n\nlocal x = redis.call('nope')\nreturn x",
    "redis.call('set', 'a', '1') redis.call('nope')",
    "redis.call('set', 'a', '1') error('after')",
    "return redis.call('incr', 'a') + 1",
    "return redis.call('hgetall', 'a')",
    "return redis.call('lrange', 'a', 0, -1)",
    "return redis.call('zrange', 'a', 0, -1, 'WITHSCORES')",
    "return redis.call('zadd', 'a', 'INCR', '1.5', 'f')",
    "return redis.call('pexpire', 'a', 3600000)",
    "return redis.call('pttl', 'a')",
];

const SETTINGS: &[&str] = &[
    "set a V",
    "del a",
    "hset a f V",
    "zadd a 2.5 f",
    "sadd a f",
    "rpush a V V",
    "config set maxmemory {1|0|0}",
    "config set min-replicas-to-write {1|0|0}",
    "script flush",
];

/// Cases of small scripts.
pub(crate) fn of_others(random: &mut Rng, count: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..count {
        let words = match random.u8(..10) {
            0 | 1 => {
                let form = random.choice(SETTINGS).copied().unwrap_or("ping");
                draw(random, form)
            }
            2..5 => by_arguments(random),
            _ => {
                let text = random.choice(SNIPPETS).copied().unwrap_or("return 1");
                let name = if random.u8(..5) == 0 {
                    "EVAL_RO"
                } else {
                    "EVAL"
                };
                let keys = random.choice(["0", "0", "1 a", "1 a x", "2 a b", "2 a", "-1", "x"]);
                let keys = keys.unwrap_or("0").split(' ');
                let words = [name, text].into_iter().chain(keys);
                words.map(|word| word.as_bytes().to_vec()).collect()
            }
        };
        steps.push(Step {
            connection: random.usize(..CONNECTIONS),
            words,
        });
    }
    steps
}

/// Any command, called by a script.
fn by_arguments(random: &mut Rng) -> Vec<Vec<u8>> {
    const CALLS: [&str; 4] = [
        "return redis.call(unpack(ARGV))",
        "return redis.pcall(unpack(ARGV))",
        "redis.setresp(3) return redis.call(unpack(ARGV))",
        "local t = redis.pcall(unpack(ARGV)) return type(t)",
    ];
    let text = random.choice(CALLS).unwrap_or(CALLS[0]);
    let mut words: Vec<_> = ["EVAL", text, "0"]
        .iter()
        .map(|word| word.as_bytes().to_vec())
        .collect();
    words.extend(any(random));
    words
}
