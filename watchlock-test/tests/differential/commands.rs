//! Commands drawn at random, from forms.

use fastrand::Rng;

use crate::Step;
use crate::pair::CONNECTIONS;

/// What a command looks like. A capital letter is an argument of a kind, `[…]` may be missing, `{a|b}` is one of these,
/// and `…*` stands one to three times; the rest is written as it is.
///
/// K key, F field, V value, I integer, N number, B bound of scores, L bound of names, S seconds, M milliseconds,
/// T time in seconds, U time in milliseconds, P pattern, C channel.
const FORMS: &[&str] = &[
    "get K",
    "set K V",
    "set K V [{NX|XX}] [GET] [{EX S|PX M|EXAT T|PXAT U|KEEPTTL}]",
    "setnx K V",
    "setex K S V",
    "psetex K M V",
    "getset K V",
    "getdel K",
    "getex K [{EX S|PX M|EXAT T|PXAT U|PERSIST}]",
    "incr K",
    "decr K",
    "incrby K I",
    "decrby K I",
    "incrbyfloat K N",
    "strlen K",
    "append K V",
    "mget K*",
    "mset {K V}*",
    "msetnx {K V}*",
    "getrange K I I",
    "setrange K {0|1|3|-1|x} V",
    "hset K {F V}*",
    "hmset K {F V}*",
    "hsetnx K F V",
    "hget K F",
    "hmget K F*",
    "hgetall K",
    "hkeys K",
    "hvals K",
    "hlen K",
    "hstrlen K F",
    "hexists K F",
    "hdel K F*",
    "hincrby K F I",
    "hincrbyfloat K F N",
    "hrandfield K {9|0|100|x} [WITHVALUES]",
    "hscan K {0|x} [MATCH P] [COUNT {10|0|x}]",
    "lpush K V*",
    "rpush K V*",
    "lpushx K V*",
    "rpushx K V*",
    "lpop K [{0|1|2|-1|x}]",
    "rpop K [{0|1|2|-1|x}]",
    "llen K",
    "lindex K I",
    "lrange K I I",
    "lset K I V",
    "lrem K I V",
    "linsert K {BEFORE|AFTER|x} V V",
    "lpos K V [RANK {1|-1|2|0|x}] [COUNT {0|1|2|-1}] [MAXLEN {0|1|5|-1}]",
    "ltrim K I I",
    "lmove K K {LEFT|RIGHT} {LEFT|RIGHT|x}",
    "rpoplpush K K",
    "zadd K {N F}*",
    "zadd K [{NX|XX}] [{GT|LT}] [CH] [INCR] {N F}*",
    "zincrby K N F",
    "zrem K F*",
    "zcard K",
    "zcount K B B",
    "zscore K F",
    "zmscore K F*",
    "zrank K F",
    "zrevrank K F",
    "zrange K I I [WITHSCORES]",
    "zrevrange K I I [WITHSCORES]",
    "zrange K B B BYSCORE [REV] [LIMIT {0|1|-1} {0|1|-1|2}] [WITHSCORES]",
    "zadd lex {0 F}*",
    "zrange lex L L BYLEX [REV] [LIMIT {0|1} {1|-1}]",
    "zrange K I I [REV] [LIMIT 0 1]",
    "zrange K I I REV WITHSCORES",
    "zrangebyscore K B B [WITHSCORES] [LIMIT {0|1|-1} {0|1|-1|2}]",
    "zrevrangebyscore K B B [WITHSCORES] [LIMIT {0|1|-1} {0|1|-1|2}]",
    "zrangebylex lex L L",
    "zrevrangebylex lex L L [LIMIT 0 1]",
    "zlexcount lex L L",
    "zremrangebyrank K I I",
    "zremrangebyscore K B B",
    "zremrangebylex lex L L",
    "zpopmin K [{0|1|2|-1|x}]",
    "zpopmax K [{0|1|2|-1|x}]",
    "zscan K {0|x} [MATCH P]",
    "sadd K F*",
    "srem K F*",
    "smembers K",
    "sismember K F",
    "smismember K F*",
    "scard K",
    "spop K {100|0|-1|x}",
    "srandmember K {100|0|x}",
    "smove K K F",
    "sunion K*",
    "sinter K*",
    "sdiff K*",
    "sscan K 0 [MATCH P]",
    "del K*",
    "unlink K*",
    "exists K*",
    "type K",
    "rename K K",
    "renamenx K K",
    "touch K*",
    "ttl K",
    "pttl K",
    "expire K S [{NX|XX|GT|LT|x}] [{NX|XX|GT|LT}]",
    "pexpire K M [{NX|XX|GT|LT}]",
    "expireat K {T|1} [{NX|XX|GT|LT}]",
    "pexpireat K {U|1} [{NX|XX|GT|LT}]",
    "expiretime K",
    "pexpiretime K",
    "persist K",
    "keys P",
    "scan {0|x} [MATCH P] [COUNT 10000] [TYPE {hash|string|none}]",
    "copy K K [DB {0|1|99|x}] [REPLACE]",
    "dbsize",
    "restore K {0|-1|x} V [REPLACE]",
    "publish C V",
    "spublish C V",
    "pubsub channels [P]",
    "pubsub numsub [C*]",
    "pubsub numpat",
    "pubsub shardchannels",
    "pubsub shardnumsub C",
    "subscribe C",
    "unsubscribe C",
    "psubscribe ch*",
    "punsubscribe P",
    "ssubscribe C",
    "sunsubscribe C",
    "pubsub x",
    "ping [V]",
    "echo V",
    "select {0|1|15|16|-1|x}",
    "client getname",
    "client setname {a|b}",
    "client x",
    "client",
    "client no-evict {on|off|x}",
    "client kill id {x|0|999999}",
    "client kill {x|type x|user x}",
    "time",
    "wait 0 0",
    "wait {x|0} {-1|x}",
    "role",
    "config set x y",
    "config set notify-keyspace-events {KEA|Eh|K$|q|''}",
    "config set maxmemory x",
    "cluster {info|slots|x|myid}",
    "asking",
    "readonly",
    "readwrite",
    "multi",
    "exec",
    "discard",
    "watch K*",
    "unwatch",
    "flushdb [{SYNC|x}]",
    "flushall [ASYNC]",
    "script exists V*",
    "script flush x",
    "script x",
    "evalsha V {0|1|x|-1} [K]",
    "fcall V 0",
    "acl whoami",
    "acl setuser",
    "acl x",
    "auth {x|x y|x y z}",
    "hello {x|4|3 AUTH x}",
    "nonsense [V*]",
    "get",
    "reset",
    "acl cat x",
    "acl deluser {default|x}",
    "acl getuser x",
    "acl setuser x {y|+y|+@y|~}",
];

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
const FIELDS: [&str; 6] = ["f", "g", "h", "mode", "1", ""];
const VALUES: [&str; 16] = [
    "x",
    "1",
    "-5",
    "3.5",
    "1e3",
    "",
    "9223372036854775807",
    "-9223372036854775808",
    " 1",
    "nan",
    "0.1",
    "x y",
    "007",
    "\r\n",
    "a",
    "abc",
];
const INTEGERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "2",
    "-2",
    "5",
    "100",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "x",
    "1.5",
];
const NUMBERS: [&str; 14] = [
    "0", "1", "-1", "2.5", "0.1", "0.2", "1e3", "inf", "-inf", "+inf", "nan", "x", "-0", "3",
];
const BOUNDS: [&str; 10] = ["-inf", "+inf", "0", "(0", "1", "(1", "2.5", "(2.5", "x", ""];
const NAMES: [&str; 8] = ["-", "+", "[f", "(f", "[h", "(", "[", "x"];
/// None ends while a test runs.
const SECONDS: [&str; 9] = [
    "3600",
    "7200",
    "100000",
    "0",
    "-1",
    "9223372036854775807",
    "9223372036854775",
    "x",
    "3601",
];
const MILLISECONDS: [&str; 8] = [
    "3600000",
    "7200000",
    "0",
    "-1",
    "9223372036854775807",
    "9007199254740992",
    "x",
    "-9223372036854775808",
];
const TIMES: [&str; 5] = ["4102444800", "4102444801", "0", "9223372036854775807", "x"];
const TIMES_MS: [&str; 5] = [
    "4102444800000",
    "4102444801000",
    "0",
    "9223372036854775807",
    "x",
];
const PATTERNS: [&str; 8] = ["*", "a", "[a-c]", "?", "ch*", "x*", "[^a]", "\\a"];
const CHANNELS: [&str; 4] = ["ch", "chat", "other", ""];

