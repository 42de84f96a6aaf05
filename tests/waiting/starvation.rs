//! User code that blocks runtimes and forgets futures must not cost anybody a lock (F17, I9).
//!
//! The sleeps here are the fault itself: a worker thread that does nothing else.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, Lease, LockGuard};
use watchlock_support::proxy::{Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::{eventually, wait_until};

use crate::common::{
    LONG, SHORT, clean, connect, connect_short, gone, is_free, ms, poll_once, soon,
};

fn workers(n: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(n).enable_all().build().unwrap()
}

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Watches a key from outside: the lowest time to live that it had.
fn lowest_ttl(
    server: &Arc<RedisServer>,
    key: &'static str,
) -> (Arc<AtomicBool>, thread::JoinHandle<i64>) {
    let stop = Arc::new(AtomicBool::new(false));
    let (server, stopped) = (Arc::clone(server), Arc::clone(&stop));
    let look = thread::spawn(move || {
        let mut lowest = i64::MAX;
        while !stopped.load(Ordering::SeqCst) {
            lowest = lowest.min(single().block_on(server.pttl(key)));
            thread::sleep(ms(5));
        }
        lowest
    });
    (stop, look)
}

/// Blocks every worker of `runtime` for `span`; returns when they are free again.
fn block_all(runtime: &Runtime, threads: usize, span: Duration) {
    let (sender, blocked) = std::sync::mpsc::channel();
    for _ in 0..threads {
        let sender = sender.clone();
        runtime.spawn(async move {
            thread::sleep(span);
            sender.send(()).unwrap();
        });
    }
    for _ in 0..threads {
        blocked.recv().unwrap();
    }
}

#[test]
fn f17_i8_two_blocked_workers_delay_no_renewal() {
    let server = Arc::new(RedisServer::start());
    let runtime = workers(2);
    let client = runtime.block_on(connect_short(&server));
    let guard = runtime.block_on(client.get_lock("kept").lock()).unwrap();
    let dropped = runtime.block_on(client.get_lock("dropped").lock()).unwrap();
    let (stop, look) = lowest_ttl(&server, "kept");
    // Both workers, for five leases; in that time a guard is dropped from outside.
    thread::scope(|scope| {
        scope.spawn(|| block_all(&runtime, 2, SHORT * 5));
        drop(dropped);
        let free = || !single().block_on(server.exists("dropped"));
        wait_until("the dropped guard is given back", SHORT * 4, free);
    });
    stop.store(true, Ordering::SeqCst);
    let lowest = look.join().unwrap();
    assert!(lowest > 0, "the lease ran down to {lowest} ms");
    guard.check().unwrap();
    runtime.block_on(async {
        guard.unlock().await.unwrap();
        clean(&server).await;
    });
}

#[test]
fn f17_i8_a_blocked_current_thread_runtime_delays_no_renewal() {
    let server = Arc::new(RedisServer::start());
    let runtime = single();
    let client = runtime.block_on(connect_short(&server));
    let (stop, look) = lowest_ttl(&server, "kept");
    runtime.block_on(async {
        let guard = client.get_lock("kept").lock().await.unwrap();
        drop(client.get_lock("dropped").lock().await.unwrap());
        thread::sleep(SHORT * 5);
        guard.check().unwrap();
        assert!(!server.exists("dropped").await);
        stop.store(true, Ordering::SeqCst);
        guard.unlock().await.unwrap();
        clean(&server).await;
    });
    let lowest = look.join().unwrap();
    // -2 is the time before the lock and after it.
    assert_ne!(lowest, 0);
}

/// The replies arrive while nobody can read them: that is not the server's silence.
#[test]
fn f17_a_blocked_runtime_keeps_its_connection() {
    let server = RedisServer::start();
    let (other, blocked) = (workers(1), single());
    let (proxy, client) = other.block_on(async {
        let proxy = Proxy::to(&server);
        let builder = Client::builder(&proxy.url()).command_timeout(ms(300));
        let client = builder.connect().await.unwrap();
        // The keeper has its connection.
        drop(client.get_lock("dropped").lock().await.unwrap());
        gone(&server, "dropped").await;
        (proxy, client)
    });
    for commands in [1, 1, 20] {
        let tries = proxy.count(Match::key("blocked:0"));
        blocked.block_on(async {
            assert!(is_free(&client, "warm").await);
            let accepted = proxy.accepted();
            proxy.latency(ms(50));
            let tried = |number| {
                let lock = client.get_lock(&format!("blocked:{number}"));
                tokio::spawn(async move { lock.try_lock(Duration::ZERO, SHORT).await.map(drop) })
            };
            let tried: Vec<_> = (0..commands).map(tried).collect();
            while tries.seen() == 0 {
                tokio::task::yield_now().await;
            }
            thread::sleep(ms(600));
            for tried in tried {
                let _ = soon(tried).await.unwrap();
            }
            proxy.latency(Duration::ZERO);
            assert!(is_free(&client, "warm").await);
            assert_eq!(proxy.accepted(), accepted, "{commands} commands");
        });
    }
}

/// The release is written only when the runtime goes on, and its answer is half a second away.
#[tokio::test]
async fn f17_a_runtime_that_is_blocked_before_it_writes_keeps_its_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).command_timeout(ms(2_000));
    let client = builder.connect().await.unwrap();
    // The keeper has its connection.
    drop(client.get_lock("dropped").lock().await.unwrap());
    gone(&server, "dropped").await;
    proxy.latency(ms(500));
    let guard = soon(client.get_lock("x").lock()).await.unwrap();
    let accepted = proxy.accepted();
    let mut unlock = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlock).await.is_none());
    thread::sleep(ms(2_200));
    if let Err(error) = soon(unlock).await {
        assert!(error.is_transient(), "{error}");
    }
    gone(&server, "x").await;
    assert!(is_free(&client, "x").await);
    assert_eq!(proxy.accepted(), accepted, "a connection was given up");
}

