//! Inside a client a lock goes from one to the next in one round trip if it cannot be passed on: the release and the
//! next try travel together.

use std::future::ready;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};
use watchlock::{
    Backoff, Client, ClientBuilder, Clock, ClockDriver, Error, LockGuard, ReentrantLock,
};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, clean, connect, gone, ms, poll_once, soon, subscribed, try_once};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/lock/release.lua");
/// For how long a lock goes from one to the next here, and for how long it is left free then.
const ROW: Duration = ms(10);
const FREE: Duration = ms(1);
/// A lease that no test waits for.
const HOUR: Duration = Duration::from_secs(3_600);

type Waiter = JoinHandle<Result<LockGuard, Error>>;

/// The lock held, and others waiting for it in line; the next release will be a hand-over.
struct Line {
    server: RedisServer,
    proxy: Proxy,
    lock: ReentrantLock,
    guard: LockGuard,
    waiters: std::vec::IntoIter<Waiter>,
    /// It stands still, so that no row ends too early.
    clock: ClockDriver,
}

impl Line {
    async fn of(waiters: usize) -> Self {
        Self::by(waiters, |builder| builder).await
    }

    async fn by(waiters: usize, settings: fn(ClientBuilder) -> ClientBuilder) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let (clock, driver) = Clock::driven();
        let builder = Client::builder(&proxy.url()).clock(clock).pass_on(false);
        let client = settings(builder).connect().await.unwrap();
        driver.stop();
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
        // This release reports that nobody else listens.
        first.unlock().await.unwrap();
        let guard = soon(waiters.next().unwrap()).await.unwrap().unwrap();
        Self {
            server,
            proxy,
            lock,
            guard,
            waiters,
            clock: driver,
        }
    }

    /// Keeps all replies back until the proxy is healed. Returns how many holds were started so far.
    async fn hold_replies(&self) -> u64 {
        let tries = self.server.calls_of("hset").await;
        self.proxy.hold(Direction::Replies);
        tries
    }
}

/// With it, nothing times out while replies are kept back.
fn patient(builder: ClientBuilder) -> ClientBuilder {
    builder.command_timeout(Duration::from_secs(60))
}

async fn one_more_than(tries: u64, server: &RedisServer) {
    eventually("the next one has it", LONG, async || {
        server.calls_of("hset").await > tries
    })
    .await;
}

#[tokio::test]
async fn a_client_hands_a_lock_over_in_one_round_trip() {
    let mut line = Line::by(1, patient).await;
    let tries = line.hold_replies().await;
    let unlocking = tokio::spawn(line.guard.unlock());
    one_more_than(tries, &line.server).await;
    assert!(!unlocking.is_finished(), "nobody has heard of the release");
    line.proxy.heal();
    soon(unlocking).await.unwrap().unwrap();
    let next = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    next.unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}

