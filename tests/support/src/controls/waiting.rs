//! Try, subscribe, try again, and sleep until a message, the holder's TTL or the cap.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::aio::PubSub;
use tokio::time::{sleep, timeout};

use super::link::Answer;
use super::scripts::{self, ACQUIRED};
use super::{Attempt, BACKOFF_CAP, Flaw, Inner, family};

/// The answer to the acquire that got the lock; `None` when the wait is over.
pub(super) async fn acquire(inner: &Inner, attempt: &Attempt, wait: Duration) -> Option<Answer> {
    let deadline = Instant::now() + wait;
    let mut messages: Option<PubSub> = None;
    loop {
        let answer = family::acquire(inner, attempt).await;
        if answer.code == ACQUIRED {
            return Some(answer);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let ttl = Duration::from_millis(u64::try_from(answer.code).unwrap_or(u64::MAX) + 1);
        let careless = inner.has(Flaw::NoRetryAfterSubscribing);
        if messages.is_none() {
            let channel = scripts::channel(&attempt.name);
            let subscribing = timeout(left, inner.link.subscribe(&channel)).await;
            messages = subscribing.ok().and_then(Result::ok);
            if !careless {
                continue;
            }
        }
        let cap = if careless { ttl } else { ttl.min(BACKOFF_CAP) };
        let left = deadline.saturating_duration_since(Instant::now());
        woken(&mut messages, cap.min(left)).await;
    }
}

/// Returns at a message, or after a time; a subscription that ended is given up.
async fn woken(messages: &mut Option<PubSub>, at_most: Duration) {
    let Some(subscription) = messages else {
        return sleep(at_most).await;
    };
    let message = timeout(at_most, subscription.on_message().next()).await;
    if matches!(message, Ok(None)) {
        *messages = None;
    }
}
