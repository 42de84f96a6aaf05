//! Inside a client a hold is passed on to the next waiter: the field in Redis stays, and no command is sent.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use watchlock::{
    Backoff, Client, ClientBuilder, Clock, ClockDriver, Error, Lease, Lock, LockGuard, LostReason,
};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{
    LONG, channel, clean, connect, count, gone, ms, poll_once, script, soon, subscribed, try_once,
};

/// For how long a hold is passed on, and for how long the lock stays free then.
const ROW: Duration = ms(10);
const FREE: Duration = ms(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const NAME: &str = "row";
/// What a fenced lock leaves.
const TOKEN: &str = "redisson_lock_token:{row}";

type Waiter = JoinHandle<Result<LockGuard, Error>>;

/// A client whose clock stands still, so that no row ends too early.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    client: Client,
    clock: ClockDriver,
}

impl Scene {
    async fn new() -> Self {
        Self::by(|builder| builder).await
    }

    async fn by(settings: fn(ClientBuilder) -> ClientBuilder) -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let (clock, driver) = Clock::driven();
        let rare = Backoff::new().base(MINUTE).cap(MINUTE);
        let builder = Client::builder(&proxy.url()).clock(clock).backoff(rare);
        let client = settings(builder).connect().await.unwrap();
        driver.stop();
        Self {
            server,
            proxy,
            client,
            clock: driver,
        }
    }

    /// From now on Redis knows the scripts.
    async fn warm(&self) {
        let guard = self.client.get_lock("warm").lock().await.unwrap();
        guard.unlock().await.unwrap();
        let lock = self.client.get_lock("warm");
        assert!(!lock.force_unlock().await.unwrap());
    }

    async fn lock(&self) -> LockGuard {
        soon(self.client.get_lock(NAME).lock()).await.unwrap()
    }

    /// A waiter for the lock; it is in line when this returns.
    async fn waiter(&self) -> Waiter {
        let lock = self.client.get_lock(NAME);
        waits(async move { lock.lock().await }).await
    }

    /// The field that has the lock in Redis.
    async fn field(&self) -> Option<String> {
        self.server.hash(NAME).await.into_keys().next()
    }

    /// The client listens, so that nothing is under way that comes by itself.
    async fn settles(&self) {
        subscribed(&self.server, NAME).await;
        self.listens_and_asked().await;
    }

    /// When it listens it has its own hold asked for.
    async fn listens_and_asked(&self) {
        eventually("it has its hold asked for", LONG, async || {
            self.server.calls_of("hexists").await > 0
        })
        .await;
    }

    /// With a clock that stands still the subscription stays. A release that reaches a subscription of which the client
    /// does not know yet is taken for one that others heard, and followed by a gap that this clock never ends.
    async fn listens_from_now_on(&self) {
        let first = self.lock().await;
        let second = self.waiter().await;
        self.settles().await;
        first.unlock().await.unwrap();
        got(second).await.unlock().await.unwrap();
        gone(&self.server, NAME).await;
    }

    async fn ends(self) {
        drop(self.client);
        clean(&self.server).await;
    }
}

async fn waits(acquire: impl Future<Output = Result<LockGuard, Error>> + Send + 'static) -> Waiter {
    let mut acquire = Box::pin(acquire);
    assert!(poll_once(&mut acquire).await.is_none());
    tokio::spawn(acquire)
}

fn of_script(file: &str) -> Match {
    Match::script(&script(file))
}

async fn got(waiter: Waiter) -> LockGuard {
    soon(waiter).await.unwrap().unwrap()
}

#[tokio::test]
async fn the_next_waiter_here_has_the_lock_without_a_command() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let (second, third) = (scene.waiter().await, scene.waiter().await);
    scene.settles().await;
    let field = scene.field().await;
    scene.proxy.hold(Direction::Requests);
    let view = first.hold();
    first.unlock().await.unwrap();
    assert!(!view.is_valid());
    let second = got(second).await;
    assert!(second.is_valid() && second.hold_count() == 1);
    drop(second);
    let third = got(third).await;
    scene.proxy.heal();
    assert_eq!(scene.field().await, field);
    third.verify().await.unwrap();
    third.unlock().await.unwrap();
    gone(&scene.server, NAME).await;
    scene.ends().await;
}

