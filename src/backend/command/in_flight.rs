//! A future with many owners: a command in flight runs once, and each clone may await it.
//!
//! 1. Each poll drives the inner future. When it can go on, all clones that wait are woken.
//! 2. While one clone waits, the inner future gets that clone's own waker. From the first poll of a second clone on it gets
//!    a waker that wakes all. The choice is made under the lock of the poll, so no clone is missed.
//! 3. When it ends, all clones are woken but the one whose poll saw the end. That one is running: a wake-up would put its
//!    task at the end of the queue and wake another worker thread, for each command.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// One of the owners.
pub(super) struct InFlight<T> {
    number: u64,
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    run: Mutex<Run<T>>,
    wakers: Mutex<Wakers>,
    /// The number of clones. The inner future may hold a waker, which holds this struct, so the count of the `Arc` does not
    /// reach zero: the last clone drops the inner future.
    clones: AtomicU64,
    numbers: AtomicU64,
}

enum Run<T> {
    On(BoxFuture<'static, T>),
    Over(T),
    Dropped,
}

impl<T> InFlight<T> {
    pub(super) fn new(future: BoxFuture<'static, T>) -> Self {
        let shared = Shared {
            run: Mutex::new(Run::On(future)),
            wakers: Mutex::default(),
            clones: AtomicU64::new(1),
            numbers: AtomicU64::new(0),
        };
        Self {
            number: 0,
            shared: Arc::new(shared),
        }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// If it still runs, drops the inner future, sets `output` and wakes all.
    pub(super) fn end_with(&self, output: T) {
        let mut run = self.shared.run.lock();
        if matches!(*run, Run::On(_)) {
            let before = std::mem::replace(&mut *run, Run::Over(output));
            drop(run);
            drop(before);
            self.shared.wake_all();
        }
    }
}

impl<T> Clone for InFlight<T> {
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc::clone`: the caller has a clone, so the count is not zero, and it guards no data.
        self.shared.clones.fetch_add(1, Ordering::Relaxed);
        Self {
            number: self.shared.numbers.fetch_add(1, Ordering::Relaxed) + 1,
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.shared.forget(self.number);
        // Acquire and release: the last clone must see what the others did before it drops the future.
        if self.shared.clones.fetch_sub(1, Ordering::AcqRel) == 1 {
            let run = std::mem::replace(&mut *self.shared.run.lock(), Run::Dropped);
            drop(run);
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Future for InFlight<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let shared = &self.shared;
        // Dropped after the locks: a waker may drop its task, and the task a clone of this future.
        let _replaced;
        let mut run = shared.run.lock();
        let future = match &mut *run {
            Run::On(future) => future,
            Run::Over(output) => return Poll::Ready(output.clone()),
            Run::Dropped => return Poll::Pending,
        };
        // Before the poll: from now on each event wakes this clone too.
        let is_alone;
        (_replaced, is_alone) = shared.remember(self.number, context.waker());
        let polled = if is_alone {
            future.as_mut().poll(context)
        } else {
            let all = Waker::from(Arc::clone(shared));
            future.as_mut().poll(&mut Context::from_waker(&all))
        };
        let Poll::Ready(output) = polled else {
            return Poll::Pending;
        };
        let before = std::mem::replace(&mut *run, Run::Over(output.clone()));
        drop(run);
        drop(before);
        shared.wake_but(Some(self.number));
        Poll::Ready(output)
    }
}

/// Usually there is one, which needs no allocation.
#[derive(Default)]
struct Wakers {
    first: Option<(u64, Waker)>,
    more: Vec<(u64, Waker)>,
}

impl<T> Shared<T> {
    /// Returns the waker that this one replaces, and whether it is the only one.
    fn remember(&self, number: u64, waker: &Waker) -> (Option<Waker>, bool) {
        let mut wakers = self.wakers.lock();
        let replaced = wakers.put(number, waker);
        (replaced, wakers.more.is_empty())
    }

    fn forget(&self, number: u64) {
        let forgotten = self.wakers.lock().take(number);
        // After the lock, as in `poll`.
        drop(forgotten);
    }

    fn wake_all(&self) {
        self.wake_but(None);
    }

    fn wake_but(&self, awake: Option<u64>) {
        let Wakers { first, more } = std::mem::take(&mut *self.wakers.lock());
        for (number, waker) in first.into_iter().chain(more) {
            if awake != Some(number) {
                waker.wake();
            }
        }
    }
}

impl Wakers {
    fn put(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        let mut all = self.first.iter_mut().chain(self.more.iter_mut());
        if let Some((_, known)) = all.find(|(known, _)| *known == number) {
            let same = known.will_wake(waker);
            return (!same).then(|| std::mem::replace(known, waker.clone()));
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

impl<T: Send + Sync + 'static> Wake for Shared<T> {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// An inner future under the control of a test: its waker, and whether it has ended.
    #[derive(Clone, Default)]
    struct FakeCommand(Arc<Mutex<(Option<Waker>, bool)>>);

    impl FakeCommand {
        fn in_flight(&self) -> InFlight<u8> {
            let told = self.clone();
            let run = std::future::poll_fn(move |context| {
                let mut inner = told.0.lock();
                inner.0 = Some(context.waker().clone());
                if inner.1 {
                    Poll::Ready(7)
                } else {
                    Poll::Pending
                }
            });
            InFlight::new(run.boxed())
        }

        fn news(&self, over: bool) {
            let waker = {
                let mut inner = self.0.lock();
                inner.1 = over;
                inner.0.take()
            };
            waker.expect("somebody polled").wake();
        }
    }

    /// Counts wake-ups.
    #[derive(Default)]
    struct CountedWakes(AtomicU64);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl CountedWakes {
        fn poll(self: &Arc<Self>, future: &mut InFlight<u8>) -> Poll<u8> {
            let waker = Waker::from(Arc::clone(self));
            future.poll_unpin(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> u64 {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    #[test]
    fn news_wakes_the_one_who_awaits_it_and_all_from_the_second_on() {
        let told = FakeCommand::default();
        let mut first = told.in_flight();
        let (one, other) = (
            Arc::<CountedWakes>::default(),
            Arc::<CountedWakes>::default(),
        );
        assert!(one.poll(&mut first).is_pending());
        told.news(false);
        assert_eq!(one.woken(), 1);
        assert!(one.poll(&mut first).is_pending());
        let mut second = first.clone();
        assert!(other.poll(&mut second).is_pending());
        told.news(false);
        assert_eq!((one.woken(), other.woken()), (1, 1));
        assert!(one.poll(&mut first).is_pending());
        assert!(other.poll(&mut second).is_pending());
        drop(second);
        told.news(false);
        assert_eq!((one.woken(), other.woken()), (1, 0), "it is gone");
    }

    #[test]
    fn its_end_wakes_all_but_the_one_who_saw_it() {
        let told = FakeCommand::default();
        let mut first = told.in_flight();
        let mut second = first.clone();
        let (one, other) = (
            Arc::<CountedWakes>::default(),
            Arc::<CountedWakes>::default(),
        );
        assert!(one.poll(&mut first).is_pending());
        assert!(other.poll(&mut second).is_pending());
        told.news(true);
        assert_eq!((one.woken(), other.woken()), (1, 1));
        assert!(other.poll(&mut second).is_ready());
        assert_eq!((one.woken(), other.woken()), (0, 0), "both know");
        assert!(one.poll(&mut first).is_ready());
        // A clone that polled again is woken by the end that another one sees.
        let told = FakeCommand::default();
        let mut first = told.in_flight();
        let mut second = first.clone();
        assert!(one.poll(&mut first).is_pending());
        assert!(other.poll(&mut second).is_pending());
        told.0.lock().1 = true;
        assert!(other.poll(&mut second).is_ready());
        assert_eq!((one.woken(), other.woken()), (1, 0));
        assert!(one.poll(&mut first).is_ready());
    }

    /// A future may move from task to task.
    #[test]
    fn the_task_that_polled_last_is_woken_by_its_end() {
        let told = FakeCommand::default();
        let mut flight = told.in_flight();
        let (one, other) = (
            Arc::<CountedWakes>::default(),
            Arc::<CountedWakes>::default(),
        );
        assert!(one.poll(&mut flight).is_pending());
        assert!(other.poll(&mut flight).is_pending());
        flight.clone().end_with(9);
        assert_eq!((one.woken(), other.woken()), (0, 1));
        assert_eq!(other.poll(&mut flight), Poll::Ready(9));
        // The same when another clone sees the end.
        let told = FakeCommand::default();
        let mut first = told.in_flight();
        let mut second = first.clone();
        assert!(first.is_same(&second) && !first.is_same(&flight));
        assert!(one.poll(&mut first).is_pending());
        assert!(other.poll(&mut first).is_pending());
        told.0.lock().1 = true;
        assert_eq!(one.poll(&mut second), Poll::Ready(7));
        assert_eq!(other.woken(), 1);
    }

    /// A waker may run any code: this one polls the future on another thread before it returns.
    #[derive(Default)]
    struct Polls(Mutex<Option<InFlight<u8>>>, AtomicU64);

    impl Wake for Polls {
        fn wake(self: Arc<Self>) {
            let Some(flight) = self.0.lock().take() else {
                return;
            };
            let (tell, told) = std::sync::mpsc::channel();
            std::thread::spawn(move || tell.send(flight.now_or_never()));
            // Times out if a lock is held that the poll needs.
            let told = told.recv_timeout(std::time::Duration::from_secs(30));
            self.1
                .store(told.ok().flatten().unwrap_or(0).into(), Ordering::Relaxed);
        }
    }

    #[test]
    fn nothing_is_woken_under_a_lock() {
        for ended in [false, true] {
            let told = FakeCommand::default();
            let mut first = told.in_flight();
            let mut second = first.clone();
            let (polls, other) = (Arc::<Polls>::default(), Arc::<CountedWakes>::default());
            let waker = Waker::from(Arc::clone(&polls));
            assert!(
                first
                    .poll_unpin(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            *polls.0.lock() = Some(first);
            if ended {
                second.end_with(7);
            } else {
                told.0.lock().1 = true;
                assert!(other.poll(&mut second).is_ready());
            }
            assert_eq!(polls.1.load(Ordering::Relaxed), 7);
        }
    }
}
