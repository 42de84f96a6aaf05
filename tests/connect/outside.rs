//! Outside any tokio runtime: typed errors and no panics; what must work without a runtime works.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, ConfigError, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, count, gone, ms, poll_once, soon, try_once};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What an executor without tokio does.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread::park_timeout(LONG);
    }
    panic!("not ready within {LONG:?}");
}

fn is_no_runtime<T: std::fmt::Debug>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Config(ConfigError::NoRuntime)))
}

fn start() -> (RedisServer, Runtime, Client) {
    let server = RedisServer::start();
    let home = Runtime::new().expect("a runtime");
    let client = home
        .block_on(Client::connect(&server.url()))
        .expect("a client");
    (server, home, client)
}

#[test]
fn connecting_needs_a_runtime() {
    let server = RedisServer::start();
    let connecting = block_on(Client::connect(&server.url()));
    assert!(is_no_runtime(&connecting), "{connecting:?}");
    let absent = block_on(Client::connect("redis://127.0.0.1:1/"));
    assert!(is_no_runtime(&absent), "{absent:?}");
    let bad = block_on(Client::connect("nonsense"));
    assert!(
        matches!(bad, Err(Error::Config(ConfigError::InvalidUrl))),
        "{bad:?}"
    );
}

#[test]
fn an_acquire_needs_a_runtime() {
    let (server, home, client) = start();
    let lock = client.get_lock("x");
    assert!(is_no_runtime(&block_on(lock.lock())));
    assert!(is_no_runtime(&block_on(lock.lock_with_lease(LONG))));
    assert!(is_no_runtime(&block_on(
        lock.try_lock(Duration::ZERO, LONG)
    )));
    assert!(is_no_runtime(&block_on(
        lock.try_lock(LONG, Lease::Watchdog)
    )));
    assert!(is_no_runtime(&block_on(lock.run(async |_| ()))));
    assert!(is_no_runtime(&block_on(lock.is_locked())));
    assert!(is_no_runtime(&block_on(lock.remain_time_to_live())));
    assert!(is_no_runtime(&block_on(lock.force_unlock())));
    assert!(is_no_runtime(&block_on(
        client.scope(async { lock.lock().await })
    )));
    let owner = client.new_owner();
    assert!(is_no_runtime(&block_on(owner.get_lock("x").lock())));
    assert!(matches!(
        block_on(lock.unlock()),
        Err(Error::NotOwner { .. })
    ));
    home.block_on(clean(&server));
    // The error leaves it usable.
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    assert!(is_no_runtime(&block_on(lock.lock())));
    home.block_on(guard.unlock()).unwrap();
}

#[test]
fn a_queued_acquire_that_is_polled_outside_does_not_panic() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    let lock = client.get_lock("x");
    let mut waiting = Box::pin(async move { lock.lock().await });
    assert!(
        home.block_on(crate::common::poll_once(&mut waiting))
            .is_none()
    );
    drop(guard);
    match block_on(waiting) {
        Ok(guard) => drop(guard),
        Err(error) => assert!(
            matches!(error, Error::Config(ConfigError::NoRuntime)),
            "{error:?}"
        ),
    }
    home.block_on(clean(&server));
}

#[test]
fn queued_acquires_that_wait_on_outside_complete() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    let lock = client.get_lock("x");
    let mut waiting = Box::pin(lock.lock());
    let mut bounded = Box::pin(lock.try_lock(ms(300), Lease::Watchdog));
    home.block_on(async {
        assert!(crate::common::poll_once(&mut waiting).await.is_none());
        assert!(crate::common::poll_once(&mut bounded).await.is_none());
    });
    assert!(block_on(bounded).unwrap().is_none());
    // The keeper gets the lock for it.
    let unlocking = home.spawn(guard.unlock());
    let served = block_on(waiting).unwrap();
    block_on(served.unlock()).unwrap();
    home.block_on(unlocking).unwrap().unwrap();
    home.block_on(clean(&server));
}

#[test]
fn a_guard_is_unlocked_outside() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    block_on(guard.unlock()).unwrap();
    assert!(
        !home.block_on(server.exists("x")),
        "released when it returned"
    );
}

#[test]
fn an_unlock_outside_ends_though_the_server_is_gone() {
    let (server, home, client) = start();
    let lock = client.get_lock("x");
    let guard = home.block_on(lock.lock_with_lease(ms(700))).unwrap();
    server.kill();
    let unlocked = block_on(guard.unlock());
    assert!(
        matches!(unlocked, Err(Error::Unavailable { .. })),
        "{unlocked:?}"
    );
}

/// It has the deadline of an unlock in a runtime, and the keeper goes on.
#[test]
fn an_unlock_outside_ends_though_the_server_is_silent() {
    let (server, home, client) = start();
    let lock = client.get_lock("x");
    let guard = home.block_on(lock.lock_with_lease(LONG * 60)).unwrap();
    server.freeze();
    let unlocked = block_on(guard.unlock());
    assert!(
        matches!(unlocked, Err(Error::Unavailable { .. })),
        "{unlocked:?}"
    );
    server.resume();
    home.block_on(gone(&server, "x"));
}

#[test]
fn an_unlock_outside_after_a_shutdown_ends() {
    let (_server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    home.block_on(client.shutdown(Duration::ZERO));
    let unlocked = block_on(guard.unlock());
    assert!(matches!(unlocked, Err(Error::Lost { .. })), "{unlocked:?}");
}

#[test]
fn a_level_is_unlocked_outside() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    let inner = home.block_on(guard.reenter(Lease::Watchdog)).unwrap();
    block_on(inner.unlock()).unwrap();
    assert_eq!(guard.hold_count(), 1);
    home.block_on(eventually(
        "the keeper writes the count",
        LONG,
        async || count(&server, "x").await == 1,
    ));
    home.block_on(guard.unlock()).unwrap();
    home.block_on(clean(&server));
}