/// Waiters that poll, and those that listen, are free to take it, also when others wait here.
#[tokio::test]
async fn behind_ten_milliseconds_the_lock_is_released_alone_and_left_free_for_one() {
    let scene = Scene::new().await;
    let stranger = connect(&scene.server).await;
    let first = scene.lock().await;
    let (second, third) = (scene.waiter().await, scene.waiter().await);
    scene.clock.advance(ms(9));
    first.unlock().await.unwrap();
    let second = got(second).await;
    scene.clock.advance(ms(1));
    second.unlock().await.unwrap();
    let theirs = try_once(&stranger, NAME).await.unwrap();
    let theirs = theirs.expect("it is left free");
    let late = scene.waiter().await;
    scene.clock.advance(FREE);
    theirs.unlock().await.unwrap();
    got(third).await.unlock().await.unwrap();
    got(late).await.unlock().await.unwrap();
    drop(stranger);
    scene.ends().await;
}

/// Redis hands over a hold with a lease of its own; that is no new beginning.
#[tokio::test]
async fn a_hand_over_does_not_end_a_row() {
    let scene = Scene::new().await;
    let stranger = connect(&scene.server).await;
    let taken = || {
        let lock = scene.client.get_lock(NAME);
        async move { lock.lock_with_lease(MINUTE).await }
    };
    let first = soon(taken()).await.unwrap();
    let second = waits(taken()).await;
    scene.settles().await;
    // This release reports that nobody else listens.
    first.unlock().await.unwrap();
    let second = got(second).await;
    let (third, fourth) = (waits(taken()).await, waits(taken()).await);
    scene.clock.advance(ms(6));
    second.unlock().await.unwrap();
    let third = got(third).await;
    scene.clock.advance(ms(6));
    third.unlock().await.unwrap();
    let theirs = try_once(&stranger, NAME).await.unwrap();
    theirs.expect("it is left free").unlock().await.unwrap();
    scene.clock.advance(FREE);
    got(fourth).await.unlock().await.unwrap();
    drop(stranger);
    scene.ends().await;
}

/// Also a waiter that comes when those who waited have gone.
#[tokio::test]
async fn a_caller_that_comes_while_the_lock_is_left_free_waits_for_that_long() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let leaves = scene.waiter().await;
    scene.settles().await;
    scene.clock.advance(ROW);
    first.unlock().await.unwrap();
    leaves.abort();
    assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
    let comes = scene.waiter().await;
    assert!(!scene.server.exists(NAME).await);
    scene.clock.advance(FREE);
    got(comes).await.unlock().await.unwrap();
    scene.ends().await;
}

async fn take(lock: &dyn Lock, lease: Lease) -> Result<LockGuard, Error> {
    let got = lock.try_lock(Duration::MAX, lease).await?;
    Ok(got.expect("it waits for ever"))
}

/// A holder that is about to give the lock back, and a waiter for it.
async fn next_to(
    scene: &Scene,
    holder: impl Future<Output = Result<LockGuard, Error>>,
    waiter: impl Future<Output = Result<LockGuard, Error>> + Send + 'static,
) -> bool {
    scene.listens_from_now_on().await;
    let holder = soon(holder).await.unwrap();
    let waiter = waits(waiter).await;
    let field = scene.field().await;
    holder.unlock().await.unwrap();
    let next = got(waiter).await;
    let passed_on = scene.field().await == field;
    next.unlock().await.unwrap();
    gone(&scene.server, NAME).await;
    passed_on
}

#[tokio::test]
async fn only_plain_and_spin_locks_under_the_watchdog_are_passed_on() {
    let scene = Scene::new().await;
    let client = &scene.client;
    let plain = client.get_lock(NAME);
    let (spin, fenced) = (client.get_spin_lock(NAME), client.get_fenced_lock(NAME));
    let both = |holder: Box<dyn Lock>, waiter: Box<dyn Lock>, leases: [Lease; 2]| {
        let scene = &scene;
        async move {
            let [first, second] = leases;
            let holder = async move { take(&*holder, first).await };
            let waiter = async move { take(&*waiter, second).await };
            next_to(scene, holder, waiter).await
        }
    };
    let (watched, fixed) = ([Lease::Watchdog; 2], Lease::Fixed(MINUTE));
    let a = || Box::new(plain.clone()) as Box<dyn Lock>;
    let spins = || Box::new(spin.clone()) as Box<dyn Lock>;
    let fences = || Box::new(fenced.clone()) as Box<dyn Lock>;
    assert!(both(a(), a(), watched).await);
    assert!(both(spins(), a(), watched).await);
    assert!(both(a(), spins(), watched).await);
    assert!(!both(fences(), a(), watched).await);
    assert!(!both(a(), fences(), watched).await);
    assert!(!both(a(), a(), [fixed, Lease::Watchdog]).await);
    assert!(!both(a(), a(), [Lease::Watchdog, fixed]).await);
    drop((plain, spin, fenced));
    scene.server.cmd(&["DEL", TOKEN]).await;
    scene.ends().await;
}