/// A loss is known on time, and reported as soon as anybody can listen.
#[test]
fn f17_i8_a_blocked_runtime_sees_a_loss_on_time() {
    let server = RedisServer::start();
    let runtime = single();
    runtime.block_on(async {
        let client = connect_short(&server).await;
        let guard = client.get_lock("gone").lock().await.unwrap();
        let view = guard.hold();
        server.cmd(&["DEL", "gone"]).await;
        thread::sleep(SHORT);
        assert!(!view.is_valid(), "known without the runtime");
        assert!(poll_once(&mut Box::pin(guard.lost())).await.is_some());
    });
}

/// Begins to wait for the lock, and then stays alive without being polled.
async fn unpolled(
    client: &Client,
    name: &'static str,
) -> Pin<Box<dyn Future<Output = Result<LockGuard, watchlock::Error>> + Send>> {
    let lock = client.get_lock(name);
    let mut waiting: Pin<Box<dyn Future<Output = _> + Send>> =
        Box::pin(async move { lock.lock().await });
    assert!(poll_once(&mut waiting).await.is_none());
    waiting
}

#[tokio::test]
async fn i9_a_first_try_that_nobody_polls_delays_nobody() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let waiting = unpolled(&client, "first").await;
    // It may have got the lock, but does not keep it.
    let got = soon(client.get_lock("first").lock()).await.unwrap();
    got.unlock().await.unwrap();
    soon(waiting).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// The answer to its try is seen long before the command is overdue.
#[tokio::test]
async fn i9_a_first_try_that_nobody_polls_delays_no_other_client() {
    let server = RedisServer::start();
    let patient = Client::builder(server.url()).command_timeout(ms(20_000));
    let client = patient.connect().await.unwrap();
    let other = connect(&server).await;
    let scripts = async || server.calls_of("evalsha").await + server.calls_of("eval").await;
    let before = scripts().await;
    let waiting = unpolled(&client, "first").await;
    eventually("it has the lock", LONG, async || scripts().await > before).await;
    let began = Instant::now();
    let got = soon(other.get_lock("first").lock()).await.unwrap();
    assert!(began.elapsed() < ms(5_000), "{:?}", began.elapsed());
    got.unlock().await.unwrap();
    soon(waiting).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_waiter_that_nobody_polls_delays_nobody() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let other = connect(&server).await;
    let guard = client.get_lock("branch").lock().await.unwrap();
    let mut forgotten = Vec::new();
    for _ in 0..8 {
        forgotten.push(unpolled(&client, "branch").await);
    }
    let behind = tokio::spawn({
        let (client, other) = (client.clone(), other.clone());
        async move {
            let ours = client.get_lock("branch").lock().await?;
            ours.unlock().await?;
            other.get_lock("branch").lock().await?.unlock().await
        }
    });
    guard.unlock().await.unwrap();
    let began = Instant::now();
    soon(behind).await.unwrap().unwrap();
    // All of them together have a moment to collect a grant, and not a command time-out each.
    assert!(began.elapsed() < ms(4_000), "{:?}", began.elapsed());
    // They wait again when somebody polls them.
    for waiting in forgotten {
        soon(waiting).await.unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

/// A runtime that blocks while it has waiters in front costs those of another runtime a moment, and its own keep their
/// places before the others when it goes on.
#[test]
fn i9_a_blocked_runtime_with_waiters_delays_another_runtime_for_a_moment() {
    let server = RedisServer::start();
    let (blocked, other) = (single(), single());
    let client = other.block_on(connect(&server));
    let guard = other.block_on(client.get_lock("both").lock()).unwrap();
    let (order, tasks) = blocked.block_on(async {
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for i in 0..12 {
            let (lock, order) = (client.get_lock("both"), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                order.lock().push(i);
                guard.unlock().await.unwrap();
            }));
            tokio::task::yield_now().await;
        }
        (order, tasks)
    });
    // From here on nobody drives the first runtime.
    let began = Instant::now();
    other.block_on(async {
        let behind = tokio::spawn(async move {
            let guard = client.get_lock("both").lock().await.unwrap();
            guard.unlock().await.unwrap();
        });
        tokio::task::yield_now().await;
        guard.unlock().await.unwrap();
        soon(behind).await.unwrap();
    });
    assert!(began.elapsed() < ms(4_000), "{:?}", began.elapsed());
    assert!(order.lock().is_empty());
    blocked.block_on(async {
        for task in tasks {
            soon(task).await.unwrap();
        }
    });
    assert!(order.lock().is_sorted(), "{:?}", order.lock());
    other.block_on(clean(&server));
}

