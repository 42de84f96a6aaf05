//! F11: the ACL takes away one command after the other, of those that the kind is seen to use. A denial is reported as
//! such, and no key is left without a time to live.

use std::time::Duration;

use watchlock::{Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, soon};
use crate::scene::{MINUTE, Scene};
use crate::table::Kind;

for_every_kind! {
    f11_i4_an_acquire_without_one_command_leaves_no_key_without_a_lease,
    f11_i4_a_hold_without_one_command_keeps_its_lease,
    f11_a_denied_wake_up_costs_a_poll_and_no_release,
    f11_a_denied_subscription_is_made_up_for_by_polls,
    f11_one_try_trusts_no_busy_answer_while_no_release_would_be_heard,
    i8_denied_renewals_are_repeated_until_the_validity_ends,
    one_denied_name_does_not_cost_the_others_their_renewal,
    one_name_that_was_denied_for_a_while_is_renewed_again,
    f11_a_user_deleted_in_the_middle_is_denied_and_comes_back,
    f11_a_user_that_is_back_within_the_lease_keeps_its_holds,
}

/// About as much as a look takes: a refused renewal is repeated after a pause, and the lease must not end before.
const STEP: Duration = Duration::from_millis(6);

/// What connections and the kit itself need, but not the kind.
const OTHERS: [&str; 12] = [
    "acl|setuser",
    "client|list",
    "client|setinfo",
    "client|setname",
    "config|resetstat",
    "hello",
    "info",
    "keys",
    "ping",
    "pubsub|channels",
    "select",
    "subscribe",
];

/// Redis 6.2 counts subcommands as their command.
fn is_other(name: &str) -> bool {
    OTHERS
        .iter()
        .any(|other| *other == name || other.split('|').next() == Some(name))
}

async fn user(server: &RedisServer, rights: &[&str]) {
    let call = [&["ACL", "SETUSER", "app"], rights].concat();
    server.cmd(&call).await;
}

async fn all_rights(server: &RedisServer) {
    let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", "-@dangerous"];
    user(server, &rights).await;
}

/// A client of a user `app`, with the rights of an application.
async fn limited(kind: &'static Kind, lease: Duration) -> Scene {
    let server = RedisServer::start();
    all_rights(&server).await;
    let url = server.url().replace("//", "//app:secret@");
    let builder = watchlock::Client::builder(&url).watchdog_lease(lease);
    let client = builder.connect().await.unwrap();
    Scene::of_client(kind, server, client)
}

/// The same on a server whose clock the test drives.
async fn limited_and_timed(kind: &'static Kind, lease: Duration) -> Scene {
    let as_user = async |server: &RedisServer| {
        all_rights(server).await;
        server.url().replace("//", "//app:secret@")
    };
    Scene::timed_with(kind, lease, as_user).await
}

/// The commands that a hold uses from its beginning to its end, including those inside scripts.
async fn commands(scene: &Scene) -> Vec<String> {
    scene.server.reset_calls().await;
    let guard = scene.lock("life").lock_with_lease(LONG).await.unwrap();
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert!(!scene.is_free(&scene.client, "life").await);
    guard.verify().await.unwrap();
    guard.extend(MINUTE).await.unwrap();
    inner.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    let guard = scene.lock("life").lock().await.unwrap();
    scene.lock("life").force_unlock().await.unwrap();
    drop(guard);
    let used = scene.server.calls().await.into_keys();
    let used: Vec<_> = used.filter(|name| !is_other(name)).collect();
    assert!(used.len() >= 5, "the commands were found: {used:?}");
    used
}

fn is_denied<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Denied { .. }))
}

async fn f11_i4_an_acquire_without_one_command_leaves_no_key_without_a_lease(kind: &'static Kind) {
    let scene = limited(kind, LONG).await;
    let mut denied = 0;
    for command in commands(&scene).await {
        for lease in [Lease::Watchdog, Lease::Fixed(LONG)] {
            user(&scene.server, &[&format!("-{command}")]).await;
            let lock = scene.lock("new");
            match soon(lock.try_lock(Duration::ZERO, lease)).await {
                Ok(guard) => {
                    let given_back = soon(guard.expect("it is free").unlock()).await;
                    let fits = given_back.is_ok() || is_denied(&given_back);
                    assert!(fits, "without {command}: {given_back:?}");
                }
                Err(error) => {
                    denied += 1;
                    assert!(
                        matches!(error, Error::Denied { .. }),
                        "{command}: {error:?}"
                    );
                    assert!(scene.keys().await.is_empty(), "without {command}");
                }
            }
            scene.assert_leased(&command).await;
            all_rights(&scene.server).await;
            scene.server.cmd(&["FLUSHALL"]).await;
        }
    }
    // For each of the two leases.
    let needed = 2 * kind.costs.needed;
    assert!(denied >= needed, "something is needed to take a lock");
}

