//! The processes of a world, and what runs in them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use watchlock::__simulation::{self as simulated, HostStream, Task};

use crate::world::World;

thread_local! {
    static RUNNING: RefCell<Option<Origin>> = const { RefCell::new(None) };
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a task of this thread's world has panicked since the last call. Tokio catches that, and nobody may await the task.
pub fn has_panicked() -> bool {
    PANICKED.take()
}

/// Notes a panic that unwinds through it.
struct NotesPanic;

impl Drop for NotesPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            PANICKED.set(true);
        }
    }
}

/// What a process's clock shows when the world begins, in nanoseconds.
const START: u64 = 1_000_000_000_000;

/// What the clients in a world get from it.
pub struct Host {
    world: World,
    begun: Instant,
}

impl Host {
    /// Its time is that of the current runtime.
    #[must_use]
    pub fn of(world: &World) -> Self {
        Self {
            world: world.clone(),
            begun: Instant::now(),
        }
    }
}

impl simulated::World for Host {
    fn now(&self) -> u64 {
        let nanos = i64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let drift = RUNNING.with_borrow(|origin| match origin {
            Some(origin) => origin.process.drift(nanos),
            None => 0,
        });
        START.saturating_add_signed(nanos.saturating_add(drift))
    }

    fn connect(&self, _host: &str, port: u16) -> BoxFuture<'static, io::Result<HostStream>> {
        let number =
            RUNNING.with_borrow(|origin| origin.as_ref().map_or(0, |origin| origin.process.number));
        self.world.connect(number, port)
    }

    fn task(&self, future: Task) -> Task {
        HostedTask::new(RUNNING.with_borrow(Clone::clone), future).boxed()
    }

    fn thread(&self, future: Task) -> Task {
        let origin = RUNNING.with_borrow(Clone::clone).map(|origin| Origin {
            thread: Arc::default(),
            ..origin
        });
        let ends = origin
            .as_ref()
            .map(|origin| Ends(Arc::clone(&origin.thread)));
        let work = async move {
            let _ends = ends;
            future.await;
        };
        HostedTask::new(origin, work).boxed()
    }
}

/// A process of the world.
pub struct Process {
    number: usize,
    frozen: AtomicBool,
    killed: AtomicBool,
    /// How much faster its clock runs, in millionths.
    drift: i64,
    /// The tasks that were to be polled while it was frozen.
    stopped: Mutex<Vec<Waker>>,
}

impl Process {
    /// A process with this number, whose clock runs faster by `drift` millionths from the start of the world on, or slower.
    #[must_use]
    pub fn new(number: usize, drift: i64) -> Arc<Self> {
        Arc::new(Self {
            number,
            frozen: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            drift,
            stopped: Mutex::default(),
        })
    }

    /// Nothing of it is polled until it is thawed.
    pub fn freeze(&self) {
        self.frozen.store(true, Ordering::Relaxed);
    }

    /// What was to be polled while it was frozen is polled now.
    pub fn thaw(&self) {
        self.frozen.store(false, Ordering::Relaxed);
        let stopped = std::mem::take(&mut *self.stopped.lock());
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Nothing of it is polled any more.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        self.stopped.lock().clear();
    }

    /// A task of this process.
    pub fn run<F: Future>(self: &Arc<Self>, future: F) -> impl Future<Output = F::Output> + use<F> {
        let origin = Origin {
            process: Arc::clone(self),
            thread: Arc::default(),
        };
        HostedTask::new(Some(origin), future)
    }

    fn drift(&self, nanos: i64) -> i64 {
        let drift = i128::from(nanos) * i128::from(self.drift);
        i64::try_from(drift / 1_000_000).unwrap_or(0)
    }
}

/// Where a task runs.
#[derive(Clone)]
struct Origin {
    process: Arc<Process>,
    thread: Arc<Thread>,
}

/// A thread with a runtime: its tasks end with it.
#[derive(Default)]
struct Thread {
    over: AtomicBool,
    /// The number of the next task.
    next: AtomicU64,
    tasks: Mutex<BTreeMap<u64, Waker>>,
}

/// Ends a thread when it is dropped.
struct Ends(Arc<Thread>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut *self.0.tasks.lock());
        tasks.into_values().for_each(Waker::wake);
    }
}

struct HostedTask<F> {
    origin: Option<Origin>,
    /// Its number in its thread.
    number: u64,
    waker: Option<Waker>,
    /// None once it has ended.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> HostedTask<F> {
    fn new(origin: Option<Origin>, future: F) -> Self {
        let next = origin
            .as_ref()
            .map(|origin| origin.thread.next.fetch_add(1, Ordering::Relaxed));
        Self {
            number: next.unwrap_or_default(),
            origin,
            waker: None,
            future: Some(Box::pin(future)),
        }
    }
}

impl<F> HostedTask<F> {
    /// Runs `work` as this task.
    fn within<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        let _notes = NotesPanic;
        let before = RUNNING.replace(self.origin.clone());
        let done = work(self);
        RUNNING.set(before);
        done
    }
}

impl<F: Future> Future for HostedTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let task = &mut *self;
        if let Some(origin) = &task.origin {
            if origin.process.killed.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if origin.process.frozen.load(Ordering::Relaxed) {
                origin.process.stopped.lock().push(context.waker().clone());
                return Poll::Pending;
            }
            if origin.thread.over.load(Ordering::Relaxed) {
                task.within(|task| task.future = None);
                return Poll::Pending;
            }
            let waker = context.waker();
            if !task
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
            {
                origin
                    .thread
                    .tasks
                    .lock()
                    .insert(task.number, waker.clone());
                task.waker = Some(waker.clone());
            }
        }
        task.within(|task| match &mut task.future {
            Some(future) => future.as_mut().poll(context),
            None => Poll::Pending,
        })
    }
}

impl<F> Drop for HostedTask<F> {
    fn drop(&mut self) {
        if let Some(origin) = &self.origin {
            origin.thread.tasks.lock().remove(&self.number);
        }
        // What it drops runs as this task, too.
        self.within(|task| task.future = None);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_of_a_task_is_noted_until_it_is_asked_for() {
        let process = Process::new(0, 0);
        assert_eq!(process.run(async { 1 }).now_or_never(), Some(1));
        assert!(!has_panicked());
        let panics = process.run(async { panic!("by intention") });
        assert!(catch_unwind(AssertUnwindSafe(|| panics.now_or_never())).is_err());
        assert!(has_panicked());
        assert!(!has_panicked());
    }
}
