//! Which events there are, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::Level;
use watchlock::{Backoff, Client, ClientBuilder, Lease, Quorum, Secrets};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use super::Log;
use crate::common::{
    LONG, SHORT, clean, connect, connect_short, gone, ms, poll_once, soon, subscribed,
};

#[tokio::test]
async fn a_quiet_day_is_quiet() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("quiet").lock().await.unwrap();
    tokio::time::sleep(SHORT).await;
    drop(guard.reenter(Lease::Watchdog).await.unwrap());
    guard.unlock().await.unwrap();
    drop(client.get_lock("quiet").lock().await.unwrap());
    soon(client.shutdown(LONG)).await;
    let all = log.all();
    let loud: Vec<_> = all
        .iter()
        .filter(|(level, _)| *level <= Level::INFO)
        .collect();
    assert!(loud.is_empty(), "{loud:?}");
    let spans = log.count(Level::TRACE, &["span acquire", "quiet"]);
    assert_eq!(spans, 2, "{all:?}");
}

#[tokio::test]
async fn a_provider_of_credentials_that_panics_is_told_once() {
    let server = RedisServer::start();
    let one = Client::builder(&server.url());
    let sentinel = ClientBuilder::sentinel([server.url()], "main");
    for (builder, of_sentinel) in [(one, false), (sentinel, true)] {
        let log = Log::new().await;
        let asked = Arc::new(AtomicU64::new(0));
        let provider = {
            let asked = Arc::clone(&asked);
            move || -> Secrets {
                asked.fetch_add(1, Ordering::SeqCst);
                panic!("by intention")
            }
        };
        let builder = if of_sentinel {
            builder.sentinel_secrets(provider)
        } else {
            builder.secrets(provider)
        };
        let client = builder.connect_lazy().unwrap();
        eventually("it was asked some times", LONG, async || {
            asked.load(Ordering::SeqCst) > 3
        })
        .await;
        let told = || log.count(Level::ERROR, &["connecting to Redis panicked"]);
        eventually("it is told", LONG, async || told() > 0).await;
        assert_eq!(told(), 1);
        soon(client.shutdown(LONG)).await;
    }
}

#[tokio::test]
async fn the_span_of_an_acquire_says_what_it_came_to() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_fenced_lock("span");
    let came_to = |outcome: &str| {
        let texts = ["recorded acquire", outcome];
        eventually_count(&log, texts.map(str::to_owned))
    };
    let guard = lock.lock().await.unwrap();
    assert_eq!(
        log.count(Level::TRACE, &["span acquire", "span", "fenced"]),
        1
    );
    came_to("outcome=\"free\"").await;
    assert_eq!(
        log.count(Level::TRACE, &["recorded acquire", "waited_ms="]),
        1
    );
    let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    assert!(busy.unwrap().is_none());
    came_to("outcome=\"busy\"").await;
    let mut dropped = Box::pin(lock.lock());
    assert!(poll_once(&mut dropped).await.is_none());
    drop(dropped);
    came_to("outcome=\"abandoned\"").await;
    let (waited, given_back) = tokio::join!(lock.lock(), async {
        eventually("it waits", LONG, async || client.stats().waiters == 1).await;
        guard.unlock().await
    });
    given_back.unwrap();
    waited.unwrap().unlock().await.unwrap();
    came_to("outcome=\"waited\"").await;
    soon(client.shutdown(LONG)).await;
    assert!(lock.lock().await.is_err());
    came_to("outcome=\"failed\"").await;
}

async fn eventually_count(log: &Log, texts: [String; 2]) {
    eventually("it is recorded once", LONG, async || {
        log.count(Level::TRACE, &[&texts[0], &texts[1]]) == 1
    })
    .await;
}