async fn f11_i4_a_hold_without_one_command_keeps_its_lease(kind: &'static Kind) {
    let scene = limited(kind, LONG).await;
    for command in commands(&scene).await {
        let guard = scene.lock("held").lock_with_lease(LONG).await.unwrap();
        let level = guard.reenter(Lease::Watchdog).await.unwrap();
        user(&scene.server, &[&format!("-{command}")]).await;
        let answers = [
            soon(guard.verify()).await,
            soon(guard.extend(MINUTE)).await,
            soon(guard.reenter(MINUTE)).await.map(drop),
            soon(level.unlock()).await,
        ];
        for answer in answers {
            let fits = answer.is_ok() || is_denied(&answer);
            assert!(fits, "without {command}: {answer:?}");
        }
        assert!(guard.is_valid(), "without {command}");
        scene.assert_leased(&command).await;
        assert!(scene.server.exists("held").await, "without {command}");
        let answer = soon(guard.unlock()).await;
        let fits = answer.is_ok() || is_denied(&answer);
        assert!(fits, "without {command}: {answer:?}");
        if answer.is_ok() {
            assert!(!scene.server.exists("held").await, "without {command}");
        }
        scene.assert_leased(&command).await;
        let _ = scene.lock("held").force_unlock().await;
        scene.assert_leased(&command).await;
        all_rights(&scene.server).await;
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

async fn f11_a_denied_wake_up_costs_a_poll_and_no_release(kind: &'static Kind) {
    let scene = limited(kind, LONG).await;
    let other = scene.other().await;
    for denied in ["-publish", "resetchannels"] {
        let guard = scene.lock("quiet").lock().await.unwrap();
        let rival = scene.rival(&other, "quiet");
        let waiter = tokio::spawn(async move { rival.lock().await });
        scene.waited_for(1).await;
        user(&scene.server, &[denied]).await;
        guard.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        let guard = scene.lock("quiet").lock().await.unwrap();
        assert!(scene.lock("quiet").force_unlock().await.unwrap());
        drop(guard);
        scene.free().await;
        all_rights(&scene.server).await;
    }
    scene.clean().await;
}

async fn f11_a_denied_subscription_is_made_up_for_by_polls(kind: &'static Kind) {
    let scene = limited(kind, LONG).await;
    let other = scene.other().await;
    for denied in ["-subscribe", "resetchannels"] {
        user(&scene.server, &[denied]).await;
        let rival = scene.rival(&other, "deaf").lock().await.unwrap();
        let before = scene.calls().await;
        let lock = scene.lock("deaf");
        let waiter = tokio::spawn(async move { lock.lock().await });
        eventually("tried again", LONG, async || {
            scene.calls().await >= before + 2
        })
        .await;
        rival.unlock().await.unwrap();
        soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
        all_rights(&scene.server).await;
    }
    scene.clean().await;
}

/// The waiter's next poll is a minute away, and it does not hear the release. So one try asks, first for the waiter.
async fn f11_one_try_trusts_no_busy_answer_while_no_release_would_be_heard(kind: &'static Kind) {
    let scene = limited(kind, LONG).await;
    let url = scene.server.url().replace("//", "//app:secret@");
    let builder = watchlock::Client::builder(&url).backoff(scene.rare());
    let client = builder.connect().await.unwrap();
    for denied in ["-subscribe", "resetchannels"] {
        user(&scene.server, &[denied]).await;
        let other = scene.other().await;
        let rival = scene.rival(&other, "deaf");
        let rival = rival.lock_with_lease(MINUTE * 10).await.unwrap();
        let before = scene.calls().await;
        let lock = scene.of(&client, "deaf");
        let waiter = tokio::spawn(async move { lock.lock().await });
        eventually("it tried", LONG, async || scene.calls().await > before).await;
        let busy = soon(scene.try_once(&client, "deaf")).await.unwrap();
        assert!(busy.is_none());
        rival.unlock().await.unwrap();
        let tried = soon(scene.try_once(&client, "deaf")).await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        assert!(tried.is_none() || kind.differs(kind.shared));
        drop((tried, guard));
        all_rights(&scene.server).await;
        scene.free().await;
    }
}

/// The commands of a renewal, those inside its script among them.
async fn of_renewals(scene: &Scene) -> Vec<String> {
    let guard = scene.lock("life").lock().await.unwrap();
    // Every script is known by then.
    scene.keep(&guard, SHORT, SHORT).await;
    scene.server.reset_calls().await;
    scene.keep(&guard, SHORT, SHORT).await;
    let used = scene.server.calls().await.into_keys();
    let used: Vec<_> = used.filter(|name| !is_other(name)).collect();
    assert!(used.len() >= 3, "the commands were found: {used:?}");
    guard.unlock().await.unwrap();
    used
}

/// A denied renewal says nothing of the hold: it is repeated, and the hold is lost only at its end.
async fn i8_denied_renewals_are_repeated_until_the_validity_ends(kind: &'static Kind) {
    let scene = limited_and_timed(kind, SHORT).await;
    for command in of_renewals(&scene).await {
        let deny = format!("-{command}");
        let guard = scene.lock("held").lock().await.unwrap();
        user(&scene.server, &[&deny]).await;
        let left = guard.valid_for();
        scene.pass(left / 2).await;
        eventually("a renewal is due", LONG, async || {
            guard.valid_for() <= left / 2
        })
        .await;
        all_rights(&scene.server).await;
        eventually("renewed", LONG, async || {
            scene.pass(STEP).await;
            guard.valid_for() > left / 2
        })
        .await;
        user(&scene.server, &[&deny]).await;
        scene.pass(SHORT).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Expired, "{command}");
        assert!(guard.unlock().await.unwrap_err().is_lost());
        all_rights(&scene.server).await;
        scene.free().await;
    }
    scene.clean().await;
}

/// One name of a call that is out of the user's reach, and nothing else is.
async fn one_denied_name_does_not_cost_the_others_their_renewal(kind: &'static Kind) {
    let scene = limited_and_timed(kind, SHORT).await;
    let mut guards = Vec::new();
    for i in 0..12 {
        let family = if i == 5 { "bad" } else { "good" };
        let lock = scene.lock(&format!("{family}:{i}"));
        guards.push(lock.lock().await.unwrap());
    }
    user(&scene.server, &["resetkeys", "~*good*"]).await;
    scene.keep(&guards[0], SHORT, SHORT).await;
    assert_eq!(soon(guards[5].lost()).await, LostReason::Expired);
    let renewals = scene.server.calls_of("pexpire").await;
    scene.keep(&guards[0], SHORT, SHORT * 3).await;
    eventually("the others are renewed", LONG, async || {
        scene.server.calls_of("pexpire").await >= renewals + 11 * 6
    })
    .await;
    for (i, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.unlock().await.is_err(), i == 5, "{i}");
    }
}

