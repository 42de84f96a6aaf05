//! The four scripts, and the three that are wrong. `family` has those that only some kinds of lock need.

use super::link::Answer;
use super::{Attempt, Flaw, Inner, family};

/// The answer of `acquire` when it got the lock; otherwise it is the holder's PTTL.
pub(super) const ACQUIRED: i64 = -2;

pub(super) const ACQUIRE: &str = "
    if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
        return redis.call('PTTL', KEYS[1])
    end
    redis.call('HSET', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -2";

const REENTER: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    return tonumber(ARGV[2])";

const REENTER_INCREMENTING: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    return redis.call('HINCRBY', KEYS[1], ARGV[1], 1)";

const RENEW: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

const RENEW_ANYBODYS: &str = "return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

pub(super) const RELEASE: &str = "
    if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
    if ARGV[2] ~= '0' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return 1 end
    redis.call('HDEL', KEYS[1], ARGV[1])
    redis.call('PUBLISH', ARGV[3], '0')
    return 1";

const RELEASE_ANYBODYS: &str = "
    if ARGV[2] ~= '0' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) return 1 end
    local there = redis.call('DEL', KEYS[1])
    redis.call('PUBLISH', ARGV[3], '0')
    return there";

pub(super) async fn acquire_plain(inner: &Inner, attempt: &Attempt) -> Answer {
    let lease_ms = attempt.lease().as_millis();
    run(inner, attempt, ACQUIRE, vec![lease_ms.to_string()]).await
}

pub(super) async fn reenter(inner: &Inner, attempt: &Attempt, count: u32) -> Answer {
    let wrong = inner.has(Flaw::IncrementRepeated);
    let script = if wrong { REENTER_INCREMENTING } else { REENTER };
    run(inner, attempt, script, vec![count.to_string()]).await
}

pub(super) async fn renew(inner: &Inner, attempt: &Attempt) -> Answer {
    if let Some(answer) = family::renew(inner, attempt).await {
        return answer;
    }
    let wrong = inner.has(Flaw::RenewalWithoutOwnerCheck);
    let script = if wrong { RENEW_ANYBODYS } else { RENEW };
    let lease_ms = attempt.lease().as_millis();
    run(inner, attempt, script, vec![lease_ms.to_string()]).await
}

pub(super) async fn release(inner: &Inner, attempt: &Attempt, left: u32) -> Answer {
    if let Some(answer) = family::release(inner, attempt).await {
        return answer;
    }
    let wrong = inner.has(Flaw::UnlockWithoutOwnerCheck);
    let script = if wrong { RELEASE_ANYBODYS } else { RELEASE };
    let args = vec![left.to_string(), channel(&attempt.name)];
    run(inner, attempt, script, args).await
}

/// The channel on which releases of a name are published.
pub(super) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

async fn run(inner: &Inner, attempt: &Attempt, script: &str, more: Vec<String>) -> Answer {
    let mut args = vec![attempt.field.clone()];
    args.extend(more);
    inner.link.call(script, &[&attempt.name], &args).await
}
