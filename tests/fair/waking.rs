//! A release wakes the first waiter, of whichever client, and that one tries. Everybody polls only once a minute here.

use std::time::{Duration, Instant};

use watchlock::{Backoff, Client, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Aim, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, script, soon};
use crate::{LINE, QUEUE, SCORES, WAITERS, Waiter, gets_in, queue, queued, waiter};

/// A server, a client, and a second client behind a proxy that polls once a minute.
struct Scene {
    server: RedisServer,
    other: Client,
    client: Client,
    proxy: Proxy,
}

impl Scene {
    async fn new() -> Self {
        let server = RedisServer::start();
        let other = connect(&server).await;
        let proxy = Proxy::to(&server);
        let minute = Backoff::new().base(ms(60_000)).cap(ms(60_000));
        let builder = Client::builder(&proxy.url()).backoff(minute);
        // The client does not give up a slow connection.
        let builder = builder.command_timeout(LONG);
        let client = builder.connect().await.expect("a client");
        let scene = Self {
            server,
            other,
            client,
            proxy,
        };
        // A script that the server does not know is sent again, and might run after a try.
        let held = scene.held().await;
        let (waiting, _) = scene.waits().await;
        held.unlock().await.unwrap();
        ends(waiting).await;
        scene
    }

    /// The other client has the lock.
    async fn held(&self) -> LockGuard {
        self.other.get_fair_lock(LINE).lock().await.unwrap()
    }

    /// One who waits for the lock and listens, and its place.
    async fn waits(&self) -> (Waiter, String) {
        let (waiting, place) = waiter(&self.server, &self.client).await;
        let one = async || self.server.subscribers(&channel(&place)).await == 1;
        eventually("it listens", LONG, one).await;
        // It tries once when it listens, and not again for a minute.
        let mut calls = 0;
        while calls != self.server.calls_of("evalsha").await {
            calls = self.server.calls_of("evalsha").await;
            tokio::time::sleep(ms(50)).await;
        }
        (waiting, place)
    }

    fn tries(&self) -> Aim {
        let text = script("fair/acquire.lua");
        self.proxy.count(Match::script(&text).and(Match::key(LINE)))
    }

    async fn end(self) {
        drop((self.client, self.other));
        clean(&self.server).await;
    }
}

/// The waiter gets the lock, and gives it back.
async fn ends(waiting: Waiter) {
    let guard = soon(waiting).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

fn channel(place: &str) -> String {
    format!("redisson_lock__channel:{{line}}:{place}")
}

#[tokio::test]
async fn a_release_wakes_the_first_of_another_client_which_tries_once() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (first, place) = scene.waits().await;
    let (second, next) = scene.waits().await;
    let tries = scene.tries();
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert_eq!(tries.seen(), 1);
    assert_eq!(server.hash(LINE).await, [(place, "1".to_owned())].into());
    assert!(server.pttl(LINE).await > 20_000, "the whole lease");
    assert_eq!(queue(server).await, [next]);
    assert!(!second.is_finished());
    guard.unlock().await.unwrap();
    ends(second).await;
    scene.end().await;
}

/// The lock is free until the woken waiter tries.
#[tokio::test]
async fn who_gives_up_before_it_hears_of_its_turn_passes_it_on() {
    let scene = Scene::new().await;
    let held = scene.held().await;
    let (waiting, place) = scene.waits().await;
    let late = Match::message(&channel(&place));
    let late = scene.proxy.inject(Fault::DelayReply(ms(5_000))).on(late);
    let late = late.always().arm();
    let (next, _) = waiter(&scene.server, &connect(&scene.server).await).await;
    held.unlock().await.unwrap();
    eventually("the message is late", LONG, async || late.fired() > 0).await;
    assert!(!scene.server.exists(LINE).await);
    let left = Instant::now();
    waiting.abort();
    ends(next).await;
    assert!(left.elapsed() < ms(3_000));
    scene.end().await;
}

/// The very first try takes no place, so the others have places ahead of it.
#[tokio::test]
async fn those_who_come_at_once_wait_for_no_poll() {
    let scene = Scene::new().await;
    for _ in 0..5 {
        let held = scene.held().await;
        let lock = || scene.client.get_fair_lock(LINE);
        let waiting = [lock(), lock(), lock()].map(|lock| {
            tokio::spawn(async move { lock.lock().await.unwrap().unlock().await.unwrap() })
        });
        let queues = async || !queue(&scene.server).await.is_empty();
        eventually("they queue", LONG, queues).await;
        let released = Instant::now();
        held.unlock().await.unwrap();
        for waiter in waiting {
            soon(waiter).await.unwrap();
        }
        assert!(released.elapsed() < Duration::from_secs(5));
    }
    scene.end().await;
}

#[tokio::test]
async fn who_lost_its_place_still_comes_before_the_later_ones_of_its_client() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (first, place) = scene.waits().await;
    let (second, _) = scene.waits().await;
    server.cmd(&["LREM", QUEUE, "1", &place]).await;
    server.cmd(&["ZREM", SCORES, &place]).await;
    server.cmd(&["ZREM", WAITERS, &place]).await;
    // The client vouches for its places every 5 s.
    queued(server, 2).await;
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    guard.unlock().await.unwrap();
    ends(second).await;
    scene.end().await;
}

/// Its client vouches for it between two tries, although each try takes it out of the client's queue for a moment.
#[tokio::test]
async fn who_rarely_tries_keeps_its_place() {
    let scene = Scene::new().await;
    let held = scene.held().await;
    let (waiting, place) = scene.waits().await;
    tokio::time::sleep(Duration::from_secs(17)).await; // longer than a place is kept
    assert!(!gets_in(&scene.other).await);
    let (next, _) = waiter(&scene.server, &connect(&scene.server).await).await;
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(scene.server.hash(LINE).await.contains_key(&place));
    assert!(!next.is_finished());
    guard.unlock().await.unwrap();
    ends(next).await;
    scene.end().await;
}