#[tokio::test]
async fn a_loss_is_logged_once_with_name_and_reason() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = client.get_lock("orders").lock().await.unwrap();
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    server.cmd(&["DEL", "orders"]).await;
    soon(guard.lost()).await;
    assert!(inner.unlock().await.is_err() && guard.unlock().await.is_err());
    soon(client.shutdown(LONG)).await;
    let lost = log.count(Level::WARN, &["hold lost", "orders", "does not have it"]);
    assert_eq!(lost, 1, "{:?}", log.all());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i8_a_log_that_blocks_costs_no_hold() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let kept = client.get_lock("kept").lock().await.unwrap();
    for name in ["one", "two"] {
        let lost = client.get_lock(name).lock().await.unwrap();
        log.block(true);
        server.cmd(&["DEL", name]).await;
        soon(lost.lost()).await;
        server.reset_calls().await;
        eventually("it is renewed", LONG, async || {
            server.calls_of("pexpire").await >= 4
        })
        .await;
        assert!(kept.is_valid());
    }
    log.block(false);
    kept.unlock().await.unwrap();
    soon(client.shutdown(LONG)).await;
    for name in ["one", "two"] {
        assert_eq!(log.count(Level::WARN, &["hold lost", name]), 1);
    }
}

/// The thread that makes the rounds of a quorum says that a server is silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_blocks_stops_no_quorum() {
    let log = Log::new().await;
    let three: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let urls = three.iter().map(RedisServer::url);
    let quorum = Quorum::builder(urls).restart_delay(Duration::ZERO);
    let quorum = quorum.connect().await.unwrap();
    quorum
        .get_lock("x")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    log.block(true);
    three[2].kill();
    // Some of these come behind the event.
    for _ in 0..40 {
        let guard = soon(quorum.get_lock("x").lock()).await.unwrap();
        soon(guard.unlock()).await.unwrap();
        tokio::time::sleep(ms(25)).await;
    }
    log.block(false);
    let silent = async || log.count(Level::DEBUG, &["is silent", "server=3"]) > 0;
    eventually("it is logged", LONG, silent).await;
}

/// The caller wanted its end.
#[tokio::test]
async fn a_level_that_is_left_to_its_lease_is_not_logged_as_lost() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let rw = client.get_read_write_lock("left");
    let plain = client
        .get_lock("alone")
        .lock_with_lease(SHORT)
        .await
        .unwrap();
    let kept = rw.read_lock().lock().await.unwrap();
    let left = rw.read_lock().lock_with_lease(SHORT).await.unwrap();
    let view = left.hold();
    left.let_expire().unwrap();
    plain.let_expire().unwrap();
    gone(&server, "alone").await;
    eventually("its lease is over", LONG, async || !view.is_valid()).await;
    kept.check().unwrap();
    kept.unlock().await.unwrap();
    soon(client.shutdown(LONG)).await;
    assert_eq!(log.count(Level::WARN, &["hold lost"]), 0, "{:?}", log.all());
}

#[tokio::test]
async fn an_outage_is_logged_at_its_beginning_and_at_its_end() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let lease = Duration::from_secs(6);
    let client = Client::builder(&proxy.url())
        .watchdog_lease(lease)
        .command_timeout(ms(200));
    let client = client.connect().await.unwrap();
    let guards = [
        client.get_lock("a").lock().await.unwrap(),
        client.get_lock("b").lock().await.unwrap(),
    ];
    proxy.refuse();
    proxy.reset_all();
    eventually("the renewals fail", LONG, async || {
        log.count(Level::WARN, &["cannot renew leases"]) > 0
    })
    .await;
    tokio::time::sleep(ms(600)).await;
    assert_eq!(log.count(Level::WARN, &["cannot renew leases"]), 1);
    proxy.accept();
    eventually("the renewals work", LONG, async || {
        log.count(Level::INFO, &["renewals work again"]) > 0
    })
    .await;
    assert!(guards.iter().all(watchlock::LockGuard::is_valid));
    assert_eq!(log.count(Level::WARN, &["cannot renew leases"]), 1);
    assert_eq!(log.count(Level::INFO, &["renewals work again"]), 1);
    drop(guards);
    soon(client.shutdown(LONG)).await;
}