#[tokio::test]
async fn the_switch_turns_it_off() {
    let scene = Scene::by(|builder| builder.pass_on(false)).await;
    let (one, other) = (scene.client.get_lock(NAME), scene.client.get_lock(NAME));
    let holder = async { one.lock().await };
    assert!(!next_to(&scene, holder, async move { other.lock().await }).await);
    drop(one);
    scene.ends().await;
}

/// A level with a lease of its own may have made the key outlive the watchdog's lease; a token belongs to the hold that
/// took it.
#[tokio::test]
async fn a_hold_with_a_fixed_level_or_a_token_is_not_passed_on() {
    let scene = Scene::new().await;
    for fenced in [false, true] {
        let owner = scene.client.new_owner();
        let (own, other) = (owner.get_lock(NAME), scene.client.get_lock(NAME));
        let entered = async {
            let guard = own.lock().await?;
            let inner = if fenced {
                owner.get_fenced_lock(NAME).lock().await?.into()
            } else {
                own.lock_with_lease(MINUTE).await?
            };
            LockGuard::unlock(inner).await?;
            Ok(guard)
        };
        assert!(!next_to(&scene, entered, async move { other.lock().await }).await);
    }
    scene.server.cmd(&["DEL", TOKEN]).await;
    scene.ends().await;
}

/// Its acquire may run once more, after whatever comes next.
#[tokio::test]
async fn a_hold_whose_acquire_went_unanswered_is_not_passed_on() {
    let scene = Scene::by(|builder| builder.command_timeout(ms(300))).await;
    let on = of_script("lock/acquire.lua").and(Match::key(NAME));
    let lost = scene.proxy.inject(Fault::SwallowReply).on(on).arm();
    let taking = scene.client.get_lock(NAME);
    let taking = tokio::spawn(async move { taking.lock().await });
    eventually("it is lost", LONG, async || lost.fired() == 1).await;
    scene.clock.advance(ms(300));
    let tainted = got(taking).await;
    let waiter = scene.waiter().await;
    let field = scene.field().await;
    tainted.unlock().await.unwrap();
    let next = got(waiter).await;
    assert_ne!(scene.field().await, field);
    next.unlock().await.unwrap();
    scene.ends().await;
}

/// A renewal is due then, and the next holder must not be the one to find out that it fails.
#[tokio::test]
async fn with_less_than_two_thirds_of_its_lease_a_hold_is_not_passed_on() {
    let patient = |builder: ClientBuilder| {
        let builder = builder.command_timeout(MINUTE);
        builder.watchdog_lease(ms(90_000))
    };
    let scene = Scene::by(patient).await;
    scene.warm().await;
    let renewals = of_script("lock/verify.lua");
    let fails = Fault::Answer("LOADING Redis is loading the dataset in memory".to_owned());
    let fails = scene.proxy.inject(fails).on(renewals).always().arm();
    scene.proxy.hold(Direction::Replies);
    let lock = scene.client.get_lock(NAME);
    let taking = tokio::spawn(async move { lock.lock().await });
    eventually("it has it", LONG, async || scene.server.exists(NAME).await).await;
    scene.clock.advance(ms(31_000));
    scene.proxy.heal();
    let guard = got(taking).await;
    let next = scene.waiter().await;
    let field = scene.field().await;
    guard.unlock().await.unwrap();
    let next = got(next).await;
    assert_ne!(scene.field().await, field);
    fails.cancel();
    next.unlock().await.unwrap();
    scene.ends().await;
}

/// The key was deleted, and the question that finds this out was asked for the previous holder.
#[tokio::test]
async fn f8_i8_an_answer_about_a_passed_hold_concerns_its_present_holder() {
    let scene = Scene::by(|builder| builder.command_timeout(MINUTE)).await;
    let first = scene.lock().await;
    let second = scene.waiter().await;
    scene.settles().await;
    let late = Fault::DelayReply(ms(2_000));
    let renewal = of_script("lock/verify.lua");
    let asked = scene.proxy.inject(late).on(renewal).arm();
    scene.server.cmd(&["DEL", NAME]).await;
    // A stranger's message makes the client ask for the hold.
    scene.server.cmd(&["PUBLISH", &channel(NAME), "0"]).await;
    eventually("it is asked for", LONG, async || asked.fired() == 1).await;
    let before = first.hold();
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert_eq!(soon(second.lost()).await, LostReason::Missing);
    assert!(before.lost().now_or_never().is_none(), "it ended in order");
    let error = second.unlock().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    scene.ends().await;
}

