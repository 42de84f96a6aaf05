//! A world of simulated processes in one thread: what the simulation sets, and what the crate gets from it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use scopeguard::guard;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use uuid::Uuid;

/// A hasher whose order is the same in each run.
pub(crate) type FixedState = BuildHasherDefault<DefaultHasher>;

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection.
pub type HostStream = Box<dyn Io>;

/// Connects a process of the world to a host and port.
pub type Connect =
    Arc<dyn Fn(usize, String, u16) -> BoxFuture<'static, io::Result<HostStream>> + Send + Sync>;

thread_local! {
    static WORLD: RefCell<Option<(Connect, Instant)>> = const { RefCell::new(None) };
    static RUNNING: RefCell<Option<TaskOrigin>> = const { RefCell::new(None) };
}

/// Makes this thread a world, until [`end`]. Its time is that of the current runtime.
pub fn begin(connect: Connect) {
    WORLD.set(Some((connect, Instant::now())));
}

/// Ends the world of this thread.
pub fn end() {
    WORLD.set(None);
}

/// Whether this thread is a world, in which background threads are tasks.
pub(crate) fn is_simulated() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// What a process's clock shows when the world begins, in nanoseconds.
const START: u64 = 1_000_000_000_000;

/// Nanoseconds by the clock of the process that asks.
pub(crate) fn now() -> Option<u64> {
    let since = WORLD.with_borrow(|world| world.as_ref().map(|(_, begun)| begun.elapsed()))?;
    let nanos = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let drift = RUNNING.with_borrow(|origin| match origin {
        Some(origin) => origin.process.drift(nanos),
        None => 0,
    });
    Some(START.saturating_add_signed(nanos.saturating_add(drift)))
}

pub(crate) async fn connect(host: &str, port: u16) -> Option<io::Result<HostStream>> {
    let connect =
        WORLD.with_borrow(|world| world.as_ref().map(|(connect, _)| Arc::clone(connect)))?;
    let number =
        RUNNING.with_borrow(|origin| origin.as_ref().map_or(0, |origin| origin.process.number));
    let connecting = connect(number, host.to_owned(), port);
    Some(connecting.await)
}

/// An id by the seed of the world.
pub(crate) fn uuid() -> Uuid {
    if is_simulated() {
        uuid::Builder::from_random_bytes(fastrand::u128(..).to_le_bytes()).into_uuid()
    } else {
        Uuid::new_v4()
    }
}

/// A process of the world.
pub struct Process {
    number: usize,
    frozen: AtomicBool,
    killed: AtomicBool,
    /// How much faster its clock runs, in millionths.
    drift: AtomicI64,
    /// The tasks that were to be polled while it was frozen.
    stopped: Mutex<Vec<Waker>>,
}

impl Process {
    /// A process with this number, which the world's network gets.
    #[must_use]
    pub fn new(number: usize) -> Arc<Self> {
        Arc::new(Self {
            number,
            frozen: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            drift: AtomicI64::new(0),
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

    /// From the start of the world on its clock runs faster by `millionths`, or slower.
    pub fn set_drift(&self, millionths: i64) {
        self.drift.store(millionths, Ordering::Relaxed);
    }

    /// A task of this process.
    pub fn run<F: Future>(self: &Arc<Self>, future: F) -> impl Future<Output = F::Output> + use<F> {
        let origin = TaskOrigin {
            process: Arc::clone(self),
            group: Arc::default(),
        };
        HostedTask::new(Some(origin), future)
    }

    fn drift(&self, nanos: i64) -> i64 {
        let drift = i128::from(nanos) * i128::from(self.drift.load(Ordering::Relaxed));
        i64::try_from(drift / 1_000_000).unwrap_or(0)
    }
}

/// Where a task runs.
#[derive(Clone)]
struct TaskOrigin {
    process: Arc<Process>,
    group: Arc<TaskGroup>,
}

/// A thread with a runtime: its tasks end with it.
#[derive(Default)]
struct TaskGroup {
    over: AtomicBool,
    /// The number of the next task.
    next: AtomicU64,
    tasks: Mutex<BTreeMap<u64, Waker>>,
}

impl TaskGroup {
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.into_values().for_each(Waker::wake);
    }
}

/// The future as a task of the process and thread that start it.
pub(crate) fn own<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    HostedTask::new(RUNNING.with_borrow(Clone::clone), future)
}

/// The future as a background thread of the process that starts it. The tasks of the thread end with it.
pub(crate) fn background<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let origin = RUNNING.with_borrow(Clone::clone).map(|origin| TaskOrigin {
        group: Arc::default(),
        ..origin
    });
    let of_thread = guard(origin.clone(), |origin| {
        if let Some(origin) = origin {
            origin.group.end();
        }
    });
    HostedTask::new(origin, async move {
        let _of_thread = of_thread;
        future.await
    })
}

struct HostedTask<F> {
    origin: Option<TaskOrigin>,
    /// Its number in its thread.
    number: u64,
    waker: Option<Waker>,
    /// None once it has ended.
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> HostedTask<F> {
    fn new(origin: Option<TaskOrigin>, future: F) -> Self {
        let next = origin
            .as_ref()
            .map(|origin| origin.group.next.fetch_add(1, Ordering::Relaxed));
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
            if origin.group.over.load(Ordering::Relaxed) {
                task.within(|task| task.future = None);
                return Poll::Pending;
            }
            let waker = context.waker();
            if !task
                .waker
                .as_ref()
                .is_some_and(|known| known.will_wake(waker))
            {
                origin.group.tasks.lock().insert(task.number, waker.clone());
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
            origin.group.tasks.lock().remove(&self.number);
        }
        // What it drops runs as this task, too.
        self.within(|task| task.future = None);
    }
}