/// Its renewals go together with those of other names.
async fn one_name_that_was_denied_for_a_while_is_renewed_again(kind: &'static Kind) {
    let scene = limited_and_timed(kind, SHORT * 3).await;
    let mut guards = Vec::new();
    for name in ["bad", "good:1", "good:2"] {
        guards.push(scene.lock(name).lock().await.unwrap());
    }
    user(&scene.server, &["resetkeys", "~*good*"]).await;
    scene.pass(SHORT).await;
    // The keeper has the refusal, and plans the next try by the time that is left now.
    eventually("a renewal was refused", LONG, async || {
        scene.client.stats().failing_for.is_some()
    })
    .await;
    all_rights(&scene.server).await;
    // Longer than the lease: what is still held was renewed.
    for guard in &guards {
        scene.keep(guard, SHORT * 3, SHORT * 3).await;
    }
    for guard in guards {
        guard.check().unwrap();
        guard.unlock().await.unwrap();
    }
    scene.clean().await;
}

async fn f11_a_user_deleted_in_the_middle_is_denied_and_comes_back(kind: &'static Kind) {
    let scene = limited(kind, SHORT * 2).await;
    let watched = scene.lock("watched").lock().await.unwrap();
    let fixed = scene.lock("fixed").lock_with_lease(MINUTE).await.unwrap();
    scene.server.cmd(&["ACL", "DELUSER", "app"]).await;
    let denied = soon(scene.lock("new").lock()).await;
    assert!(is_denied(&denied), "{denied:?}");
    let denied = soon(fixed.unlock()).await;
    assert!(is_denied(&denied), "{denied:?}");
    assert_eq!(soon(watched.lost()).await, LostReason::Expired);
    assert!(watched.unlock().await.unwrap_err().is_lost());
    scene.assert_leased("its user is gone").await;
    all_rights(&scene.server).await;
    let again = soon(scene.lock("watched").lock()).await.unwrap();
    again.unlock().await.unwrap();
    let only_fixed = async || {
        let keys = scene.keys().await;
        keys.iter().all(|key| key.contains("fixed"))
    };
    if kind.differs(kind.shared) {
        // It got in although a hold could not be given back, which ends with its lease.
        eventually("what was lost ends", LONG, only_fixed).await;
    } else {
        // A place that came late is taken back; that would be sooner than any lease would end.
        eventually("all is given back", SHORT, only_fixed).await;
    }
}

/// The same for less than a lease: nothing is lost.
async fn f11_a_user_that_is_back_within_the_lease_keeps_its_holds(kind: &'static Kind) {
    let scene = limited(kind, SHORT * 4).await;
    let guard = scene.lock("kept").lock().await.unwrap();
    user(&scene.server, &["resetpass", ">another"]).await;
    scene.server.cmd(&["CLIENT", "KILL", "USER", "app"]).await;
    let denied = soon(scene.try_once(&scene.client, "new")).await;
    assert!(is_denied(&denied), "{denied:?}");
    all_rights(&scene.server).await;
    let renewals = scene.server.calls_of("pexpire").await;
    eventually("renewed", LONG, async || {
        scene.server.calls_of("pexpire").await >= renewals + 3
    })
    .await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    scene.clean().await;
}