/// The question failed for the previous holder, and is repeated for the present one.
#[tokio::test]
async fn f6_i8_a_question_about_a_passed_hold_is_repeated_until_it_is_answered() {
    let scene = Scene::by(|builder| builder.watchdog_lease(DAY)).await;
    let first = scene.lock().await;
    let second = scene.waiter().await;
    scene.settles().await;
    let renewals = of_script("lock/verify.lua");
    let fails = Fault::Answer("LOADING Redis is loading the dataset in memory".to_owned());
    let fails = scene.proxy.inject(fails).on(renewals).always().arm();
    scene.server.cmd(&["PUBLISH", &channel(NAME), "0"]).await;
    eventually("it fails", LONG, async || fails.fired() > 0).await;
    scene.server.cmd(&["DEL", NAME]).await;
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert!(second.is_valid(), "nobody knows yet");
    fails.cancel();
    // A question follows at the latest a minute after the client has heard that the last one failed, and that may be
    // after the clock was advanced. The first renewal, which would find it out as well, is due after hours.
    let mut reason = None;
    for _ in 0..20 {
        scene.clock.advance(MINUTE);
        reason = tokio::time::timeout(Duration::from_secs(2), second.lost())
            .await
            .ok();
        if reason.is_some() {
            break;
        }
    }
    assert_eq!(reason, Some(LostReason::Missing));
    drop(second);
    scene.ends().await;
}

/// The release is forced while the previous hold has the lock, and heard when the next one does.
#[tokio::test]
async fn a_forced_release_is_reported_to_the_holder_at_the_time_it_is_heard_of() {
    let scene = Scene::by(|builder| builder.command_timeout(MINUTE)).await;
    scene.warm().await;
    let first = scene.lock().await;
    let second = scene.waiter().await;
    scene.settles().await;
    // With the message the client would find out for itself.
    let message = Match::message(&channel(NAME));
    scene.proxy.inject(Fault::SwallowReply).on(message).arm();
    let late = Fault::DelayReply(ms(2_000));
    let aim = scene
        .proxy
        .inject(late)
        .on(of_script("lock/force_release.lua"))
        .arm();
    let forcing = scene.client.get_lock(NAME);
    let forcing = tokio::spawn(async move { forcing.force_unlock().await });
    eventually("it is forced", LONG, async || aim.fired() == 1).await;
    gone(&scene.server, NAME).await;
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert!(soon(forcing).await.unwrap().unwrap());
    assert_eq!(soon(second.lost()).await, LostReason::Forced);
    drop(second);
    scene.ends().await;
}

/// A count that the previous holder wrote late would become the next one's.
#[tokio::test]
async fn t4_a_hold_whose_count_is_not_certain_is_not_passed_on() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let inner = first.reenter(Lease::Watchdog).await.unwrap();
    let second = scene.waiter().await;
    scene.settles().await;
    let field = scene.field().await;
    let late = Fault::DelayRequest(ms(300));
    let on = of_script("lock/release.lua").and(Match::key(NAME));
    let aim = scene.proxy.inject(late).on(on).arm();
    drop(inner);
    eventually("its count is on its way", LONG, async || aim.fired() == 1).await;
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert_ne!(scene.field().await, field);
    assert_eq!(count(&scene.server, NAME).await, 1);
    second.unlock().await.unwrap();
    scene.ends().await;
}

#[tokio::test]
async fn a_hold_that_was_entered_and_left_again_is_passed_on_with_a_count_of_one() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let inner = first.reenter(Lease::Watchdog).await.unwrap();
    let second = scene.waiter().await;
    let field = scene.field().await;
    inner.unlock().await.unwrap();
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert_eq!(scene.field().await, field);
    assert_eq!(count(&scene.server, NAME).await, 1);
    second.unlock().await.unwrap();
    scene.ends().await;
}

/// Nobody polls the ticket that has it; the keeper sleeps, and is woken in time.
#[tokio::test]
async fn i9_a_hold_that_nobody_collects_is_passed_on_to_the_next() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let lock = scene.client.get_lock(NAME);
    let mut sleeps = Box::pin(async move { lock.lock().await });
    assert!(poll_once(&mut sleeps).await.is_none());
    let next = scene.waiter().await;
    scene.settles().await;
    first.unlock().await.unwrap();
    assert!(!next.is_finished(), "somebody else is ahead");
    // A command time-out. The row is over then, too.
    scene.clock.advance(Duration::from_secs(1));
    gone(&scene.server, NAME).await;
    // The lock stays free from when the answer is heard, which may be later than this.
    scene.clock.go_on();
    let next = got(next).await;
    next.unlock().await.unwrap();
    soon(sleeps).await.unwrap().unlock().await.unwrap();
    scene.ends().await;
}

