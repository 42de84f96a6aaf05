//! A connection, and when it is driven.
//!
//! A connection of redis-rs is a queue of commands and a *driver*, which writes queued commands and reads replies. A
//! driver that is a plain task runs when the scheduler chooses. On one thread it runs after all tasks that are ready, so
//! the server is idle until all commands are queued, and the tasks are idle until all are answered. On several threads
//! it runs at once, so each command costs its own write, and its own read on the server. With many commands in flight
//! both cost more than the lock. So:
//!
//! 1. With fewer than [`FEW`] commands in flight the driver is a plain task (but see 3).
//! 2. With more, its task yields once before it drives, so the commands of other tasks go out in one write.
//! 3. The caller that queues the last command of a *batch* drives the connection itself, so the server works on that
//!    batch while the next is queued. A batch is a quarter of the commands in flight, and at least [`FEW`].
//!    On several threads so does a caller that is alone, as the one before it was: the task may have to wake a thread.
//! 4. One thread drives at a time, once. A second one sets a flag and leaves, and the first one wakes the task when it sees
//!    the flag. So no thread waits for the lock or drives on for others, and no event is missed.
//! 5. The driver ends with its task, and the task with its runtime or with the last clone of the connection. From then on
//!    each queued command fails.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use scopeguard::{defer, guard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::RuntimeFlavor;
use tokio::task::AbortHandle;

use crate::clock::{Clock, Moment};
use crate::host::own;

/// The number of commands in flight from which they are sent in batches, and the smallest batch.
const FEW: usize = 4;

/// A batch is one part in this many of the commands in flight.
const PART: usize = 4;

/// A connection to a server. Clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    /// None if redis-rs runs the driver.
    driven: Option<Arc<DriverTask>>,
}

/// Keeps the task of a driver alive.
struct DriverTask {
    drive: Arc<Drive>,
    task: AbortHandle,
    passed: Arc<Passed>,
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    /// A connection whose driver runs on this runtime.
    pub(super) fn driven(
        redis: MultiplexedConnection,
        driver: impl Future<Output = ()> + Send + 'static,
        passed: Arc<Passed>,
    ) -> Self {
        let flavor = tokio::runtime::Handle::current().runtime_flavor();
        let has_threads = flavor != RuntimeFlavor::CurrentThread;
        let drive = Drive::new(driver.boxed(), has_threads);
        // Made before the task: a runtime that ends may drop a task that never ran.
        // Rule 5: the driver ends with its task.
        let ends = guard(Arc::clone(&drive), |drive| drive.end());
        let task = tokio::spawn(own(run(ends))).abort_handle();
        Self {
            redis,
            driven: Some(Arc::new(DriverTask {
                drive,
                task,
                passed,
            })),
        }
    }

    /// A connection that redis-rs drives.
    pub(super) fn of(redis: MultiplexedConnection) -> Self {
        Self {
            redis,
            driven: None,
        }
    }

    /// Sends a command and returns its reply. Calls `is_full` when the command completes a batch: the caller then drives the
    /// connection as soon as it holds no lock, because driving may wake any task.
    pub(crate) async fn send(&mut self, cmd: &Cmd, is_full: impl Fn()) -> RedisResult<Value> {
        let Some(driven) = &self.driven else {
            return self.redis.send_packed_command(cmd).await;
        };
        let drive = &driven.drive;
        // Relaxed, like all these counters: they only decide when driving pays, and guard no other data.
        let in_flight = drive.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        defer! { drive.in_flight.fetch_sub(1, Ordering::Relaxed); }
        let alone = drive.is_alone(in_flight);
        let mut replied = pin!(self.redis.send_packed_command(cmd));
        let mut is_queued = false;
        poll_fn(|context| {
            let polled = replied.as_mut().poll(context);
            if !is_queued && polled.is_pending() {
                is_queued = true;
                let queued = drive.queued.fetch_add(1, Ordering::Relaxed) + 1;
                if alone || queued >= FEW.max(in_flight / PART) {
                    is_full();
                }
            }
            polled
        })
        .await
    }

