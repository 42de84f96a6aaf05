//! Drops a future after a number of polls, for every number until the future completes.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::soon;

/// No future of ours needs more polls.
const MANY: usize = 200;

/// Drops `future` if it is pending after so many polls; returns its output if it completed before.
pub(crate) async fn after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polled = 0;
    let cut = poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    soon(cut).await
}

/// Calls `dropped_after` with every number of polls until it reports that its future completed.
pub(crate) async fn at_every_await(mut dropped_after: impl AsyncFnMut(usize) -> bool) {
    for polls in 0..MANY {
        if dropped_after(polls).await {
            assert!(polls > 0, "nothing completes without being polled");
            return;
        }
    }
    panic!("not completed after {MANY} polls");
}
