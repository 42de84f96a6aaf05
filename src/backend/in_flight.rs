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

/// Who awaits it. Apart from what runs, so that a waker that what runs keeps does not keep it alive.
#[derive(Default)]
struct Waiting {
    wakers: Mutex<Wakers>,
    clones: AtomicU64,
}

/// Most often there is one, which costs no allocation.
#[derive(Default)]
struct Wakers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
}

impl Waiting {
    fn remember(&self, number: u64, waker: &Waker) {
        let replaced = self.wakers.lock().put(number, waker);
        // Dropped without the lock: a waker may be the last that keeps a task, and that an owner of this.
        drop(replaced);
    }

    fn forget(&self, number: u64) {
        let forgotten = self.wakers.lock().take(number);
        drop(forgotten);
    }

    fn wake_all(&self) {
        let Wakers { first, more } = std::mem::take(&mut *self.wakers.lock());
        for (_, waker) in first.into_iter().chain(more) {
            waker.wake();
        }
    }
}

impl Wakers {
    fn put(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let mut all = self.first.iter_mut().chain(self.more.iter_mut());
        if let Some((_, known)) = all.find(|(known, _)| *known == number) {
            return Some(std::mem::replace(known, waker.clone()));
        }
        if self.first.is_none() {
            self.first = Some((number, waker.clone()));
        } else {
            self.more.push((number, waker.clone()));
        }
        None
    }

    fn take(&mut self, number: u64) -> Option<(u64, Waker)> {
        let first = self.first.take_if(|(known, _)| *known == number);
        first.or_else(|| {
            let index = self.more.iter().position(|(known, _)| *known == number)?;
            Some(self.more.swap_remove(index))
        })
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