/// The loop of an actor: one branch waits for the lock, and the other one's body takes its time.
#[tokio::test]
async fn i9_the_other_branch_of_a_select_loop_delays_nobody() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("select").lock().await.unwrap();
    let lock = client.get_lock("select");
    let mut waiting = Box::pin(lock.lock());
    let other = tokio::spawn({
        let lock = client.get_lock("select");
        async move { lock.lock().await }
    });
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("the lock is held"),
        () = std::future::ready(()) => {
            guard.unlock().await.unwrap();
            // While this body runs nobody polls `waiting`, which is first in line.
            soon(other).await.unwrap().unwrap().unlock().await.unwrap();
        }
    }
    soon(waiting).await.unwrap().unlock().await.unwrap();
    clean(&server).await;
}

#[tokio::test]
async fn i9_a_stream_of_acquires_that_is_not_polled_delays_nobody() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("stream");
    let mut stream = FuturesUnordered::new();
    for _ in 0..4 {
        stream.push(lock.lock());
    }
    let first = stream.next().await.unwrap().unwrap();
    let other = connect(&server).await;
    first.unlock().await.unwrap();
    // Three are left in the stream, and nobody polls them.
    let got = soon(other.get_lock("stream").lock()).await.unwrap();
    got.unlock().await.unwrap();
    while let Some(got) = soon(stream.next()).await {
        got.unwrap().unlock().await.unwrap();
    }
    clean(&server).await;
}

#[tokio::test]
async fn i9_an_unpolled_unlock_is_seen_through() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("unlock");
    let guard = lock.lock().await.unwrap();
    let mut idle = Box::pin(guard.unlock());
    assert!(poll_once(&mut idle).await.is_none());
    let guard = soon(lock.lock()).await.unwrap();
    guard.unlock().await.unwrap();
    soon(idle).await.unwrap();
    clean(&server).await;
}

#[test]
fn i9_a_second_runtime_works_while_the_first_is_idle_blocked_or_gone() {
    let server = RedisServer::start();
    let first = workers(1);
    let second = single();
    let client = first.block_on(connect(&server));
    let use_it = |name: &'static str| {
        second.block_on(async {
            let began = Instant::now();
            assert!(is_free(&client, name).await, "{name}");
            let outer = client.get_lock(name).lock().await.unwrap();
            outer
                .reenter(Lease::Watchdog)
                .await
                .unwrap()
                .unlock()
                .await
                .unwrap();
            outer.unlock().await.unwrap();
            assert!(began.elapsed() < ms(3_000), "{name}: {:?}", began.elapsed());
        });
    };
    use_it("idle");
    thread::scope(|scope| {
        scope.spawn(|| block_all(&first, 1, ms(4_000)));
        use_it("blocked");
    });
    drop(first);
    use_it("gone");
    second.block_on(clean(&server));
}

/// What the first runtime began does not block the second one's callers.
#[test]
fn i9_an_acquire_on_a_runtime_that_stopped_delays_nobody() {
    let server = RedisServer::start();
    let stopped = single();
    let second = single();
    let client = second.block_on(connect(&server));
    let lock = client.get_lock("begun");
    let mut begun = Box::pin(lock.lock());
    assert!(stopped.block_on(poll_once(&mut begun)).is_none());
    // From here on nobody drives the first runtime, or polls what it began.
    second.block_on(async {
        let got = soon(client.get_lock("begun").lock()).await.unwrap();
        got.unlock().await.unwrap();
    });
    drop(begun);
    drop(stopped);
    second.block_on(async {
        gone(&server, "begun").await;
        assert!(is_free(&client, "begun").await);
        clean(&server).await;
    });
}

/// A grant whose caller's runtime is blocked goes to the next one after a while.
#[test]
fn i9_a_grant_to_a_blocked_runtime_goes_on_to_the_next_one() {
    let server = RedisServer::start();
    let blocked = workers(1);
    let second = single();
    let client = second.block_on(connect(&server));
    let guard = second.block_on(client.get_lock("passed").lock()).unwrap();
    let waiting = blocked.spawn({
        let lock = client.get_lock("passed");
        async move { lock.lock().await.map(drop) }
    });
    second.block_on(crate::common::subscribed(&server, "passed"));
    thread::scope(|scope| {
        let free_again = scope.spawn(|| block_all(&blocked, 1, ms(6_000)));
        second.block_on(async {
            guard.unlock().await.unwrap();
            let other = connect(&server).await;
            let got = soon(other.get_lock("passed").lock()).await.unwrap();
            assert!(!free_again.is_finished(), "not by waiting for the runtime");
            got.unlock().await.unwrap();
        });
    });
    let done = second.block_on(async { tokio::time::timeout(LONG, waiting).await });
    done.unwrap().unwrap().unwrap();
    second.block_on(async {
        clean(&server).await;
        eventually("free", LONG, async || is_free(&client, "passed").await).await;
    });
}
