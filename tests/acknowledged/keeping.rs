//! What keeps a hold, and what does not.

use watchlock::{Backoff, Client, Error, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};

use crate::common::{LONG, SHORT, ms, soon, try_once};
use crate::{Pair, WITHIN, few, of};

/// A master that was cut off from its replicas goes on answering, and its holders must not trust it.
#[tokio::test]
async fn a_renewal_that_no_replica_has_keeps_nothing() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(SHORT)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    let reason = soon(guard.lost()).await;
    pair.replica.resume();
    assert_eq!(reason, LostReason::Expired);
    assert!(matches!(guard.unlock().await, Err(Error::Lost { .. })));
}

#[tokio::test]
async fn a_hold_lives_as_long_as_replicas_have_its_renewals() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(SHORT)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    tokio::time::sleep(SHORT * 2).await;
    guard.check().unwrap();
    assert!(pair.replica.pttl("x").await > 0);
    guard.unlock().await.unwrap();
}

/// A new master that has no replica yet cannot acknowledge anything, but that it does not have the hold is certain.
#[tokio::test]
async fn a_hold_that_the_master_does_not_have_is_lost_without_an_acknowledgement() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(SHORT * 5)
        .connect()
        .await
        .unwrap();
    let watched = try_once(&client, "watched").await.unwrap().unwrap();
    let verified = try_once(&client, "verified").await.unwrap().unwrap();
    pair.replica.freeze();
    pair.master.cmd(&["DEL", "watched", "verified"]).await;
    let verdict = verified.verify().await;
    let reason = soon(watched.lost()).await;
    pair.replica.resume();
    assert!(
        matches!(
            verdict,
            Err(Error::Lost {
                reason: LostReason::Missing,
                ..
            })
        ),
        "{verdict:?}"
    );
    assert_eq!(reason, LostReason::Missing);
}

/// While the replicas are known to be away, commands are refused without being run. This one is asked all the same.
#[tokio::test]
async fn a_hold_that_the_master_does_not_have_is_lost_while_the_replicas_are_known_to_be_away() {
    let pair = Pair::start().await;
    let client = pair.connect().await;
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    for name in ["y", "z"] {
        few(try_once(&client, name).await);
    }
    let refused = guard.verify().await.unwrap_err();
    of(&refused);
    pair.master.cmd(&["DEL", "x"]).await;
    let verdict = guard.verify().await;
    pair.replica.resume();
    assert!(
        matches!(
            verdict,
            Err(Error::Lost {
                reason: LostReason::Missing,
                ..
            })
        ),
        "{verdict:?}"
    );
}

/// Shorter than the lease.
#[tokio::test]
async fn a_replica_that_stalls_for_a_moment_costs_no_hold() {
    let pair = Pair::start().await;
    let client = pair
        .builder()
        .watchdog_lease(ms(6000))
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    pair.replica.freeze();
    tokio::time::sleep(ms(3000)).await;
    pair.replica.resume();
    tokio::time::sleep(ms(5000)).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

/// Two renewals in vain, long before the lease ends.
#[tokio::test]
async fn a_replica_that_stalls_for_a_moment_costs_no_hold_with_a_short_lease() {
    let pair = Pair::start().await;
    let lease = ms(1500);
    let client = pair
        .builder()
        .acknowledged_by(1, ms(75))
        .watchdog_lease(lease)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    let before = pair.master.calls_of("wait").await;
    pair.replica.freeze();
    eventually("two renewals were not acknowledged", LONG, async || {
        let blocked = pair.master.info("clients", "blocked_clients").await;
        pair.master.calls_of("wait").await >= before + 2 && blocked.as_deref() == Some("0")
    })
    .await;
    pair.replica.resume();
    tokio::time::sleep(lease * 2).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

/// The client tries a second connection within a lease, however long a command may take.
#[tokio::test]
async fn connections_that_fell_silent_cost_no_hold() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, WITHIN)
        .command_timeout(LONG)
        .watchdog_lease(SHORT * 5)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    // Between two renewals: one whose reply is cut in the middle is no silence to its sender.
    eventually("some time passes", LONG, async || {
        guard.valid_for() < SHORT * 9 / 2
    })
    .await;
    eventually("renewed", LONG, async || guard.valid_for() > SHORT * 9 / 2).await;
    // The connections that exist stay deaf.
    proxy.black_hole(Direction::Replies);
    proxy.heal();
    tokio::time::sleep(SHORT * 6).await;
    guard.check().unwrap();
}

/// The reply of the script came, so the connection was read after the renewal was sent. The reply to its `WAIT`, and all
/// that follow, do not come.
#[tokio::test]
async fn a_connection_that_falls_silent_before_the_acknowledgement_costs_no_hold() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, WITHIN)
        .command_timeout(LONG)
        .watchdog_lease(SHORT * 5)
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    let lost = proxy.inject(Fault::SwallowReply);
    let lost = lost.on(Match::command("WAIT")).arm();
    eventually("an acknowledgement is lost", LONG, async || {
        lost.fired() > 0
    })
    .await;
    tokio::time::sleep(SHORT * 6).await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

/// A try was sent just before, so renewals wait behind its batch and write nothing.
#[tokio::test]
async fn a_connection_that_falls_silent_under_a_try_costs_no_hold() {
    let pair = Pair::start().await;
    let proxy = Proxy::to(&pair.master);
    let client = Client::builder(&proxy.url())
        .acknowledged_by(1, WITHIN)
        .command_timeout(LONG)
        .watchdog_lease(SHORT * 5)
        .backoff(Backoff::new().base(ms(50)).cap(ms(50)))
        .connect()
        .await
        .unwrap();
    let guard = try_once(&client, "{x}held").await.unwrap().unwrap();
    let stranger = ["HSET", "{x}busy", "stranger:1", "1"];
    pair.master.cmd(&stranger).await;
    pair.master.cmd(&["PEXPIRE", "{x}busy", "600000"]).await;
    let waiting = tokio::spawn({
        let lock = client.get_lock("{x}busy");
        async move { lock.lock().await.map(drop) }
    });
    eventually("some time passes", LONG, async || {
        guard.valid_for() < SHORT * 9 / 2
    })
    .await;
    eventually("renewed", LONG, async || guard.valid_for() > SHORT * 9 / 2).await;
    // A few tries later, so that it is a try and not the renewal that has no reply.
    let tries = || async { proxy.commands().get("WAIT").copied().unwrap_or(0) };
    let before = tries().await;
    eventually("tries", LONG, async || tries().await > before + 2).await;
    // The connections that exist stay deaf.
    proxy.black_hole(Direction::Replies);
    proxy.heal();
    tokio::time::sleep(SHORT * 6).await;
    guard.check().unwrap();
    waiting.abort();
}
