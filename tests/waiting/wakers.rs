//! A waker may own anything, also a guard of the lock that its task waits for: as the wakers of an executor do that own
//! its idle tasks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId, spawn};

use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, Error, LockGuard};
use watchlock_support::server::RedisServer;

use crate::common::LONG;

struct Owns(#[expect(dead_code, reason = "it is dropped")] Mutex<LockGuard>);

impl Wake for Owns {
    fn wake(self: Arc<Self>) {}
}

type Acquire = Pin<Box<dyn Future<Output = Result<LockGuard, Error>> + Send>>;

/// An acquire that waits, and that has the last reference to a waker that owns the guard of the lock.
fn waits(runtime: &Runtime, client: &Client) -> Acquire {
    let guard = runtime.block_on(client.get_lock("x").lock()).unwrap();
    let lock = client.get_lock("x");
    let mut waits: Acquire = Box::pin(async move { lock.lock().await });
    let waker = Waker::from(Arc::new(Owns(Mutex::new(guard))));
    assert!(poll(&mut waits, &waker).is_pending());
    waits
}

fn poll(acquire: &mut Acquire, waker: &Waker) -> Poll<Result<LockGuard, Error>> {
    acquire.as_mut().poll(&mut Context::from_waker(waker))
}

/// Runs `work` on a thread of its own, which stays behind if it does not end.
fn ends(work: impl FnOnce(Runtime, Client) + Send + 'static) {
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let client = runtime.block_on(Client::connect(&server.url())).unwrap();
    let (done, is_done) = mpsc::channel();
    spawn(move || {
        let handle = runtime.handle().clone();
        let _in = handle.enter();
        work(runtime, client);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(LONG).expect("it ends");
}

#[test]
fn i9_a_waker_that_goes_with_the_future_may_own_a_guard_of_the_lock() {
    ends(|runtime, client| {
        drop(waits(&runtime, &client));
        let guard = runtime.block_on(client.get_lock("x").lock()).unwrap();
        runtime.block_on(guard.unlock()).unwrap();
    });
}

#[test]
fn i9_a_waker_that_another_one_replaces_may_own_a_guard_of_the_lock() {
    ends(|runtime, client| {
        let mut waits = waits(&runtime, &client);
        // That gives the guard back, so the acquire gets the lock.
        let _ = poll(&mut waits, Waker::noop());
        let guard = runtime.block_on(waits).unwrap();
        runtime.block_on(guard.unlock()).unwrap();
    });
}

/// Panics on the thread that made it.
struct Panics(ThreadId);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        assert_ne!(thread::current().id(), self.0, "it is the application's");
    }
}

/// Whoever gives the lock back wakes those who wait for that. The background thread gets its work before.
#[test]
fn a_waker_that_panics_keeps_no_lock() {
    ends(|runtime, client| {
        let guard = runtime.block_on(client.get_lock("x").lock()).unwrap();
        let hold = guard.hold();
        let mut ended = Box::pin(async move { hold.ended().await });
        let waker = Waker::from(Arc::new(Panics(thread::current().id())));
        let polled = ended.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        // It does not panic if the background thread was faster.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guard)));
        let guard = runtime.block_on(client.get_lock("x").lock()).unwrap();
        runtime.block_on(guard.unlock()).unwrap();
    });
}
