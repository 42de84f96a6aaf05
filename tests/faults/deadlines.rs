//! I6: whatever the server does, every call ends in time.

use std::time::{Duration, Instant};

use watchlock::{Client, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use super::{BEFORE_THE_LEASE, HALF_A_MINUTE, TIMEOUT, hasty, minute, proxied};
use crate::common::{clean, connect, connect_short, ms, poll_once, soon, subscribed};

/// What a busy machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(700);

/// A way of not answering, and how it ends.
type Trouble = (
    &'static str,
    fn(&RedisServer, &Proxy),
    fn(&RedisServer, &Proxy),
);

const TROUBLES: [Trouble; 5] = [
    (
        "frozen",
        |server, _| server.freeze(),
        |server, _| server.resume(),
    ),
    (
        "gone",
        |server, _| server.kill(),
        |server, _| server.restart(),
    ),
    (
        "held up",
        |_, proxy| proxy.hold(Direction::Both),
        |_, proxy| proxy.heal(),
    ),
    (
        "swallowed",
        |_, proxy| proxy.black_hole(Direction::Replies),
        |_, proxy| {
            proxy.heal();
            proxy.reset_all();
        },
    ),
    (
        "refused",
        |_, proxy| {
            proxy.refuse();
            proxy.reset_all();
        },
        |_, proxy| proxy.accept(),
    ),
];

#[tokio::test]
async fn i6_every_try_and_every_unlock_ends_in_time_and_the_client_recovers() {
    for (trouble, begin, end) in TROUBLES {
        let (server, proxy) = proxied().await;
        let client = hasty(&proxy.url()).connect().await.unwrap();
        let guard = client
            .get_lock("held")
            .lock_with_lease(HALF_A_MINUTE)
            .await
            .unwrap();
        begin(&server, &proxy);
        for wait in [Duration::ZERO, ms(50), TIMEOUT * 2] {
            let began = Instant::now();
            let lock = client.get_lock("new");
            let silent = lock.try_lock(wait, Lease::Watchdog).await;
            let took = began.elapsed();
            let unavailable = matches!(silent, Err(Error::Unavailable { .. }));
            assert!(unavailable, "{trouble}, {wait:?}: {silent:?}");
            assert!(
                took < wait.max(TIMEOUT) + SLACK,
                "{trouble}, {wait:?}: {took:?}"
            );
        }
        let began = Instant::now();
        let unlocked = guard.unlock().await;
        assert!(
            matches!(unlocked, Err(Error::Unavailable { .. })),
            "{trouble}: {unlocked:?}"
        );
        assert!(
            began.elapsed() < TIMEOUT + SLACK,
            "{trouble}: {:?}",
            began.elapsed()
        );
        end(&server, &proxy);
        let lock = client.get_lock("new");
        let again = lock.try_lock(BEFORE_THE_LEASE, Lease::Watchdog).await;
        let again = again.unwrap_or_else(|error| panic!("{trouble}: {error}"));
        again.expect("free").unlock().await.unwrap();
        clean(&server).await;
    }
}

#[tokio::test]
async fn i6_a_stalled_server_delays_no_end_of_a_client() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("held").lock().await.unwrap();
    server.freeze();
    let began = Instant::now();
    client.shutdown(ms(200)).await;
    assert!(began.elapsed() < ms(1_000) + SLACK, "{:?}", began.elapsed());
    assert!(!guard.is_valid());
    drop(guard);
    let outside = std::thread::spawn({
        let url = server.url();
        move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let made = runtime.block_on(Client::builder(&url).connect_timeout(TIMEOUT).connect());
            made.map(drop).unwrap_err()
        }
    });
    let failed = outside.join().unwrap();
    assert!(matches!(failed, Error::Unavailable { .. }), "{failed:?}");
    server.resume();
    clean(&server).await;
}

/// A server that refuses to answer a PING is alive all the same.
#[tokio::test]
async fn a_refused_ping_does_not_end_a_subscription() {
    let (server, proxy) = proxied().await;
    let stranger = connect(&server).await;
    let held = stranger
        .get_lock("ping")
        .lock_with_lease(HALF_A_MINUTE)
        .await
        .unwrap();
    let client = hasty(&proxy.url())
        .backoff(minute())
        .connect()
        .await
        .unwrap();
    let lock = client.get_lock("ping");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "ping").await;
    let subscribes = proxy.count(Match::command("SUBSCRIBE"));
    let no = Fault::Answer("MISCONF Errors writing to disk".to_owned());
    let pings = proxy.inject(no).on(Match::command("PING")).always().arm();
    eventually("asked twice", BEFORE_THE_LEASE, async || pings.fired() >= 2).await;
    assert_eq!(subscribes.seen(), 0);
    held.unlock().await.unwrap();
    let got = tokio::time::timeout(BEFORE_THE_LEASE, waiter).await;
    got.unwrap().unwrap().unwrap().unlock().await.unwrap();
    clean(&server).await;
}

/// Its first poll sent the release; another task waits for the answer.
#[tokio::test]
async fn i6_an_unlock_that_moved_to_another_task_ends_in_time() {
    let (server, proxy) = proxied().await;
    let client = hasty(&proxy.url()).connect().await.unwrap();
    let lock = client.get_lock("held");
    let guard = lock.lock_with_lease(HALF_A_MINUTE).await.unwrap();
    let silent = proxy
        .inject(Fault::SwallowRequest)
        .on(Match::script(super::RELEASE));
    let silent = silent.always().arm();
    let mut unlocking = Box::pin(guard.unlock());
    assert!(poll_once(&mut unlocking).await.is_none());
    let unlocked = soon(tokio::spawn(unlocking)).await.unwrap();
    assert!(
        matches!(unlocked, Err(Error::Unavailable { .. })),
        "{unlocked:?}"
    );
    silent.cancel();
    clean(&server).await;
}

/// One time-out, not the caller's and then the keeper's.
#[tokio::test]
async fn i6_an_unlock_that_nobody_answers_ends_with_the_first_time_out() {
    let timeout = TIMEOUT * 10;
    let (server, proxy) = proxied().await;
    let client = Client::builder(&proxy.url()).command_timeout(timeout);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("held");
    let guard = lock.lock_with_lease(HALF_A_MINUTE).await.unwrap();
    let silence = Fault::SwallowRequest;
    proxy
        .inject(silence)
        .on(Match::script(super::RELEASE))
        .arm();
    let began = Instant::now();
    match guard.unlock().await {
        Ok(()) | Err(Error::Unavailable { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    let took = began.elapsed();
    assert!(took < timeout + timeout / 2, "{took:?}");
    clean(&server).await;
}

/// The time that it took to connect belongs to the wait. The answer would come later than that.
#[tokio::test]
async fn i6_a_try_that_was_sent_late_ends_with_its_wait() {
    let (server, proxy) = proxied().await;
    let timeout = ms(1_500);
    let client = Client::builder(&proxy.url()).command_timeout(timeout);
    let client = client.connect().await.unwrap();
    proxy.latency(timeout * 3 / 4);
    let lock = client.get_lock("new");
    // A runtime has a connection of its own.
    let trying = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(lock.try_lock(Duration::ZERO, Lease::Watchdog))
    });
    let tried = soon(trying).await.unwrap();
    assert!(
        matches!(&tried, Err(error @ Error::Unavailable { .. }) if error.was_sent()),
        "{tried:?}"
    );
    proxy.latency(Duration::ZERO);
    clean(&server).await;
}