/// No hold is left whose renewal could fail, and the server does not answer, or refuses, all the same.
#[tokio::test]
async fn an_outage_does_not_end_with_the_last_hold() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let rights = [
        "ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*",
    ];
    for (what, holds) in [("denied", 1), ("frozen", 1), ("frozen", 2)] {
        server.cmd(&[&rights[..], &["+@all"]].concat()).await;
        let proxy = Proxy::to(&server);
        let url = proxy.url().replace("//", "//app:secret@");
        let builder = Client::builder(&url).watchdog_lease(SHORT);
        let client = builder.command_timeout(ms(400)).connect().await.unwrap();
        let begins = log.count(Level::WARN, &["cannot renew leases"]);
        let ends = log.count(Level::INFO, &["renewals work again"]);
        let mut guards = Vec::new();
        for name in 0..holds {
            let lock = client.get_lock(&format!("held-{name}"));
            guards.push(lock.lock().await.unwrap());
        }
        server.reset_calls().await;
        eventually("they are renewed", LONG, async || {
            server.calls_of("pexpire").await >= holds
        })
        .await;
        if what == "frozen" {
            server.freeze();
        } else {
            // So a question is under way when the hold is lost.
            proxy.latency(ms(100));
            server.cmd(&["ACL", "SETUSER", "app", "-pexpire"]).await;
        }
        for guard in &guards {
            soon(guard.lost()).await;
        }
        // The keeper goes on with what is left of them.
        tokio::time::sleep(SHORT).await;
        eventually("it is logged", LONG, async || {
            log.count(Level::WARN, &["cannot renew leases"]) > begins
        })
        .await;
        let said = log.count(Level::INFO, &["renewals work again"]);
        assert_eq!(said, ends, "{what}, {holds}: {:?}", log.all());
        server.resume();
        server.cmd(&["ACL", "SETUSER", "app", "+pexpire"]).await;
        proxy.latency(Duration::ZERO);
        drop(guards);
        let again = soon(client.get_lock("again").lock()).await.unwrap();
        eventually("a renewal is answered", LONG, async || {
            log.count(Level::INFO, &["renewals work again"]) == ends + 1
        })
        .await;
        again.unlock().await.unwrap();
        soon(client.shutdown(LONG)).await;
    }
}

#[tokio::test]
async fn an_abandoned_attempt_that_got_the_lock_is_logged_when_cleaned_up() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("abandoned");
    let mut attempt = Box::pin(lock.lock());
    assert!(poll_once(&mut attempt).await.is_none());
    drop(attempt);
    let texts = ["abandoned attempt cleaned up", "abandoned"];
    log.once(Level::DEBUG, &texts).await;
    clean(&server).await;
}

#[tokio::test]
async fn an_acquire_after_waiting_says_how_long() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let holder = connect(&server).await;
    let client = connect(&server).await;
    let guard = holder.get_lock("waited").lock().await.unwrap();
    let lock = client.get_lock("waited");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "waited").await;
    guard.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    let texts = ["acquired after waiting", "waited", "waited_ms=", "u64"];
    assert_eq!(log.count(Level::DEBUG, &texts), 1, "{:?}", log.all());
}

/// F11
#[tokio::test]
async fn a_denied_wake_up_is_logged_once() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let rights = ["reset", "on", ">secret", "~*", "&*", "+@all", "-publish"];
    let call = [&["ACL", "SETUSER", "app"], &rights[..]].concat();
    server.cmd(&call).await;
    let url = server.url().replace("//", "//app:secret@");
    let client = Client::connect(&url).await.unwrap();
    let texts = ["the wake-up of a release was denied", "unheard"];
    for _ in 0..2 {
        let guard = client.get_lock("unheard").lock().await.unwrap();
        guard.unlock().await.unwrap();
        log.once(Level::WARN, &texts).await;
    }
}

