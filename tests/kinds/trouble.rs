//! F6, F7, F9 and F10: servers that restart, forget, refuse, load, are busy. Each is a typed error, or callers wait;
//! holds survive it where they can, and nothing is left without a time to live.

use std::sync::Arc;
use std::time::{Duration, Instant};

use watchlock::{Error, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::{RedisServer, connection};

use crate::common::{LONG, SHORT, ms, soon};
use crate::scene::{MINUTE, Scene, takes_long_to_start, takes_no_master};
use crate::story::{Story, patient};
use crate::table::Kind;

for_every_kind! {
    loading_is_waited_for_and_holds_live_through_it,
    busy_with_a_script_is_waited_for,
    masterdown_is_waited_for,
    no_room_for_connections_is_waited_for,
    misconf_is_refused_and_passes,
    noreplicas_is_refused_and_passes,
    readonly_is_refused_and_passes_with_a_new_connection,
    i8_a_hold_whose_renewals_are_refused_is_lost_at_its_end,
    f9_out_of_memory_only_new_holds_are_refused,
    f9_out_of_memory_a_busy_lock_is_busy,
    f6_i8_a_restart_that_forgets_loses_all_holds_at_once,
    f6_a_restart_that_remembers_costs_no_hold,
    f7_scripts_that_are_flushed_in_mid_hold_cost_nothing,
    f8_an_evicted_hold_is_lost,
    f22_i8_a_stall_longer_than_the_lease_is_a_loss_while_it_lasts,
}

fn is_unavailable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. })
}

fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::Refused {
            transient: true,
            ..
        }
    )
}

/// A port on which nobody listens.
const NOBODY: &str = "1";

async fn loading_is_waited_for_and_holds_live_through_it(kind: &'static Kind) {
    let server = RedisServer::options()
        .aof()
        // Redis 6.2 cannot be made to go on at once: it loads for five seconds.
        .config("key-load-delay", "250")
        .config_since_7("key-load-delay", "1000")
        .config_since_7("loading-process-events-interval-bytes", "1024")
        .start();
    let scene = Scene::on(kind, server, patient).await;
    let server = &scene.server;
    let fill = "for i = 1, 20000 do redis.call('SET', 'fill-' .. i, string.rep('x', 100)) end";
    server.cmd(&["EVAL", fill, "0"]).await;
    let story = Story::begin(&scene).await;
    server.kill();
    server.launch();
    eventually("it loads", LONG, async || {
        let ping = server.try_cmd(&["PING"]).await;
        ping.is_err_and(|error| error.code() == Some("LOADING"))
    })
    .await;
    let waiting = story.suffer(&scene, is_unavailable).await;
    let at_once = ["CONFIG", "SET", "key-load-delay", "0"];
    let _ = server.try_cmd(&at_once).await;
    server.ready().await;
    let unfill = "for i = 1, 20000 do redis.call('DEL', 'fill-' .. i) end";
    server.cmd(&["EVAL", unfill, "0"]).await;
    waiting.recover(&scene).await;
}

