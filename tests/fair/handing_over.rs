//! A release hands the lock over to the first who waits in another client: that one has it without a try.

use std::time::{Duration, Instant};

use watchlock::{Backoff, Client, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::{Aim, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, ms, script, soon};
use crate::{LINE, Waiter, gets_in, queue, queued, waiter};

/// A server, a client, and one that polls once a minute, with what is between it and the server.
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
        // A connection that is slow is not given up.
        let builder = builder.command_timeout(LONG);
        let client = builder.connect().await.expect("a client");
        let scene = Self {
            server,
            other,
            client,
            proxy,
        };
        // A script that the server does not know is sent again, and may come behind a try then.
        let held = scene.held().await;
        let (waiting, _) = scene.waits().await;
        held.unlock().await.unwrap();
        soon(waiting)
            .await
            .unwrap()
            .unwrap()
            .unlock()
            .await
            .unwrap();
        scene
    }

    /// The other client has the lock.
    async fn held(&self) -> LockGuard {
        self.other.get_fair_lock(LINE).lock().await.unwrap()
    }

    /// One who waits for the lock and listens, and its place.
    async fn waits(&self) -> (Waiter, String) {
        let (waiting, place) = waiter(&self.server, &self.client).await;
        self.listens(&place).await;
        (waiting, place)
    }

    /// Waits until a place is listened for, and all that goes with it is answered.
    async fn listens(&self, place: &str) {
        let one = async || self.server.subscribers(&channel(place)).await == 1;
        eventually("it listens", LONG, one).await;
        // It tries once when it listens, and not again for a minute.
        let mut calls = 0;
        while calls != self.server.calls_of("evalsha").await {
            calls = self.server.calls_of("evalsha").await;
            tokio::time::sleep(ms(50)).await;
        }
    }

    fn tries(&self) -> Aim {
        let text = script("fair/acquire.lua").expect("a script");
        self.proxy.count(Match::script(&text).and(Match::key(LINE)))
    }

    async fn has_it(&self, place: &str) {
        let held = async || self.server.hash(LINE).await.contains_key(place);
        eventually("it has the lock", LONG, held).await;
    }

    async fn ends(self) {
        drop((self.client, self.other));
        clean(&self.server).await;
    }
}

fn channel(place: &str) -> String {
    format!("redisson_lock__channel:{{line}}:{place}")
}

#[tokio::test]
async fn who_is_first_has_the_lock_without_a_try_and_the_watchdog_renews_it() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (first, place) = scene.waits().await;
    let (second, next) = scene.waits().await;
    let tries = scene.tries();
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert_eq!(tries.seen(), 0);
    assert_eq!(server.hash(LINE).await, [(place, "1".to_owned())].into());
    let renewed = async || server.pttl(LINE).await > 20_000;
    // Its place was vouched for up to 15 s only.
    eventually("it is renewed", ms(2_000), renewed).await;
    guard.verify().await.unwrap();
    assert_eq!(queue(server).await, [next]);
    guard.unlock().await.unwrap();
    let guard = soon(second).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    scene.ends().await;
}

#[tokio::test]
async fn a_lease_of_its_own_is_tried_for() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let lock = scene.client.get_fair_lock(LINE);
    let waiting = tokio::spawn(async move { lock.lock_for(Duration::from_secs(60)).await });
    queued(server, 1).await;
    let place = queue(server).await.remove(0);
    scene.listens(&place).await;
    let tries = scene.tries();
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_eq!(tries.seen(), 1);
    assert!(server.pttl(LINE).await > 50_000);
    guard.unlock().await.unwrap();
}

/// Up to when it would be valid is counted from when its place was given, so too little would be left.
#[tokio::test]
async fn who_waited_for_long_tries() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (waiting, _) = scene.waits().await;
    tokio::time::sleep(Duration::from_secs(11)).await; // the age of its place
    let tries = scene.tries();
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert_eq!(tries.seen(), 1);
    assert!(server.pttl(LINE).await > 20_000);
    assert!(guard.valid_for() > Duration::from_secs(20));
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_hand_over_that_nobody_hears_costs_a_poll() {
    let scene = Scene::new().await;
    let proxy = Proxy::to(&scene.server);
    let polls = Client::connect(&proxy.url()).await.unwrap();
    let held = scene.held().await;
    let (waiting, place) = waiter(&scene.server, &polls).await;
    let one = async || scene.server.subscribers(&channel(&place)).await == 1;
    eventually("it listens", LONG, one).await;
    let lost = Match::message(&channel(&place));
    let lost = proxy.inject(Fault::SwallowReply).on(lost).always().arm();
    held.unlock().await.unwrap();
    scene.has_it(&place).await;
    let released = Instant::now();
    let guard = soon(waiting).await.unwrap().unwrap();
    assert!(lost.fired() > 0);
    assert!(released.elapsed() < Duration::from_secs(3));
    guard.unlock().await.unwrap();
    drop(polls);
    scene.ends().await;
}