/// F11
#[tokio::test]
async fn a_refused_subscription_is_logged_once_and_so_is_its_end() {
    const APP: [&str; 3] = ["ACL", "SETUSER", "app"];
    let log = Log::new().await;
    let server = RedisServer::start();
    let rights = ["reset", "on", ">secret", "~*", "+@all"];
    server.cmd(&[&APP[..], &rights[..]].concat()).await;
    let url = server.url().replace("//", "//app:secret@");
    let client = Client::connect(&url).await.unwrap();
    let guard = connect(&server).await.get_lock("deaf").lock().await;
    let lock = client.get_lock("deaf");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("it was refused again and again", LONG, async || {
        let stats = server.info("commandstats", "cmdstat_subscribe").await;
        let refused = ["rejected_calls=0", "rejected_calls=1,"];
        stats.is_some_and(|stats| !refused.iter().any(|few| stats.contains(few)))
    })
    .await;
    log.once(Level::WARN, &["subscribing was refused", "deaf"])
        .await;
    server.cmd(&[&APP[..], &["&*"]].concat()).await;
    let again = ["subscribing works again", "deaf"];
    log.once(Level::INFO, &again).await;
    guard.unwrap().unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    assert_eq!(log.count(Level::INFO, &again), 1);
}

#[tokio::test]
async fn a_task_that_waits_for_itself_is_warned_once() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let waits = tokio::spawn(async move {
        let lock = client.get_lock("self");
        let _guard = lock.lock().await.unwrap();
        lock.try_lock(ms(2_500), LONG).await.unwrap().is_none()
    });
    assert!(soon(waits).await.unwrap());
    let texts = ["waits for a lock that it holds itself", "self"];
    log.once(Level::WARN, &texts).await;
}

/// A second of waiting, and a machine that is late.
const WAITS: Duration = Duration::from_millis(2_500);

/// There is no task here: this is the body of a `block_on`, as that of `#[tokio::main]` is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_outside_of_tasks_that_waits_for_itself_is_warned_once() {
    let log = Log::new().await;
    let server = RedisServer::start();
    for (name, set) in [
        ("usual", Backoff::new()),
        ("rare", Backoff::new().base(LONG).cap(LONG)),
    ] {
        let builder = Client::builder(&server.url()).backoff(set);
        let client = builder.connect().await.unwrap();
        let lock = client.get_lock(name);
        let guard = lock.lock().await.unwrap();
        assert!(lock.try_lock(WAITS, LONG).await.unwrap().is_none());
        let texts = ["waits for a lock that it holds itself", name];
        log.once(Level::WARN, &texts).await;
        guard.unlock().await.unwrap();
    }
}

#[tokio::test]
async fn a_body_outside_of_tasks_that_waits_for_a_task_is_not_warned() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("task");
    let guard = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    let guard = guard.await.unwrap();
    assert!(lock.try_lock(WAITS, LONG).await.unwrap().is_none());
    assert_eq!(log.count(Level::WARN, &[""]), 0, "{:?}", log.all());
    drop(guard);
}

/// The other task uses the guard, so that it is seen where it is.
#[tokio::test]
async fn a_task_that_gave_its_guard_away_does_not_wait_for_itself() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let waits = tokio::spawn(async move {
        let lock = client.get_lock("given");
        let guard = lock.lock().await.unwrap();
        let other = tokio::spawn(async move {
            let lost = tokio::time::timeout(WAITS, guard.lost()).await;
            guard.unlock().await.unwrap();
            lost.is_err()
        });
        lock.lock().await.unwrap().unlock().await.unwrap();
        other.await.unwrap()
    });
    assert!(soon(waits).await.unwrap());
    assert_eq!(log.count(Level::WARN, &[""]), 0, "{:?}", log.all());
}