#[tokio::test]
async fn i9_a_waiter_that_leaves_during_a_hand_over_keeps_the_lock_from_nobody() {
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
async fn i5_a_hand_over_whose_commands_or_replies_are_lost_completes() {
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
            let mut unlocking = Box::pin(line.guard.unlock());
            assert!(poll_once(&mut unlocking).await.is_none());
            line.clock.go_on();
            match soon(unlocking).await {
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
    let mut line = Line::by(1, patient).await;
    let tries = line.hold_replies().await;
    drop(line.guard);
    one_more_than(tries, &line.server).await;
    let waiter = line.waiters.next().unwrap();
    assert!(!waiter.is_finished(), "nobody has heard of the release");
    line.proxy.heal();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}

/// Redis does not count waiters that poll without a subscription, and they get in this way.
#[tokio::test]
async fn behind_ten_milliseconds_of_hand_overs_the_lock_is_left_free_for_one() {
    let mut line = Line::of(2).await;
    let stranger = connect(&line.server).await;
    line.guard.unlock().await.unwrap();
    let second = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    line.clock.advance(ROW);
    second.unlock().await.unwrap();
    let theirs = try_once(&stranger, "line").await.unwrap();
    let theirs = theirs.expect("it is left free");
    line.clock.advance(FREE);
    theirs.unlock().await.unwrap();
    let third = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    third.unlock().await.unwrap();
    drop((line.lock, stranger));
    clean(&line.server).await;
}

/// The release failed, so the try behind it found the hold that was to end, and no message says when that has ended.
#[tokio::test]
async fn i5_a_try_that_was_answered_by_the_hold_before_it_is_made_again() {
    let minute = |builder: ClientBuilder| {
        let rare = Backoff::new().base(ms(60_000)).cap(ms(60_000));
        builder.backoff(rare).watchdog_lease(HOUR)
    };
    let mut line = Line::by(1, minute).await;
    let loading = Fault::Answer("LOADING Redis is loading the dataset in memory".to_owned());
    let on = Match::script(RELEASE).and(Match::key("line"));
    let aim = line.proxy.inject(loading).on(on).arm();
    let tries = line
        .proxy
        .count(Match::script(ACQUIRE).and(Match::key("line")));
    drop(line.guard);
    let next = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    assert_eq!((aim.fired(), tries.seen()), (1, 2));
    next.unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}

/// Nobody is left to give back the lock that the next one gets.
#[tokio::test]
async fn i7_the_end_of_a_client_waits_for_a_hand_over_that_is_under_way() {
    let long = |builder: ClientBuilder| builder.watchdog_lease(HOUR);
    let line = Line::by(1, long).await;
    let tries = line.server.calls_of("hset").await;
    line.proxy.hold(Direction::Replies);
    drop(line.guard);
    one_more_than(tries, &line.server).await;
    for waiter in line.waiters {
        waiter.abort();
        assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    }
    drop(line.lock);
    line.proxy.heal();
    clean(&line.server).await;
}

/// Its waiter hears of a release that cannot be made, though its own try is under way behind it.
#[tokio::test]
async fn i6_a_waiter_for_a_lock_that_cannot_be_handed_over_gets_an_error() {
    let hasty = |builder: ClientBuilder| {
        let builder = builder
            .command_timeout(ms(800))
            .unavailable_after(ms(1_600));
        builder.watchdog_lease(HOUR)
    };
    let mut line = Line::by(1, hasty).await;
    let noreplicas = Fault::Answer("NOREPLICAS Not enough good replicas to write.".to_owned());
    let on = Match::script(RELEASE).and(Match::key("line"));
    let aim = line.proxy.inject(noreplicas).on(on).always().arm();
    drop(line.guard);
    line.clock.go_on();
    let answer = soon(line.waiters.next().unwrap()).await.unwrap();
    assert!(matches!(answer, Err(Error::Refused { .. })), "{answer:?}");
    aim.cancel();
    drop(line.lock);
    clean(&line.server).await;
}

/// An action that runs once, in the middle of what wakes it.
struct Meanwhile(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Meanwhile {
    fn wake(self: Arc<Self>) {
        let then = self.0.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
    }
}

/// Releases (r) and tries (a) of the lock, in the order in which they are sent from now on.
fn order(proxy: &Proxy) -> Arc<Mutex<String>> {
    let sent = Arc::new(Mutex::new(String::new()));
    for (script, letter) in [(RELEASE, 'r'), (ACQUIRE, 'a')] {
        let sent = Arc::clone(&sent);
        let log = Match::when(move |_| {
            sent.lock().unwrap().push(letter);
            true
        });
        let on = Match::script(script).and(Match::key("line")).and(log);
        drop(proxy.count(on));
    }
    sent
}

/// An acquire on a thread of its own, which begins when `go` arrives.
fn comes_at(
    go: Arc<AtomicBool>,
    lock: ReentrantLock,
) -> JoinHandle<impl Future<Output = Result<LockGuard, Error>>> {
    let runtime = Handle::current();
    spawn_blocking(move || {
        let mut comes = Box::pin(async move { lock.lock().await });
        let _entered = runtime.enter();
        // A test that fails is not awaited for ever.
        let begun = Instant::now();
        while !go.load(Ordering::SeqCst) && begun.elapsed() < LONG {
            spin_loop();
        }
        match comes.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(came) => ready(came).left_future(),
            Poll::Pending => comes.right_future(),
        }
    })
}

/// The waiter that the try was sent for goes away, and another one comes at the moment at which the release is settled:
/// it must not get into the seat between the two. Otherwise the next hand-over would forget the try that is under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_try_sent_along_has_the_seat_before_any_newcomer() {
    let line = Line::of(0).await;
    let (proxy, lock, mut guard) = (&line.proxy, &line.lock, line.guard);
    for round in 0..100 {
        guard.unlock().await.unwrap();
        let held = lock.lock().await.unwrap();
        let waiter = lock.clone();
        let mut leaves = Box::pin(async move { waiter.lock().await });
        assert!(poll_once(&mut leaves).await.is_none());
        let sent = order(proxy);
        let on = Match::script(ACQUIRE).and(Match::key("line"));
        proxy.inject(Fault::DelayRequest(ms(5))).on(on).arm();

        let go = Arc::new(AtomicBool::new(false));
        let comes = comes_at(Arc::clone(&go), lock.clone());
        // The keeper does this while it settles the release. The length of the moment varies with the round.
        let meanwhile: Box<dyn FnOnce() + Send> = Box::new(move || {
            drop(leaves);
            let now = Instant::now();
            go.store(true, Ordering::SeqCst);
            while now.elapsed() < Duration::from_nanos(round % 50 * 400) {
                spin_loop();
            }
        });
        let waker = Waker::from(Arc::new(Meanwhile(Mutex::new(Some(meanwhile)))));
        let mut unlocking = Box::pin(held.unlock());
        let unlocked = unlocking.as_mut().poll(&mut Context::from_waker(&waker));
        if unlocked.is_ready() {
            // Settled while it was polled, so nobody was woken.
            waker.wake();
        }
        let comes = soon(comes).await.unwrap();
        match unlocked {
            Poll::Ready(unlocked) => unlocked.unwrap(),
            Poll::Pending => soon(unlocking).await.unwrap(),
        }
        guard = soon(comes).await.unwrap();
        proxy.calm();
        let sent = sent.lock().unwrap();
        assert!(!sent.contains("aa"), "two tries at a time: {sent}");
    }
    drop((guard, line.lock));
    clean(&line.server).await;
}

/// It got the lock and was forced out before it heard of either, so it tries again.
#[tokio::test]
async fn a_try_that_was_sent_along_and_forced_out_is_made_again() {
    let mut line = Line::by(1, patient).await;
    // Replies come in order: that of the try after this one.
    let late = Fault::DelayReply(ms(3_000));
    let on = Match::script(RELEASE).and(Match::key("line"));
    line.proxy.inject(late).on(on).arm();
    let tries = line.server.calls_of("hset").await;
    drop(line.guard);
    one_more_than(tries, &line.server).await;
    // Over the caller's connection, so it is answered at once.
    assert!(soon(line.lock.force_unlock()).await.unwrap());
    let next = soon(line.waiters.next().unwrap()).await.unwrap().unwrap();
    next.verify().await.expect("Redis has it");
    next.unlock().await.unwrap();
    drop(line.lock);
    clean(&line.server).await;
}
