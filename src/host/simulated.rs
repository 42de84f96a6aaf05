//! A world of simulated processes in one thread, as the crate sees it. The simulation makes it, and all that is in it.

use std::cell::RefCell;
use std::future::{Future, pending};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use uuid::Uuid;

/// A hasher whose order is the same in each run.
pub(crate) type FixedState = BuildHasherDefault<DefaultHasher>;

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection.
pub type HostStream = Box<dyn Io>;

/// What runs in a process.
pub type Task = BoxFuture<'static, ()>;

/// What processes get from their world. Each question is one of the process that runs.
pub trait World {
    /// Nanoseconds by its clock.
    fn now(&self) -> u64;

    /// Connects it to a host and port.
    fn connect(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<HostStream>>;

    /// The future as a task of it, and of the thread that starts it.
    fn task(&self, future: Task) -> Task;

    /// The future as a background thread of it. The tasks of the thread end with it.
    fn thread(&self, future: Task) -> Task;
}

thread_local! {
    static WORLD: RefCell<Option<Box<dyn World>>> = const { RefCell::new(None) };
}

/// Makes this thread a world, until [`end`].
pub fn begin(world: impl World + 'static) {
    WORLD.set(Some(Box::new(world)));
}

/// Ends the world of this thread.
pub fn end() {
    WORLD.set(None);
}

fn ask<R>(question: impl FnOnce(&(dyn World + 'static)) -> R) -> Option<R> {
    WORLD.with_borrow(|world| world.as_deref().map(question))
}

/// Whether this thread is a world, in which background threads are tasks.
pub(crate) fn is_simulated() -> bool {
    WORLD.with_borrow(Option::is_some)
}

pub(crate) fn now() -> Option<u64> {
    ask(World::now)
}

pub(crate) async fn connect(host: &str, port: u16) -> Option<io::Result<HostStream>> {
    let connecting = ask(|world| world.connect(host, port))?;
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

/// The future as a task of the process and thread that start it.
pub(crate) fn own<F>(future: F) -> impl Future<Output = F::Output> + Send
where
    F: Future<Output: Send> + Send + 'static,
{
    let output = Arc::new(Mutex::new(None));
    let ended = Arc::clone(&output);
    let work = async move {
        let value = future.await;
        *ended.lock() = Some(value);
    };
    let task = hosted(work.boxed(), World::task);
    async move {
        task.await;
        let value = output.lock().take();
        match value {
            Some(value) => value,
            None => pending().await,
        }
    }
}

/// The future as a background thread of the process that starts it.
pub(crate) fn background(work: impl Future<Output = ()> + Send + 'static) -> Task {
    hosted(work.boxed(), World::thread)
}

fn hosted(work: Task, start: fn(&(dyn World + 'static), Task) -> Task) -> Task {
    WORLD.with_borrow(|world| match world.as_deref() {
        Some(world) => start(world, work),
        None => work,
    })
}