/// Also by an acquire that waited with the one that was passed it.
#[tokio::test]
async fn an_owner_that_was_passed_a_hold_enters_it_again() {
    let scene = Scene::new().await;
    let owner = scene.client.new_owner();
    let own = owner.get_lock(NAME);
    let again = || {
        let own = own.clone();
        async move { own.lock().await }
    };
    let first = scene.lock().await;
    let (outer, inner) = (waits(again()).await, waits(again()).await);
    let field = scene.field().await;
    first.unlock().await.unwrap();
    let (outer, inner) = (got(outer).await, got(inner).await);
    assert_eq!(scene.field().await, field);
    assert_eq!((outer.hold_count(), own.hold_count()), (2, 2));
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    drop((own, owner));
    scene.ends().await;
}

#[tokio::test]
async fn i9_a_waiter_that_leaves_is_not_the_next() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let (leaves, next) = (scene.waiter().await, scene.waiter().await);
    leaves.abort();
    assert!(leaves.await.is_err_and(|error| error.is_cancelled()));
    first.unlock().await.unwrap();
    got(next).await.unlock().await.unwrap();
    scene.ends().await;
}

/// It has the lock, and its runtime ends before it was polled.
#[test]
fn a_runtime_that_ends_with_the_lock_it_was_passed_gives_it_to_the_next() {
    let build = || Builder::new_current_thread().enable_all().build().unwrap();
    let (home, gone_soon) = (build(), build());
    let scene = home.block_on(Scene::new());
    let first = home.block_on(scene.lock());
    let lock = scene.client.get_lock(NAME);
    let leaves = gone_soon.block_on(waits(async move { lock.lock().await }));
    drop(leaves);
    let next = home.block_on(scene.waiter());
    home.block_on(first.unlock()).unwrap();
    drop(gone_soon);
    home.block_on(async {
        got(next).await.unlock().await.unwrap();
        scene.ends().await;
    });
}

/// The hold stays with its owner, who may unlock it in order.
#[tokio::test]
async fn a_shutdown_in_the_middle_ends_the_row() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let (second, third) = (scene.waiter().await, scene.waiter().await);
    first.unlock().await.unwrap();
    let second = got(second).await;
    let client = scene.client.clone();
    let ending = tokio::spawn(async move { client.shutdown(LONG).await });
    soon(scene.client.shutting_down()).await;
    let refused = soon(third).await.unwrap();
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert!(second.is_valid());
    second.unlock().await.unwrap();
    assert!(soon(ending).await.unwrap().is_clean());
    scene.ends().await;
}

/// The holder of a lock that is passed on is looked after as any: it is renewed, and lost in time.
#[tokio::test]
async fn i8_the_loss_of_a_passed_hold_is_reported_in_time_when_redis_is_gone() {
    let short = |builder: ClientBuilder| builder.watchdog_lease(ms(1_200));
    let scene = Scene::by(short).await;
    let first = scene.lock().await;
    let second = scene.waiter().await;
    first.unlock().await.unwrap();
    let second = got(second).await;
    let field = scene.field().await;
    scene.clock.advance(ms(500));
    eventually("it is renewed", LONG, async || {
        second.valid_for() > ms(1_000)
    })
    .await;
    assert_eq!(scene.field().await, field);
    scene.server.kill();
    scene.clock.advance(ms(1_200));
    assert_eq!(soon(second.lost()).await, LostReason::Expired);
}

/// The same when the caller writes the count, and not the keeper.
#[tokio::test]
async fn t4_a_hold_whose_count_is_being_written_is_not_passed_on() {
    let scene = Scene::new().await;
    let first = scene.lock().await;
    let inner = first.reenter(Lease::Watchdog).await.unwrap();
    let second = scene.waiter().await;
    scene.settles().await;
    let field = scene.field().await;
    let late = Fault::DelayRequest(ms(300));
    let on = of_script("lock/release.lua").and(Match::key(NAME));
    let aim = scene.proxy.inject(late).on(on).arm();
    let writing = tokio::spawn(inner.unlock());
    eventually("its count is on its way", LONG, async || aim.fired() == 1).await;
    first.unlock().await.unwrap();
    let second = got(second).await;
    assert_ne!(scene.field().await, field, "it was released");
    soon(writing).await.unwrap().unwrap();
    assert_eq!(count(&scene.server, NAME).await, 1);
    second.unlock().await.unwrap();
    scene.ends().await;
}
