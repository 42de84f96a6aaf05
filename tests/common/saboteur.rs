//! A bug in a background thread, simulated by a waker that panics there.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;

/// How many threads panicked.
pub(crate) static PANICKED: AtomicUsize = AtomicUsize::new(0);

/// Panics when the thread with this name wakes it.
struct Saboteur(&'static str);

impl Wake for Saboteur {
    fn wake(self: Arc<Self>) {
        if thread::current().name() == Some(self.0) {
            PANICKED.fetch_add(1, Ordering::SeqCst);
            panic!("sabotage");
        }
    }
}

/// A future that waits, and whose thread with this name dies when it wakes it.
pub(crate) type Fuse<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Polls `waiting` once. The thread with this name panics when it wakes it.
pub(crate) fn sabotage<T>(
    thread: &'static str,
    waiting: impl Future<Output = T> + Send + 'static,
) -> Fuse<T> {
    let mut fuse: Fuse<T> = Box::pin(waiting);
    let waker = Waker::from(Arc::new(Saboteur(thread)));
    let polled = fuse.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    fuse
}