async fn busy_with_a_script_is_waited_for(kind: &'static Kind) {
    let server = RedisServer::options()
        .config("lua-time-limit", "50")
        .start();
    let scene = Arc::new(Scene::on(kind, server, patient).await);
    let story = Story::begin(&scene).await;
    let mut probe = connection(&scene.server.url()).await;
    let endless = tokio::spawn({
        let scene = Arc::clone(&scene);
        let script = "while true do redis.call('TIME') end";
        async move { scene.server.try_cmd(&["EVAL", script, "0"]).await }
    });
    eventually("it is busy", LONG, async || {
        let pong = redis::cmd("PING").query_async::<()>(&mut probe).await;
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let waiting = story.suffer(&scene, is_unavailable).await;
    let kill = redis::cmd("SCRIPT").arg("KILL").clone();
    kill.query_async::<()>(&mut probe).await.unwrap();
    assert!(endless.await.unwrap().is_err());
    waiting.recover(&scene).await;
}

async fn masterdown_is_waited_for(kind: &'static Kind) {
    if takes_no_master() {
        return;
    }
    let server = RedisServer::options()
        .config("replica-serve-stale-data", "no")
        .start();
    let scene = Scene::on(kind, server, patient).await;
    let story = Story::begin(&scene).await;
    scene.server.cmd(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    let waiting = story.suffer(&scene, is_unavailable).await;
    scene.server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    waiting.recover(&scene).await;
}

async fn no_room_for_connections_is_waited_for(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, patient).await;
    let story = Story::begin(&scene).await;
    // The kit's own connection exists already, and takes the only place.
    let set = ["CONFIG", "SET", "maxclients", "1"];
    scene.server.cmd(&set).await;
    proxy.reset_all();
    eventually("the client is out", LONG, async || {
        scene.server.connections().await == 0
    })
    .await;
    let waiting = story.suffer(&scene, is_unavailable).await;
    let set = ["CONFIG", "SET", "maxclients", "1000"];
    scene.server.cmd(&set).await;
    waiting.recover(&scene).await;
}

async fn misconf_is_refused_and_passes(kind: &'static Kind) {
    let server = RedisServer::options()
        .config_since_7("enable-protected-configs", "yes")
        .config("save", "3600 1")
        .start();
    let scene = Scene::on(kind, server, patient).await;
    let server = &scene.server;
    let story = Story::begin(&scene).await;
    let gone = server.dir().join("gone");
    std::fs::create_dir(&gone).unwrap();
    let dir = async |dir: &std::path::Path| {
        server
            .cmd(&["CONFIG", "SET", "dir", dir.to_str().unwrap()])
            .await;
    };
    dir(&gone).await;
    std::fs::remove_dir(&gone).unwrap();
    let saved = async |status: &str| {
        let _ = server.try_cmd(&["BGSAVE"]).await;
        let last = server.info("persistence", "rdb_last_bgsave_status").await;
        last.as_deref() == Some(status)
    };
    eventually("saving fails", LONG, async || saved("err").await).await;
    let waiting = story.suffer(&scene, is_refused).await;
    assert!(!server.exists("new").await);
    dir(server.dir()).await;
    eventually("saving works", LONG, async || saved("ok").await).await;
    waiting.recover(&scene).await;
}

async fn min_replicas(scene: &Scene, number: &str) {
    let set = ["CONFIG", "SET", "min-replicas-to-write", number];
    scene.server.cmd(&set).await;
}

async fn noreplicas_is_refused_and_passes(kind: &'static Kind) {
    let scene = Scene::with(kind, patient).await;
    let story = Story::begin(&scene).await;
    min_replicas(&scene, "1").await;
    let waiting = story.suffer(&scene, is_refused).await;
    assert!(!scene.server.exists("new").await);
    min_replicas(&scene, "0").await;
    waiting.recover(&scene).await;
}

async fn readonly_is_refused_and_passes_with_a_new_connection(kind: &'static Kind) {
    if takes_no_master() {
        return;
    }
    let scene = Scene::with(kind, patient).await;
    let server = &scene.server;
    let received = async || {
        let total = server.info("stats", "total_connections_received").await;
        total.unwrap().parse::<u64>().unwrap()
    };
    let story = Story::begin(&scene).await;
    server.cmd(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    let before = received().await;
    let waiting = story.suffer(&scene, is_refused).await;
    assert!(!server.exists("new").await);
    assert!(received().await > before, "the master may be elsewhere");
    server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    waiting.recover(&scene).await;
}

/// A refusal for longer than a lease costs the hold, by its own clock.
async fn i8_a_hold_whose_renewals_are_refused_is_lost_at_its_end(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let guard = scene.lock("held").lock().await.unwrap();
    min_replicas(&scene, "1").await;
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(guard.unlock().await.unwrap_err().is_lost());
    min_replicas(&scene, "0").await;
    let guard = soon(scene.lock("held").lock()).await.unwrap();
    guard.unlock().await.unwrap();
    scene.clean().await;
}

/// Nothing has to be written to see that. Those who wait do so for longer than they bear refusals.
async fn f9_out_of_memory_a_busy_lock_is_busy(kind: &'static Kind) {
    let bears = ms(300);
    let scene = Scene::with(kind, |builder| builder.unavailable_after(bears)).await;
    scene.warm().await;
    let other = scene.other().await;
    let names = ["waited for", "new"];
    let rivals = names.map(|name| scene.rival(&other, name));
    let mut held = Vec::new();
    for rival in &rivals {
        held.push(rival.lock().await.unwrap());
    }
    let waits = |name| {
        let lock = scene.lock(name);
        tokio::spawn(async move { lock.lock().await?.unlock().await })
    };
    let early = waits("waited for");
    scene.waited_for(1).await;
    let server = &scene.server;
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    // A fair lock's first waiter in a client needs a place in Redis, for which there is no memory (tests/fair).
    let new = names[usize::from(kind.name != "fair")];
    let waiters = [early, waits("waited for"), waits(new)];
    for (name, wait) in [(new, Duration::ZERO), ("waited for", bears * 2)] {
        let lock = scene.lock(name);
        let tried = soon(lock.try_lock(wait, Lease::Fixed(MINUTE))).await;
        assert!(tried.unwrap().is_none(), "{name}");
    }
    tokio::time::sleep(bears * 4).await;
    let ended = waiters
        .iter()
        .position(tokio::task::JoinHandle::is_finished);
    assert_eq!(ended, None, "they wait");
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for rival in held {
        rival.unlock().await.unwrap();
    }
    for waiter in waiters {
        soon(waiter).await.unwrap().unwrap();
    }
    scene.clean().await;
}

/// No new hold fits in; existing ones survive and end in order.
async fn f9_out_of_memory_only_new_holds_are_refused(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let server = &scene.server;
    let guard = scene.lock("held").lock().await.unwrap();
    let partial = guard.reenter(Lease::Watchdog).await.unwrap();
    let fixed = scene.lock("fixed").lock_with_lease(MINUTE).await.unwrap();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let refused = scene.try_once(&scene.client, "new").await.unwrap_err();
    assert!(is_refused(&refused), "{refused:?}");
    assert!(scene.keys().await.iter().all(|key| !key.contains("new")));
    let renewals = server.calls_of("pexpire").await;
    eventually("renewed", LONG, async || {
        server.calls_of("pexpire").await >= renewals + 6
    })
    .await;
    guard.verify().await.unwrap();
    // The count cannot be written; the level is there all the same.
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    assert_eq!(inner.hold_count(), 3);
    inner.unlock().await.unwrap();
    partial.unlock().await.unwrap();
    assert_eq!(guard.hold_count(), 1);
    fixed.extend(MINUTE * 2).await.unwrap();
    assert!(server.pttl("fixed").await > 60_000);
    scene.assert_leased("out of memory").await;
    fixed.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(scene.keys().await.is_empty());

    let lock = scene.lock("new");
    let waiter = tokio::spawn(async move { lock.lock().await });
    server.cmd(&["CONFIG", "SET", "maxmemory", "0"]).await;
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    scene.clean().await;
}

/// By when waiters are back after a restart; the promise is 250 ms.
const BACK: Duration = Duration::from_secs(3);

async fn renewed(scene: &Scene, times: u64) {
    let before = scene.server.calls_of("pexpire").await;
    eventually("renewed", LONG, async || {
        scene.server.calls_of("pexpire").await >= before + times
    })
    .await;
}

async fn f6_i8_a_restart_that_forgets_loses_all_holds_at_once(kind: &'static Kind) {
    if takes_long_to_start() {
        return;
    }
    let scene = Scene::short(kind).await;
    let other = scene.listener().await;
    let watched = scene.lock("watched").lock().await.unwrap();
    let fixed = scene.lock("fixed").lock_with_lease(MINUTE).await.unwrap();
    let rival = scene.rival(&other, "fixed");
    let waiter =
        tokio::spawn(async move { rival.lock().await.map(|guard| (guard, Instant::now())) });
    scene.waited_for(1).await;
    // The keeper's connection exists, and will turn out to be cut.
    renewed(&scene, 1).await;
    scene.server.restart();
    let ready = Instant::now();
    let (guard, got_in) = soon(waiter).await.unwrap().unwrap();
    assert!(got_in.saturating_duration_since(ready) < BACK);
    for old in [watched, fixed] {
        // Also the hold that is not renewed: the client verifies all when the connection turns out to be cut.
        let lost = tokio::time::timeout(LONG, old.lost()).await;
        let lost = lost.expect("reported long before its lease");
        assert_eq!(lost, LostReason::Missing);
        assert!(old.unlock().await.unwrap_err().is_lost());
    }
    // Whatever they sent after it does not concern us.
    guard.verify().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(scene.is_free(&scene.client, "watched").await);
    scene.clean().await;
}

async fn f6_a_restart_that_remembers_costs_no_hold(kind: &'static Kind) {
    if takes_long_to_start() {
        return;
    }
    let server = RedisServer::options().aof().start();
    let scene = Scene::on(kind, server, |builder| builder.watchdog_lease(SHORT)).await;
    let other = scene.listener().await;
    let watched = scene.lock("watched").lock().await.unwrap();
    let fixed = scene.lock("fixed").lock_with_lease(MINUTE).await.unwrap();
    let rival = scene.rival(&other, "fixed");
    let waiter = tokio::spawn(async move { rival.lock().await });
    scene.waited_for(1).await;
    scene.server.restart();
    renewed(&scene, 6).await;
    watched.check().unwrap();
    fixed.check().unwrap();
    assert!(!waiter.is_finished());
    scene.waited_for(1).await;
    watched.unlock().await.unwrap();
    fixed.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    scene.clean().await;
}

async fn f7_scripts_that_are_flushed_in_mid_hold_cost_nothing(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let flush = async || {
        scene.server.cmd(&["SCRIPT", "FLUSH"]).await;
    };
    flush().await;
    let guard = scene.lock("held").lock().await.unwrap();
    flush().await;
    let inner = guard.reenter(Lease::Watchdog).await.unwrap();
    flush().await;
    guard.verify().await.unwrap();
    let renewals = scene.server.calls_of("pexpire").await;
    eventually("renewed through it", LONG, async || {
        flush().await;
        scene.server.calls_of("pexpire").await >= renewals + 6
    })
    .await;
    flush().await;
    inner.unlock().await.unwrap();
    scene.assert_count("held", 1).await;
    flush().await;
    guard.unlock().await.unwrap();
    flush().await;
    assert!(!scene.lock("held").force_unlock().await.unwrap());
    scene.clean().await;
}

async fn f8_an_evicted_hold_is_lost(kind: &'static Kind) {
    let scene = Scene::short(kind).await;
    let guard = scene.lock("evicted").lock().await.unwrap();
    let policy = ["CONFIG", "SET", "maxmemory-policy", "volatile-lru"];
    scene.server.cmd(&policy).await;
    let set = ["CONFIG", "SET", "maxmemory", "1"];
    scene.server.cmd(&set).await;
    scene.free().await;
    assert_eq!(soon(guard.lost()).await, LostReason::Missing);
    let set = ["CONFIG", "SET", "maxmemory", "0"];
    scene.server.cmd(&set).await;
    assert!(scene.is_free(&scene.client, "evicted").await);
}

async fn f22_i8_a_stall_longer_than_the_lease_is_a_loss_while_it_lasts(kind: &'static Kind) {
    let scene = Scene::with(kind, |it| patient(it).watchdog_lease(SHORT)).await;
    let guard = scene.lock("stall").lock().await.unwrap();
    let limit = guard.valid_for() + ms(500);
    scene.server.freeze();
    let began = Instant::now();
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert!(began.elapsed() < limit + SHORT);
    assert!(!guard.is_valid());
    assert!(soon(guard.unlock()).await.unwrap_err().is_lost());
    scene.server.resume();
    let again = soon(scene.lock("stall").lock()).await.unwrap();
    again.unlock().await.unwrap();
    scene.clean().await;
}