#[test]
fn a_detached_level_is_unlocked_outside() {
    let (server, home, client) = start();
    let owner = client.new_owner();
    let lock = owner.get_lock("x");
    let guard = home.block_on(lock.lock()).unwrap();
    guard.detach().unwrap();
    block_on(lock.unlock()).unwrap();
    assert!(
        !home.block_on(server.exists("x")),
        "released when it returned"
    );
}

#[test]
fn entering_again_and_extending_need_a_runtime() {
    let (server, home, client) = start();
    let lock = client.get_lock("x");
    let guard = home.block_on(lock.lock_with_lease(LONG)).unwrap();
    assert!(is_no_runtime(&block_on(guard.reenter(Lease::Watchdog))));
    assert!(is_no_runtime(&block_on(guard.extend(2 * LONG))));
    assert!(guard.is_valid());
    assert_eq!(guard.hold_count(), 1);
    home.block_on(guard.unlock()).unwrap();
    home.block_on(clean(&server));
}

#[test]
fn a_loss_is_heard_outside() {
    let (_server, home, client) = start();
    let guard = home
        .block_on(client.get_lock("x").lock_with_lease(ms(50)))
        .unwrap();
    assert_eq!(block_on(guard.lost()), watchlock::LostReason::Expired);
    assert!(matches!(block_on(guard.unlock()), Err(Error::Lost { .. })));
}

#[test]
fn a_guard_dropped_outside_is_released() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    drop(guard);
    home.block_on(clean(&server));
}

#[test]
fn a_client_is_shut_down_outside() {
    for timeout in [Duration::ZERO, ms(100), Duration::MAX] {
        let (server, home, client) = start();
        let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
        if timeout == Duration::MAX {
            drop(guard);
            block_on(client.shutdown(timeout));
        } else {
            block_on(client.shutdown(timeout));
            assert!(!guard.is_valid());
        }
        assert!(
            !home.block_on(server.exists("x")),
            "released within {timeout:?}"
        );
    }
}

#[test]
fn an_unlock_on_a_runtime_that_was_shut_down_is_made_by_the_keeper() {
    let (server, home, client) = start();
    let other = Runtime::new().unwrap();
    let guard = other.block_on(try_once(&client, "x")).unwrap().unwrap();
    let inner = other.block_on(guard.reenter(Lease::Watchdog)).unwrap();
    let ended = other.handle().clone();
    other.shutdown_timeout(LONG);
    {
        let _on_it = ended.enter();
        block_on(inner.unlock()).unwrap();
        block_on(guard.unlock()).unwrap();
    }
    assert!(
        !home.block_on(server.exists("x")),
        "released when it returned"
    );
}

/// Unlocks in its drop, as a task may do when its runtime drops it.
struct UnlockedLate(Option<watchlock::LockGuard>, Sender<Result<(), Error>>);

impl Drop for UnlockedLate {
    fn drop(&mut self) {
        let guard = self.0.take().expect("a guard");
        let unlocked = block_on(guard.unlock());
        self.1.send(unlocked).expect("the test waits");
    }
}

#[test]
fn an_unlock_while_its_runtime_is_shut_down_is_made_by_the_keeper() {
    for threads in [0, 1, 2] {
        let (server, home, client) = start();
        let other = match threads {
            0 => Builder::new_current_thread().enable_all().build(),
            threads => Builder::new_multi_thread()
                .worker_threads(threads)
                .enable_all()
                .build(),
        };
        let other = other.unwrap();
        let guard = other.block_on(try_once(&client, "x")).unwrap().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let late = UnlockedLate(Some(guard), sender);
        other.spawn(async move {
            let _late = late;
            std::future::pending::<()>().await;
        });
        drop(other);
        let unlocked = receiver.recv_timeout(LONG).unwrap();
        // The command may be on a connection that nobody drives any more; the keeper repeats it.
        assert!(
            matches!(unlocked, Ok(()) | Err(Error::Unavailable { .. })),
            "{unlocked:?}"
        );
        home.block_on(gone(&server, "x"));
    }
}

#[test]
fn an_unlock_outside_ends_with_its_client() {
    let (server, home, client) = start();
    let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
    server.freeze();
    let mut unlocking = Box::pin(guard.unlock());
    assert!(block_on(poll_once(&mut unlocking)).is_none());
    let ending = home.spawn(async move { client.shutdown(ms(100)).await });
    let unlocked = block_on(unlocking);
    assert!(matches!(unlocked, Err(Error::Closed)), "{unlocked:?}");
    home.block_on(ending).unwrap();
    server.resume();
}

#[test]
fn a_write_level_is_unlocked_outside_and_leaves_the_lock_to_readers() {
    let (server, home, client) = start();
    let owner = client.new_owner();
    let lock = owner.get_read_write_lock("x");
    let write = home.block_on(lock.write_lock().lock()).unwrap();
    let reading = home.block_on(lock.read_lock().lock()).unwrap();
    block_on(write.unlock()).unwrap();
    let here = client.get_read_write_lock("x").read_lock();
    let here = home.block_on(soon(here.lock())).unwrap();
    home.block_on(async {
        let other = Client::connect(&server.url()).await.unwrap();
        let there = other.get_read_write_lock("x").read_lock();
        soon(there.lock()).await.unwrap().unlock().await.unwrap();
        here.unlock().await.unwrap();
        reading.unlock().await.unwrap();
        clean(&server).await;
    });
}