    /// Whether [`has_ended`](Self::has_ended) says so as soon as it is broken: redis-rs does not when it drives it.
    pub(crate) fn shows_its_end(&self) -> bool {
        self.driven.is_some()
    }

    /// Whether it is known to be broken.
    pub(crate) fn has_ended(&self) -> bool {
        self.driven
            .as_ref()
            .is_some_and(|driven| driven.drive.is_over())
    }

    /// When it was last read, by the system's clock, and how often somebody tried to write to it; none if redis-rs drives
    /// it.
    pub(crate) fn traffic(&self) -> Option<(Moment, u64)> {
        let passed = &self.driven.as_ref()?.passed;
        // Relaxed: numbers that stand for themselves.
        let read_at = Moment::from_nanos(passed.read_at.load(Ordering::Relaxed));
        Some((read_at, passed.asked.load(Ordering::Relaxed)))
    }

    /// Writes queued commands and reads the replies that have arrived.
    pub(crate) fn drive(&self) {
        if let Some(driven) = &self.driven {
            driven.drive.drive();
        }
    }
}

impl Deref for Connection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.redis
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.redis
    }
}

/// When a stream was last read with success, in nanoseconds of the system's clock, and how often somebody tried to write
/// to it.
#[derive(Debug, Default)]
pub(super) struct Passed {
    read_at: AtomicU64,
    asked: AtomicU64,
}