/// Cases of commands of all kinds.
pub(crate) fn of_all_kinds(random: &mut Rng, count: usize) -> Vec<Step> {
    let families = families();
    // Half of the commands come from one family, so that they meet each other's keys.
    let family = random.choice(&families).cloned().unwrap_or_default();
    let mut steps = Vec::new();
    for _ in 0..count {
        let form = if random.bool() {
            random.choice(&family)
        } else {
            random.choice(FORMS)
        };
        let words = draw(random, form.copied().unwrap_or("ping"));
        steps.push(Step {
            connection: random.usize(..CONNECTIONS),
            words: mutated(random, words),
        });
    }
    steps
}

/// The forms, by what they begin with.
fn families() -> Vec<Vec<&'static str>> {
    let of = |from: &str, to: &str| {
        let start = FORMS
            .iter()
            .position(|form| form.starts_with(from))
            .unwrap_or(0);
        let end = FORMS
            .iter()
            .position(|form| form.starts_with(to))
            .unwrap_or(FORMS.len());
        FORMS[start..end].to_vec()
    };
    vec![
        of("get K", "hset K"),
        of("hset K", "lpush K"),
        of("lpush K", "zadd K"),
        of("zadd K", "sadd K"),
        of("sadd K", "del K*"),
        of("del K*", "publish C"),
        of("publish C", "ping"),
        of("multi", "script exists"),
    ]
}