#[tokio::test]
async fn a_task_that_waits_for_another_is_not_warned() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("other");
    let guard = tokio::spawn(async move { lock.lock().await })
        .await
        .unwrap();
    let lock = client.get_lock("other");
    let waits = tokio::spawn(async move { lock.try_lock(ms(1_500), LONG).await });
    assert!(soon(waits).await.unwrap().unwrap().is_none());
    assert_eq!(log.count(Level::WARN, &[""]), 0, "{:?}", log.all());
    drop(guard);
}

/// The hold in Redis goes on for the other reader, though the task that asked for it has given its read back.
#[tokio::test]
async fn a_task_that_has_given_its_read_back_does_not_wait_for_itself() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("shared");
    let waits = tokio::spawn(async move {
        let first = lock.read_lock().lock().await.unwrap();
        let read = lock.read_lock();
        let other = tokio::spawn(async move { read.lock().await });
        let other = soon(other).await.unwrap().unwrap();
        first.unlock().await.unwrap();
        let write = lock.write_lock().try_lock(ms(2_500), LONG).await.unwrap();
        other.unlock().await.unwrap();
        write.is_none()
    });
    assert!(soon(waits).await.unwrap());
    assert_eq!(log.count(Level::WARN, &[""]), 0, "{:?}", log.all());
}

#[tokio::test]
async fn an_owner_that_ends_with_detached_levels_is_logged_once() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let owner = client.new_owner();
    for _ in 0..2 {
        owner
            .get_lock("left")
            .lock()
            .await
            .unwrap()
            .detach()
            .unwrap();
    }
    drop(owner);
    gone(&server, "left").await;
    assert_eq!(log.count(Level::WARN, &["detached", "levels=2"]), 1);
}

#[tokio::test]
async fn a_shutdown_with_holds_left_is_logged() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let guard = client.get_lock("left").lock().await.unwrap();
    soon(client.shutdown(ms(50))).await;
    assert!(!guard.is_valid());
    assert_eq!(log.count(Level::WARN, &["shut down with holds left"]), 1);
    assert_eq!(log.count(Level::INFO, &["given up", "left"]), 1);
    assert_eq!(log.count(Level::WARN, &["hold lost"]), 0);
}

#[tokio::test]
async fn a_release_that_fails_after_a_body_is_logged() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("ran");
    let ran = lock.run(async |_| {
        server.kill();
    });
    ran.await.unwrap();
    let texts = ["release after a run failed", "ran"];
    assert_eq!(log.count(Level::WARN, &texts), 1, "{:?}", log.all());
    assert_eq!(log.count(Level::TRACE, &["span run", "ran"]), 1);
}

#[tokio::test]
async fn a_server_that_connect_would_refuse_is_logged_once() {
    let log = Log::new().await;
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    let client = Client::builder(&replica.url()).connect_lazy().unwrap();
    let texts = ["connect would have refused it", "replica"];
    let logged = async || log.count(Level::ERROR, &texts) > 0;
    eventually("it is logged", LONG, logged).await;
    let refused = client.get_lock("x").try_lock(Duration::ZERO, LONG).await;
    assert!(refused.is_err());
    soon(client.shutdown(LONG)).await;
    assert_eq!(log.count(Level::ERROR, &[]), 1, "{:?}", log.all());
}

/// A replica, then a password that is missing, then the replica again: the client goes on, and says each thing once.
#[tokio::test]
async fn each_reason_why_a_server_cannot_be_used_is_logged_once() {
    let log = Log::new().await;
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    let client = Client::builder(&replica.url()).connect_lazy().unwrap();
    let logged = async |text| {
        let texts = ["connect would have refused it", text];
        eventually("it is logged", LONG, async || {
            log.count(Level::ERROR, &texts) > 0
        })
        .await;
    };
    logged("replica").await;
    let cut = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let password = async |password| {
        replica
            .cmd(&["CONFIG", "SET", "requirepass", password])
            .await;
        replica.cmd(&cut).await;
    };
    password("secret").await;
    logged("denied").await;
    password("").await;
    replica.reset_calls().await;
    eventually("it is greeted again", LONG, async || {
        replica.calls_of("hello").await >= 3
    })
    .await;
    replica.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    eventually("it can be used", LONG, async || {
        let tried = client.get_lock("x").try_lock(Duration::ZERO, LONG).await;
        matches!(tried, Ok(Some(_)))
    })
    .await;
    soon(client.shutdown(LONG)).await;
    assert_eq!(log.count(Level::ERROR, &[]), 2, "{:?}", log.all());
}

