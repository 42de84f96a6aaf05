//! Other lock libraries for Redis, as entrants of the comparison: a small file each.
//!
//! To add one: a file with a type that implements [`LockUnderTest`](watchlock_compare::LockUnderTest), and an entry
//! here. The bench builds this program, asks it for its entrants, and runs it once per measurement.

mod async_redis_lock;
mod redis_lock;
mod rslock;

use std::process::ExitCode;

use async_redis_lock::AsyncRedisLock;
use redis_lock::RedisLock;
use rslock::Rslock;
use watchlock_compare::{Entrant, Info, Setup, serve};

fn main() -> ExitCode {
    serve(&[rslock(), async_redis_lock(), redis_lock()].concat())
}

fn rslock() -> Vec<Entrant> {
    let commands = &["set", "evalsha", "eval", "script|load"];
    let note = "defaults (up to 200 ms between tries); lease 10 s";
    let tuned = "up to 2 ms between tries, nodelay; lease 10 s";
    vec![
        Entrant::of::<Rslock>(Info::peer("rslock", Setup::Default, commands, note)),
        Entrant::of::<Rslock>(Info::peer("rslock tuned", Setup::Tuned, commands, tuned)),
    ]
}

fn async_redis_lock() -> Vec<Entrant> {
    let name = "async-redis-lock";
    let commands = &["evalsha", "eval", "script|load"];
    let note =
        "defaults (100 ms between tries, gives up after 1 s; lease 3 s, renewed every second)";
    let tuned = "1 ms between tries, no time-out, nodelay";
    let renewing = |info| Info {
        renews: true,
        ..info
    };
    vec![
        Entrant::of::<AsyncRedisLock>(renewing(Info::peer(name, Setup::Default, commands, note))),
        Entrant::of::<AsyncRedisLock>(Info::peer(
            "async-redis-lock tuned",
            Setup::Tuned,
            commands,
            tuned,
        )),
    ]
}

fn redis_lock() -> Vec<Entrant> {
    let commands = &["set", "eval"];
    let note = "defaults (100 ms between tries, lease 10 ms), one connection behind a mutex as in its docs";
    let tuned = "1 ms between tries, lease 30 s, a connection per task";
    vec![
        Entrant::of::<RedisLock>(Info::peer("redis-lock", Setup::Default, commands, note)),
        Entrant::of::<RedisLock>(Info::peer(
            "redis-lock tuned",
            Setup::Tuned,
            commands,
            tuned,
        )),
    ]
}