/// Sometimes an argument too many, too few or one that is out of place.
fn mutated(random: &mut Rng, mut words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    // Its members all have one score; no name means all, a cursor a place in the server's own table, no count leaves
    // the element to chance, and WAIT for a replica waits.
    let kept = [
        "wait",
        "subscribe",
        "psubscribe",
        "ssubscribe",
        "unsubscribe",
        "punsubscribe",
        "sunsubscribe",
        "scan",
        "sscan",
        "hscan",
        "zscan",
        "spop",
        "srandmember",
        "hrandfield",
    ];
    let is_kept = words.get(1).is_some_and(|key| key == b"lex")
        || kept.iter().any(|name| words[0] == name.as_bytes());
    if is_kept {
        return words;
    }
    match random.u8(..40) {
        0 => drop(words.pop()),
        1 => words.push(pick(random, &VALUES)),
        2 if words.len() > 1 => {
            let at = random.usize(1..words.len());
            words[at] = pick(random, &VALUES);
        }
        3 => words[0] = words[0].to_ascii_uppercase(),
        _ => {}
    }
    // Its reply names the connection.
    if words.len() == 1 && words[0].eq_ignore_ascii_case(b"hello") {
        words.push(b"x".to_vec());
    }
    if words.is_empty() {
        words.push(b"ping".to_vec());
    }
    // As a rank Redis 7.0 takes it, and later ones refuse it.
    if words[0].eq_ignore_ascii_case(b"lpos") {
        words.retain(|word| word != b"-9223372036854775808");
    }
    words
}

fn pick(random: &mut Rng, from: &[&str]) -> Vec<u8> {
    let word = random.choice(from).copied().unwrap_or_default();
    word.as_bytes().to_vec()
}

/// Draws the words of a form.
pub(crate) fn draw(random: &mut Rng, form: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = form;
    while !rest.is_empty() {
        let (part, after) = part(rest);
        rest = after.trim_start();
        let (part, times) = match part.strip_suffix('*') {
            Some(part) if !part.is_empty() => (part, random.usize(1..4)),
            _ => (part, 1),
        };
        for _ in 0..times {
            words.extend(draw_part(random, part));
        }
    }
    words
}

/// The first part of a form, and the rest.
fn part(form: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, letter) in form.char_indices() {
        match letter {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ' ' if depth == 0 => return form.split_at(at),
            _ => {}
        }
    }
    (form, "")
}

fn draw_part(random: &mut Rng, part: &str) -> Vec<Vec<u8>> {
    if let Some(inner) = part
        .strip_prefix('[')
        .and_then(|part| part.strip_suffix(']'))
    {
        return if random.u8(..3) == 0 {
            draw(random, inner)
        } else {
            Vec::new()
        };
    }
    if let Some(inner) = part
        .strip_prefix('{')
        .and_then(|part| part.strip_suffix('}'))
    {
        let choices: Vec<_> = inner.split('|').collect();
        let choice = random.choice(&choices).copied().unwrap_or_default();
        return draw(random, choice);
    }
    let word = match part {
        "K" => pick(random, &KEYS),
        "F" => pick(random, &FIELDS),
        "V" => pick(random, &VALUES),
        "I" => pick(random, &INTEGERS),
        "N" => pick(random, &NUMBERS),
        "B" => pick(random, &BOUNDS),
        "L" => pick(random, &NAMES),
        "S" => pick(random, &SECONDS),
        "M" => pick(random, &MILLISECONDS),
        "T" => pick(random, &TIMES),
        "U" => pick(random, &TIMES_MS),
        "P" => pick(random, &PATTERNS),
        "C" => pick(random, &CHANNELS),
        "''" => Vec::new(),
        word => word.as_bytes().to_vec(),
    };
    vec![word]
}

/// Any command.
pub(crate) fn any(random: &mut Rng) -> Vec<Vec<u8>> {
    let form = random.choice(FORMS).copied().unwrap_or("ping");
    let words = draw(random, form);
    mutated(random, words)
}