/// The quorum looks at it again and again, since it may still join.
#[tokio::test]
async fn a_server_that_cannot_be_one_of_a_quorum_is_logged_once() {
    let log = Log::new().await;
    let two: Vec<_> = (0..2).map(|_| RedisServer::start()).collect();
    let third = Proxy::to(&two[0]);
    third.refuse();
    let urls = [two[0].url(), two[1].url(), third.url()];
    let quorum = Quorum::builder(urls).connect().await.unwrap();
    third.accept();
    let looks = || third.commands().get("HELLO").copied().unwrap_or_default();
    let texts = ["connect would have refused it", "another address"];
    let logged = async || log.count(Level::ERROR, &texts) > 0;
    eventually("it is logged", LONG, logged).await;
    // The next look has finished when the one after it begins.
    let before = looks();
    eventually("it is looked at again", LONG, async || {
        looks() >= before + 2
    })
    .await;
    assert_eq!(log.count(Level::ERROR, &[]), 1, "{:?}", log.all());
    drop(quorum);
}

#[tokio::test]
async fn a_server_whose_address_moves_to_another_of_its_quorum_is_logged_once() {
    let log = Log::new().await;
    let three: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let moving = Proxy::to(&three[2]);
    let urls = [three[0].url(), three[1].url(), moving.url()];
    let quorum = Quorum::builder(urls).restart_delay(Duration::ZERO);
    let quorum = quorum.connect().await.unwrap();
    moving.lead_to(&three[0]);
    let texts = ["server=3", "one of the others by another address"];
    eventually("it is logged", LONG, async || {
        let guard = quorum.get_lock("x").lock().await.expect("two of three");
        guard.unlock().await.expect("held to the end");
        log.count(Level::ERROR, &texts) > 0
    })
    .await;
    assert_eq!(log.count(Level::ERROR, &[]), 1, "{:?}", log.all());
}

/// F11. A name that nobody waits for any more does not keep the end of a refusal out of the log.
#[tokio::test]
async fn the_end_of_a_refusal_is_logged_when_nobody_who_waits_is_refused() {
    const APP: [&str; 3] = ["ACL", "SETUSER", "app"];
    let log = Log::new().await;
    let server = RedisServer::start();
    let rights = ["reset", "on", ">secret", "~*", "+@all"];
    server.cmd(&[&APP[..], &rights[..]].concat()).await;
    let client = Client::connect(&server.url().replace("//", "//app:secret@"))
        .await
        .unwrap();
    let holder = connect(&server).await;
    let _gone = holder.get_lock("gone").lock().await.unwrap();
    let deaf = holder.get_lock("deaf").lock().await.unwrap();
    let lock = client.get_lock("gone");
    let goes = tokio::spawn(async move { lock.lock().await });
    eventually("it is logged", LONG, async || {
        log.count(Level::WARN, &["subscribing was refused", "gone"]) == 1
    })
    .await;
    goes.abort();
    assert!(goes.await.unwrap_err().is_cancelled());
    let lock = client.get_lock("deaf");
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually("the other one is refused", LONG, async || {
        log.count(Level::DEBUG, &["not subscribed, polling", "deaf"]) >= 1
    })
    .await;
    server.cmd(&[&APP[..], &["&*"]].concat()).await;
    eventually("its end is logged", LONG, async || {
        log.count(Level::INFO, &["subscribing works again", "deaf"]) == 1
    })
    .await;
    deaf.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}
