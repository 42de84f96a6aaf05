//! Fenced, read/write and fair locks in as few lines as possible, and the four of their scripts that are wrong.
//!
//! They store their data in their own format, since nobody else reads it. A fenced lock is the plain one and a counter.
//! A writer is a hash as well, its readers are a set of fields with the ends of their leases. Waiters for a fair lock
//! are in a list, and each try asks whether it is the head.

use super::link::Answer;
use super::scripts::{self, channel};
use super::{Attempt, Flaw, Inner};
use crate::history::LockKind;

/// `{flaw}` marks where the wrong script differs.
const ACQUIRE_FENCED: &str = "
    if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
        return redis.call('PTTL', KEYS[1])
    end
    redis.call('HSET', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    local token = redis.call('INCR', KEYS[2])
    {flaw}
    return {-2, token}";
const TOKEN_FORGOTTEN: &str = "redis.call('PEXPIRE', KEYS[2], ARGV[2])";

const ACQUIRE_READ: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    {check}
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[2]), ARGV[1])
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
    return -2";
const NO_WRITER: &str =
    "if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end";

const RENEW_READ: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local score = redis.call('ZSCORE', KEYS[2], ARGV[1])
    if not score or tonumber(score) <= now then return 0 end
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + ARGV[2]), ARGV[1])
    if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
    return 1";

const RELEASE_READ: &str = "
    local there = redis.call({remove})
    redis.call('PUBLISH', ARGV[3], '1')
    return there";
const REMOVE_OWN: &str = "'ZREM', KEYS[2], ARGV[1]";
const REMOVE_ALL: &str = "'DEL', KEYS[2]";

const ACQUIRE_WRITE: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
        return redis.call('PTTL', KEYS[1])
    end
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
    if redis.call('EXISTS', KEYS[2]) == 1 then return redis.call('PTTL', KEYS[2]) end
    redis.call('HSET', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -2";

/// A waiter that is not the head of a free lock asks again soon: the lock is free for a moment only.
const ACQUIRE_FAIR: &str = "
    local held = redis.call('EXISTS', KEYS[1]) == 1
    local head = redis.call('LINDEX', KEYS[2], 0)
    if not held and (not head or head == ARGV[1]) then
        redis.call('LREM', KEYS[2], 0, ARGV[1])
        redis.call('HSET', KEYS[1], ARGV[1], 1)
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return -2
    end
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return -2 end
    if ARGV[3] == 'waits' and not redis.call('LPOS', KEYS[2], ARGV[1]) then
        redis.call('{push}', KEYS[2], ARGV[1])
    end
    return held and redis.call('PTTL', KEYS[1]) or 20";

const RELEASE_FAIR: &str = "
    redis.call('LREM', KEYS[2], 0, ARGV[1])
    local there = redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('PUBLISH', ARGV[3], '0')
    return there";

pub(super) async fn acquire(inner: &Inner, attempt: &Attempt) -> Answer {
    let flawed = |flaw| inner.has(flaw);
    let script = match attempt.kind {
        LockKind::Fenced if flawed(Flaw::TokenForgotten) => {
            ACQUIRE_FENCED.replace("{flaw}", TOKEN_FORGOTTEN)
        }
        LockKind::Fenced => ACQUIRE_FENCED.replace("{flaw}", ""),
        LockKind::Read if flawed(Flaw::ReaderBesideWriter) => ACQUIRE_READ.replace("{check}", ""),
        LockKind::Read => ACQUIRE_READ.replace("{check}", NO_WRITER),
        LockKind::Write => ACQUIRE_WRITE.to_owned(),
        LockKind::Fair if flawed(Flaw::StackForQueue) => ACQUIRE_FAIR.replace("{push}", "LPUSH"),
        LockKind::Fair => ACQUIRE_FAIR.replace("{push}", "RPUSH"),
        _ => return scripts::acquire_plain(inner, attempt).await,
    };
    let waits = if attempt.waits { "waits" } else { "goes" };
    let more = vec![lease_ms(attempt), waits.to_owned()];
    run(inner, attempt, &script, more).await
}

/// `None`: as with the plain lock.
pub(super) async fn renew(inner: &Inner, attempt: &Attempt) -> Option<Answer> {
    match attempt.kind {
        LockKind::Read => Some(run(inner, attempt, RENEW_READ, vec![lease_ms(attempt)]).await),
        _ => None,
    }
}

/// `None`: as with the plain lock.
pub(super) async fn release(inner: &Inner, attempt: &Attempt) -> Option<Answer> {
    let script = match attempt.kind {
        LockKind::Read if inner.has(Flaw::ReadReleaseForAll) => {
            RELEASE_READ.replace("{remove}", REMOVE_ALL)
        }
        LockKind::Read => RELEASE_READ.replace("{remove}", REMOVE_OWN),
        LockKind::Fair => RELEASE_FAIR.to_owned(),
        _ => return None,
    };
    let more = vec!["0".to_owned(), channel(&attempt.name)];
    Some(run(inner, attempt, &script, more).await)
}

fn lease_ms(attempt: &Attempt) -> String {
    attempt.lease().as_millis().to_string()
}

async fn run(inner: &Inner, attempt: &Attempt, script: &str, more: Vec<String>) -> Answer {
    let name = &attempt.name;
    let second = match attempt.kind {
        LockKind::Fenced => format!("redisson_lock_token:{{{name}}}"),
        LockKind::Fair => format!("redisson_lock_queue:{{{name}}}"),
        _ => format!("{name}:readers"),
    };
    let mut args = vec![attempt.field.clone()];
    args.extend(more);
    inner.link.call(script, &[name, &second], &args).await
}