/// A stream that notes what passes.
pub(super) struct WatchedStream<S> {
    stream: S,
    passed: Arc<Passed>,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(stream: S, passed: &Arc<Passed>) -> Self {
        let passed = Arc::clone(passed);
        Self { stream, passed }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            let now = Clock::system().now();
            self.passed.read_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.passed.asked.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.passed.asked.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A driver that several threads may poll.
#[derive(Default)]
struct Drive {
    /// None once it has ended.
    driver: Mutex<Option<BoxFuture<'static, ()>>>,
    /// The waker of its task; the driver is always polled with this one.
    waker: OnceLock<Waker>,
    /// Set by a thread that wants to drive, before it tries the lock.
    again: AtomicBool,
    /// Its task has ended, or must end.
    over: AtomicBool,
    /// The number of commands without a reply.
    in_flight: AtomicUsize,
    /// The number of commands queued since it was driven last.
    queued: AtomicUsize,
    /// Of the last command: how many were in flight with it.
    last: AtomicUsize,
    has_threads: bool,
}

impl Drive {
    fn new(driver: BoxFuture<'static, ()>, has_threads: bool) -> Arc<Self> {
        Arc::new(Self {
            driver: Mutex::new(Some(driver)),
            has_threads,
            ..Self::default()
        })
    }

    /// Whether the command with which `in_flight` are in flight is best sent by its caller (rule 3).
    fn is_alone(&self, in_flight: usize) -> bool {
        self.has_threads && self.last.swap(in_flight, Ordering::Relaxed) == 1 && in_flight == 1
    }

    /// Drives, or leaves it to the thread that drives now (rule 4: one thread at a time). Does nothing before the task has
    /// run once: its first run polls the driver anyway.
    fn drive(&self) {
        let Some(waker) = self.waker.get() else {
            return;
        };
        loop {
            // Sequentially consistent, all three: if this thread stores and then finds the lock taken, the thread that holds
            // it sees the store, because it loads after it unlocks.
            self.again.store(true, Ordering::SeqCst);
            let Some(mut driver) = self.driver.try_lock() else {
                return;
            };
            self.again.store(false, Ordering::SeqCst);
            if !self.goes_on(&mut driver, waker) {
                let ended = driver.take();
                drop(driver);
                drop(ended);
                if !self.over.swap(true, Ordering::SeqCst) {
                    waker.wake_by_ref();
                }
                return;
            }
            drop(driver);
            if !self.again.load(Ordering::SeqCst) {
                return;
            }
            // If the task has ended, this thread goes round once more and drops the driver.
            if !self.is_over() {
                return waker.wake_by_ref();
            }
        }
    }

    /// Polls the driver. Returns whether it is still running.
    fn goes_on(&self, driver: &mut Option<BoxFuture<'static, ()>>, waker: &Waker) -> bool {
        let Some(driver) = driver.as_mut().filter(|_| !self.is_over()) else {
            return false;
        };
        self.queued.store(0, Ordering::Relaxed);
        let polling = AssertUnwindSafe(|| driver.poll_unpin(&mut Context::from_waker(waker)));
        // A driver that panics has ended, too.
        matches!(catch_unwind(polling), Ok(Poll::Pending))
    }

    /// Drops the driver: its task has ended.
    fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.waker.get_or_init(|| Waker::noop().clone());
        self.drive();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

async fn run(drive: impl Deref<Target = Arc<Drive>>) {
    let mut let_others_go = false;
    poll_fn(|context| {
        drive.waker.get_or_init(|| context.waker().clone());
        // Rule 2: yields once. This also lets more replies arrive before it reads, so more tasks queue their next command
        // together.
        let_others_go = !let_others_go && drive.in_flight.load(Ordering::Relaxed) >= FEW;
        if let_others_go {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        drive.drive();
        if drive.is_over() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;
    use std::time::Duration;

    use redis::IntoConnectionInfo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// A connection whose task has run, and the server's end of it.
    async fn connect() -> (Connection, DuplexStream) {
        let made = just_connected().await;
        tokio::task::yield_now().await;
        made
    }

    async fn just_connected() -> (Connection, DuplexStream) {
        let (near, far) = tokio::io::duplex(65_536);
        let info = "redis://127.0.0.1/".into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&settings, near, config).await;
        let (redis, driver) = made.unwrap();
        (Connection::driven(redis, driver, Arc::default()), far)
    }

    /// A command that was put into the queue, and whether it filled a batch.
    fn queue(connection: &Connection) -> (BoxFuture<'static, RedisResult<Value>>, bool) {
        let mut connection = connection.clone();
        let is_full = Arc::new(AtomicBool::new(false));
        let filled = Arc::clone(&is_full);
        let mut sending = async move {
            let ping = redis::cmd("PING");
            let is_full = || filled.store(true, Ordering::Relaxed);
            connection.send(&ping, is_full).await
        }
        .boxed();
        assert!((&mut sending).now_or_never().is_none());
        (sending, is_full.load(Ordering::Relaxed))
    }

    /// How many commands have reached the server. Does not let the driver's task run.
    fn arrived(far: &mut DuplexStream) -> usize {
        let mut bytes = Vec::with_capacity(65_536);
        let read = far.read_buf(&mut bytes).now_or_never();
        read.map_or(0, |_| bytes.split(|byte| *byte == b'*').count() - 1)
    }

    #[tokio::test]
    async fn a_batch_is_a_quarter_of_what_is_in_flight_but_at_least_a_few() {
        let (connection, mut far) = connect().await;
        let mut all = Vec::new();
        let mut full_at = Vec::new();
        for number in 1..=40 {
            let (sending, is_full) = queue(&connection);
            all.push(sending);
            if is_full {
                full_at.push(number);
                connection.drive();
            }
        }
        assert_eq!(full_at[..4], [4, 8, 12, 16]);
        assert_eq!(full_at[4..], [21, 27, 35]);
        assert_eq!(arrived(&mut far), 35, "what is full is written at once");
        // Commands that were answered or dropped are not in flight any more.
        far.write_all(&b"+PONG\r\n".repeat(35)).await.unwrap();
        let rest = all.split_off(35);
        for answered in all {
            answered.await.unwrap();
        }
        drop(rest);
        let more: Vec<_> = (0..4).map(|_| queue(&connection)).collect();
        let is_full: Vec<_> = more.iter().map(|(_, is_full)| *is_full).collect();
        assert_eq!(is_full, [false, false, false, true]);
    }

    /// Commands that are queued while the task yields go out in one write.
    #[tokio::test]
    async fn with_many_in_flight_its_task_lets_others_go_first() {
        let (connection, mut far) = connect().await;
        let mut all: Vec<_> = (0..2).map(|_| queue(&connection).0).collect();
        tokio::task::yield_now().await;
        assert_eq!(arrived(&mut far), 2, "few are written when its task runs");
        all.extend((0..2).map(|_| queue(&connection).0));
        let other = tokio::spawn(async move { arrived(&mut far) });
        assert_eq!(other.await.unwrap(), 0, "another task comes first");
        drop(all);
    }

    #[tokio::test]
    async fn it_ends_with_its_last_clone() {
        let (connection, mut far) = connect().await;
        let other = connection.clone();
        drop(connection);
        tokio::task::yield_now().await;
        let mut byte = [0];
        let read = far.read(&mut byte);
        assert!(read.now_or_never().is_none(), "a clone is there");
        drop(other);
        let read = tokio::time::timeout(Duration::from_secs(30), far.read(&mut byte));
        assert_eq!(read.await.unwrap().unwrap(), 0, "the connection is closed");
    }

    #[test]
    fn it_ends_with_its_runtime() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        for has_run in [true, false] {
            let first = runtime();
            let (mut connection, _far) = first.block_on(async {
                if has_run {
                    connect().await
                } else {
                    just_connected().await
                }
            });
            let (waiting, _) = queue(&connection);
            drop(first);
            runtime().block_on(async {
                let limit = Duration::from_secs(30);
                let waited = tokio::time::timeout(limit, waiting).await;
                assert!(waited.unwrap().is_err());
                let ping = redis::cmd("PING");
                let sent = tokio::time::timeout(limit, connection.send(&ping, || ())).await;
                assert!(sent.unwrap().is_err());
            });
        }
    }

    /// A task, and how often it was woken.
    #[derive(Default)]
    struct WakeCounter(AtomicU32);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A driver that calls this whenever it is polled, and its task.
    fn drive_by(poll: impl FnMut() -> Poll<()> + Send + 'static) -> (Arc<Drive>, Arc<WakeCounter>) {
        let mut poll = poll;
        let drive = Drive::new(poll_fn(move |_| poll()).boxed(), false);
        let task = Arc::<WakeCounter>::default();
        drive.waker.get_or_init(|| Waker::from(Arc::clone(&task)));
        (drive, task)
    }

    /// What a driver's first poll does on another thread, to itself.
    fn meanwhile(act: fn(&Arc<Drive>)) -> (Arc<Drive>, Arc<WakeCounter>, Arc<AtomicU32>) {
        let polls = Arc::new(AtomicU32::new(0));
        let itself = Arc::new(OnceLock::<Arc<Drive>>::new());
        let (drive, task) = drive_by({
            let (polls, itself) = (Arc::clone(&polls), Arc::clone(&itself));
            move || {
                if polls.fetch_add(1, Ordering::Relaxed) == 0 {
                    let drive = Arc::clone(itself.get().unwrap());
                    std::thread::spawn(move || act(&drive)).join().unwrap();
                }
                Poll::Pending
            }
        });
        itself.set(Arc::clone(&drive)).ok().unwrap();
        (drive, task, polls)
    }

    /// A waker may run any code: one that wants it driven while it is being driven, for example.
    #[test]
    fn who_finds_another_one_driving_has_its_task_woken() {
        let (drive, task, polls) = meanwhile(|drive| drive.drive());
        drive.drive();
        assert_eq!(polls.load(Ordering::Relaxed), 1, "nobody drives for others");
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        drive.drive();
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        assert_eq!(task.0.load(Ordering::Relaxed), 1, "nobody came");
    }

    #[test]
    fn a_task_that_ends_while_another_one_drives_takes_the_driver_along() {
        let (drive, _, polls) = meanwhile(|drive| drive.end());
        drive.drive();
        assert!(drive.driver.lock().is_none());
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn one_that_ends_or_panics_is_over_and_dropped() {
        for panics in [false, true] {
            let held = Arc::new(());
            let (drive, task) = drive_by({
                let held = Arc::clone(&held);
                move || {
                    assert!(!panics || Arc::strong_count(&held) == 0, "a bug");
                    Poll::Ready(())
                }
            });
            drive.drive();
            assert!(drive.is_over());
            assert_eq!(Arc::strong_count(&held), 1, "it is dropped");
            drive.drive();
            assert_eq!(task.0.load(Ordering::Relaxed), 1, "its task ends");
        }
    }
}
