//! A command in flight: it runs once, and whoever holds a clone may await it.
//!
//! 1. Whoever polls drives it on; news of it wakes all who await it.
//! 2. Its end wakes all but the one who saw it. That one is running just now: a wake would send its task
//!    to the back of the queue and call another worker thread for it, once per command.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// A future with many owners.
pub(crate) struct InFlight<T> {
    number: u64,
    run: Arc<Mutex<Run<T>>>,
    waiting: Arc<Waiting>,
}

enum Run<T> {
    On(BoxFuture<'static, T>),
    Over(T),
}

impl<T> InFlight<T> {
    pub(crate) fn new(future: BoxFuture<'static, T>) -> Self {
        Self {
            number: 0,
            run: Arc::new(Mutex::new(Run::On(future))),
            waiting: Arc::default(),
        }
    }
}

impl<T> Clone for InFlight<T> {
    fn clone(&self) -> Self {
        Self {
            number: self.waiting.clones.fetch_add(1, Ordering::Relaxed) + 1,
            run: Arc::clone(&self.run),
            waiting: Arc::clone(&self.waiting),
        }
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.waiting.forget(self.number);
    }
}

impl<T: Clone> Future for InFlight<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Before the poll: what happens from then on wakes this one too.
        self.waiting.remember(self.number, context.waker());
        let mut run = self.run.lock();
        let future = match &mut *run {
            Run::On(future) => future,
            Run::Over(output) => return Poll::Ready(output.clone()),
        };
        let waker = Waker::from(Arc::clone(&self.waiting));
        let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return Poll::Pending;
        };
        *run = Run::Over(output.clone());
        drop(run);
        self.waiting.forget(self.number);
        self.waiting.wake_all();
        Poll::Ready(output)
    }
}

/// Who awaits it.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Vec<(u64, Waker)>>,
    clones: AtomicU64,
}

impl Waiting {
    fn remember(&self, number: u64, waker: &Waker) {
        let mut wakers = self.wakers.lock();
        match wakers.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((number, waker.clone())),
        }
    }

    fn forget(&self, number: u64) {
        self.wakers.lock().retain(|(known, _)| *known != number);
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock());
        for (_, waker) in wakers {
            waker.wake();
        }
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}