#[tokio::test]
async fn who_gives_up_while_it_is_handed_the_lock_gives_it_back() {
    let scene = Scene::new().await;
    let held = scene.held().await;
    let (waiting, place) = scene.waits().await;
    let late = Match::message(&channel(&place));
    let late = scene.proxy.inject(Fault::DelayReply(ms(5_000))).on(late);
    let late = late.always().arm();
    held.unlock().await.unwrap();
    scene.has_it(&place).await;
    eventually("the message is late", LONG, async || late.fired() > 0).await;
    waiting.abort();
    let free = async || gets_in(&scene.other).await;
    eventually("it is free again", ms(3_000), free).await;
    scene.ends().await;
}

/// The first try of all takes no place, so the others have theirs ahead of it.
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
    scene.ends().await;
}

#[tokio::test]
async fn where_the_first_one_lost_its_place_nobody_is_handed_the_lock() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (first, place) = scene.waits().await;
    let (second, next) = scene.waits().await;
    let [list, scores, waiters] = [
        "redisson_lock_queue:{line}",
        "redisson_lock_timeout:{line}",
        "watchlock_waiters:{line}",
    ];
    let arrival = async || server.query::<String>(&["ZSCORE", waiters, &next]).await;
    assert!(arrival().await.ends_with(".5"), "it takes hand-overs");
    server.cmd(&["LREM", list, "1", &place]).await;
    server.cmd(&["ZREM", scores, &place]).await;
    server.cmd(&["ZREM", waiters, &place]).await;
    // The client vouches for its places every 5 s.
    queued(server, 2).await;
    assert!(!arrival().await.ends_with(".5"), "it does not");
    let tries = scene.tries();
    held.unlock().await.unwrap();
    let guard = soon(first).await.unwrap().unwrap();
    assert!(tries.seen() > 0);
    assert!(!second.is_finished());
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
    scene.ends().await;
}

/// The places of a client may be in another order than its waiters, when Redis lost some. The message does not come.
#[tokio::test]
async fn a_hand_over_to_another_than_the_first_is_found_by_a_poll() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let polls = connect(server).await;
    let held = scene.held().await;
    let (first, _) = waiter(server, &polls).await;
    let (second, place) = waiter(server, &polls).await;
    // As the release does for the head of the queue.
    let text = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], '1') redis.call('PEXPIRE', KEYS[1], 15000) \
                redis.call('LREM', KEYS[2], 1, ARGV[1]) redis.call('ZREM', KEYS[3], ARGV[1]) redis.call('ZREM', KEYS[4], ARGV[1])";
    let keys = [
        LINE,
        "redisson_lock_queue:{line}",
        "redisson_lock_timeout:{line}",
        "watchlock_waiters:{line}",
    ];
    let call = [&["EVAL", text, "4"], keys.as_slice(), &[&place]].concat();
    server.cmd(&call).await;
    let handed_over = Instant::now();
    let guard = soon(first).await.unwrap().unwrap();
    assert!(handed_over.elapsed() < Duration::from_secs(5));
    guard.unlock().await.unwrap();
    soon(second).await.unwrap().unwrap().unlock().await.unwrap();
    assert!(held.unlock().await.expect_err("it was taken").is_lost());
    drop(polls);
    scene.ends().await;
}

/// It was taken away before the client heard of it, and the client has asked for the place of the same hold anew.
#[tokio::test]
async fn a_hand_over_that_is_heard_late_is_not_believed() {
    let scene = Scene::new().await;
    let server = &scene.server;
    let held = scene.held().await;
    let (waiting, place) = scene.waits().await;
    // The wake-up is lost, and what says that it has the lock comes late.
    let (lost, late) = (Fault::SwallowReply, Fault::DelayReply(ms(8_000)));
    let said = || Match::message(&channel(&place));
    scene.proxy.inject(lost).on(said()).arm();
    let late = scene.proxy.inject(late).on(said()).nth(2).arm();
    held.unlock().await.unwrap();
    scene.has_it(&place).await;
    assert!(
        scene
            .other
            .get_fair_lock(LINE)
            .force_unlock()
            .await
            .unwrap()
    );
    let held = scene.held().await;
    // The client vouches for its place every 5 s.
    queued(server, 1).await;
    assert_eq!(queue(server).await, [place]);
    let tries = scene.tries();
    eventually("it hears of it, and tries", LONG, async || tries.seen() > 0).await;
    assert_eq!(late.fired(), 1);
    held.verify().await.unwrap();
    assert!(!waiting.is_finished());
    held.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
    scene.ends().await;
}

/// Between two tries it vouches, although the first one took it out of the queue of its client for a moment.
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
    soon(next).await.unwrap().unwrap().unlock().await.unwrap();
    scene.ends().await;
}
