//! Inside a client a lock goes from one to the next in one round trip: the release and the next try
//! travel together.

use tokio::task::JoinHandle;
use watchlock::{Client, Error, LockGuard, ReentrantLock};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, gone, ms, poll_once, soon, subscribed};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/lock/release.lua");

type Waiter = JoinHandle<Result<LockGuard, Error>>;

/// The lock held, and others waiting for it in line; the next release will be a hand-over.
struct Line {
    server: RedisServer,
    proxy: Proxy,
    lock: ReentrantLock,
    guard: LockGuard,
    waiters: std::vec::IntoIter<Waiter>,
}

impl Line {
    async fn of(waiters: usize) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = Client::connect(&proxy.url()).await.unwrap();
        let lock = client.get_lock("line");
        let first = lock.lock().await.unwrap();
        let mut line = Vec::new();
        for _ in 0..=waiters {
            let lock = lock.clone();
            let mut waiting = Box::pin(async move { lock.lock().await });
            assert!(poll_once(&mut waiting).await.is_none());
            line.push(tokio::spawn(waiting));
        }
        subscribed(&server, "line").await;
        eventually(
            "the client knows it, and looks after the hold",
            LONG,
            async || server.calls_of("hexists").await > 0,
        )
        .await;
        let mut waiters = line.into_iter();
        // This one tells that nobody else listens.
        first.unlock().await.unwrap();
        let guard = soon(waiters.next().unwrap()).await.unwrap().unwrap();
        Self {
            server,
            proxy,
            lock,
            guard,
            waiters,
        }
    }

    /// How many holds were started so far. What the next release does is done long before it is answered.
    async fn answer_the_release_late(&self) -> u64 {
        let late = Fault::DelayReply(ms(700));
        let on = Match::script(RELEASE).and(Match::key("line"));
        self.proxy.inject(late).on(on).arm();
        self.server.calls_of("hset").await
    }
}

async fn one_more_than(tries: u64, server: &RedisServer) {
    eventually("the next one has it", LONG, async || {
        server.calls_of("hset").await > tries
    })
    .await;
}

#[tokio::test]
async fn a_client_hands_a_lock_over_in_one_round_trip() {
    let mut line = Line::of(1).await;
    let tries = line.answer_the_release_late().await;
    let unlocking = tokio::spawn(line.guard.unlock());
    one_more_than(tries, &line.server).await;
    assert!(!unlocking.is_finished(), "nobody has heard of the release");
    soon(unlocking).await.unwrap().unwrap();
    let next = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}

#[tokio::test]
async fn i9_one_who_leaves_while_the_lock_is_handed_over_keeps_it_from_nobody() {
    let mut line = Line::of(2).await;
    let late = Fault::DelayRequest(ms(200));
    let on = Match::script(ACQUIRE).and(Match::key("line"));
    let aim = line.proxy.inject(late).on(on).arm();
    let unlocking = tokio::spawn(line.guard.unlock());
    eventually("the try is on its way", LONG, async || aim.fired() == 1).await;
    line.waiters.next().unwrap().abort();
    soon(unlocking).await.unwrap().unwrap();
    let next = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    gone(&line.server, "line").await;
    drop(line.lock);
    clean(&line.server).await;
}

#[tokio::test]
async fn i5_a_hand_over_whose_commands_or_replies_are_lost_comes_to_its_end() {
    for fault in [
        Fault::SwallowRequest,
        Fault::SwallowReply,
        Fault::ResetBefore,
        Fault::ResetAfter,
    ] {
        for script in [RELEASE, ACQUIRE] {
            let line = Line::of(2).await;
            let on = Match::script(script).and(Match::key("line"));
            let aim = line.proxy.inject(fault.clone()).on(on).arm();
            match soon(line.guard.unlock()).await {
                Ok(()) | Err(Error::Unavailable { .. }) => {}
                Err(error) => panic!("{}: {error}", fault.kind()),
            }
            eventually("it was hit", LONG, async || aim.fired() == 1).await;
            let (server, proxy) = (line.server, line.proxy);
            for waiter in line.waiters {
                soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
            }
            gone(&server, "line").await;
            drop((line.lock, proxy));
        }
    }
}

#[tokio::test]
async fn a_dropped_guard_hands_over_as_well() {
    let mut line = Line::of(1).await;
    let tries = line.answer_the_release_late().await;
    drop(line.guard);
    one_more_than(tries, &line.server).await;
    let waiter = line.waiters.next().unwrap();
    assert!(!waiter.is_finished(), "nobody has heard of the release");
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}
