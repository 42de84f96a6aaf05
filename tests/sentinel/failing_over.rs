//! Fail-overs by sentinels: by kill, by freeze, by command.

use std::time::{Duration, Instant};

use watchlock::{ClientBuilder, Error, Lease};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Proxy};
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::{ClientInfo, RedisServer};

use crate::common::{LONG, is_free, soon, try_once};
use crate::{builder, connect};

/// By when a client goes on after a fail-over.
const GOES_ON: Duration = Duration::from_secs(1);

async fn replicated(server: &RedisServer, key: &str) {
    eventually("the replica has it", LONG, async || {
        server.exists(key).await
    })
    .await;
}

/// Holds a lock through a fail-over that `fail` begins; returns how long after it clients went on.
async fn through(
    deployment: &SentinelDeployment,
    fail: impl AsyncFnOnce(&RedisServer),
) -> Duration {
    let old = &deployment.servers()[0];
    let client = connect(deployment).await;
    let other = connect(deployment).await;
    let held = try_once(&client, "held").await.unwrap().unwrap();
    replicated(&deployment.servers()[1], "held").await;
    fail(old).await;
    let waiter = tokio::spawn({
        let lock = other.get_lock("new");
        async move {
            let lease = Lease::Watchdog;
            let guard = lock.try_lock(LONG, lease).await;
            (guard, Instant::now())
        }
    });
    let new = deployment
        .master_after(old, &deployment.sentinels()[..2])
        .await;
    let over = Instant::now();
    let (guard, went_on) = soon(waiter).await.unwrap();
    let guard = guard.unwrap().expect("a new lock at the new master");
    assert!(new.exists("new").await, "at the new master");
    held.check().expect("the new master has it");
    assert!(!is_free(&other, "held").await, "the hold is there");
    // The client asserts it at the new master: verifies it, and writes its lease.
    eventually("it is asserted", LONG, async || {
        new.calls_of("pexpire").await > 0
    })
    .await;
    held.unlock().await.unwrap();
    guard.unlock().await.unwrap();
    assert!(!new.exists("held").await, "given back where the master is");
    went_on.saturating_duration_since(over)
}

#[tokio::test]
async fn a_killed_master_is_followed_by_the_next() {
    let deployment = SentinelDeployment::start().await;
    let late = through(&deployment, async |old| old.kill()).await;
    assert!(late < GOES_ON, "{late:?} after the fail-over");
}

#[tokio::test]
async fn a_frozen_master_is_followed_by_the_next() {
    let deployment = SentinelDeployment::start().await;
    let late = through(&deployment, async |old| old.freeze()).await;
    deployment.servers()[0].resume();
    assert!(late < GOES_ON, "{late:?} after the fail-over");
}

#[tokio::test]
async fn a_fail_over_by_command_costs_no_hold() {
    let deployment = SentinelDeployment::start().await;
    let sentinel = &deployment.sentinels()[0];
    let late = through(&deployment, async |_| {
        drop(sentinel.cmd(&["SENTINEL", "FAILOVER", SERVICE]).await);
    })
    .await;
    assert!(late < GOES_ON, "{late:?} after the fail-over");
}

/// A hold that the new master was not sent is lost, and its holder is notified: it does not go on believing in the old
/// one.
#[tokio::test]
async fn a_hold_that_the_new_master_does_not_have_is_lost_at_once() {
    let deployment = SentinelDeployment::start().await;
    let [old, replica] = deployment.servers() else {
        panic!("two servers")
    };
    let client = connect(&deployment).await;
    let held = try_once(&client, "held").await.unwrap().unwrap();
    replicated(replica, "held").await;
    // As if it had never been sent.
    old.freeze();
    let new = deployment
        .master_after(old, &deployment.sentinels()[..2])
        .await;
    new.cmd(&["DEL", "held"]).await;
    let lost = soon(held.lost()).await;
    old.resume();
    assert_eq!(lost, watchlock::LostReason::Missing);
    assert!(matches!(held.unlock().await, Err(Error::Lost { .. })));
}

/// The sentinels can neither make a replica of it nor end its connections: it goes on as a master.
async fn cannot_be_demoted(old: &RedisServer) {
    let rights = ["default", "-replicaof", "-slaveof"];
    old.cmd(&[&["ACL", "SETUSER"], &rights[..]].concat()).await;
}

/// The hold is kept at the new master and new locks are taken there, though the old one goes on.
async fn goes_over(
    builder: ClientBuilder,
    old: &RedisServer,
    new: &RedisServer,
    fail: impl AsyncFnOnce(),
) {
    let client = builder.watchdog_lease(LONG * 10).connect().await.unwrap();
    let held = try_once(&client, "held").await.unwrap().unwrap();
    replicated(new, "held").await;
    // Redis 6.2 counts replicated commands, too. The next renewal is due later than this test waits.
    let before = new.calls_of("pexpire").await;
    cannot_be_demoted(old).await;
    fail().await;
    eventually("the hold is asserted at the new master", LONG, async || {
        new.calls_of("pexpire").await > before
    })
    .await;
    held.check().unwrap();
    let late = try_once(&client, "late")
        .await
        .unwrap()
        .expect("it is free");
    assert!(new.exists("late").await && !old.exists("late").await);
    late.unlock().await.unwrap();
    held.unlock().await.unwrap();
    assert!(!new.exists("held").await);
    let role = old.info("replication", "role").await;
    assert_eq!(role.as_deref(), Some("master"));
}

#[tokio::test]
async fn an_old_master_that_cannot_be_demoted_is_left_at_once() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let fail = async || deployment.fail_over().await;
    goes_over(builder(&deployment), old, new, fail).await;
}

/// The client was cut off from all sentinels when they announced it.
#[tokio::test]
async fn a_fail_over_that_was_not_heard_of_is_found_by_asking() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    let builder = ClientBuilder::sentinel(proxies.iter().map(Proxy::url), SERVICE);
    let builder = builder.server_url(&deployment.server_url());
    let fail = async || {
        for proxy in &proxies {
            proxy.refuse();
            proxy.reset_all();
        }
        deployment.fail_over().await;
        deployment.master_after(old, deployment.sentinels()).await;
        for proxy in &proxies {
            proxy.accept();
        }
    };
    goes_over(builder, old, new, fail).await;
}

/// The sentinels deny `SUBSCRIBE`, so only a new connection finds the new master: here the keeper's, for the first
/// hold. Callers leave the old master then, too.
#[tokio::test]
async fn a_fail_over_that_the_first_hold_finds_is_followed_by_all() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    for sentinel in deployment.sentinels() {
        let denied = ["ACL", "SETUSER", "default", "-subscribe"];
        sentinel.cmd(&denied).await;
    }
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    let builder = ClientBuilder::sentinel(proxies.iter().map(Proxy::url), SERVICE);
    let builder = builder.server_url(&deployment.server_url());
    let client = builder.connect().await.unwrap();
    assert!(clients_of(old).await >= 1);
    cannot_be_demoted(old).await;
    deployment.fail_over().await;
    deployment.master_after(old, deployment.sentinels()).await;
    // Or the keeper might be quicker than the first try.
    for proxy in &proxies {
        proxy.refuse();
        proxy.reset_all();
    }
    let held = try_once(&client, "held").await.unwrap().unwrap();
    assert!(old.exists("held").await, "nobody could know by then");
    for proxy in &proxies {
        proxy.accept();
    }
    assert_eq!(soon(held.lost()).await, watchlock::LostReason::Missing);
    let late = try_once(&client, "late").await.unwrap().unwrap();
    assert!(new.exists("late").await && !old.exists("late").await);
    late.check().unwrap();
    late.unlock().await.unwrap();
}

/// It goes on as a master until the sentinels make it a replica, and answers every client that is still connected.
#[tokio::test]
async fn an_old_master_that_wakes_up_harms_nobody() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let client = connect(&deployment).await;
    // Connected to the old master, with nothing under way there when it stops.
    let idle = connect(&deployment).await;
    assert!(is_free(&client, "warm").await && is_free(&idle, "warm").await);
    old.freeze();
    // Sent to the old master, which will run it when it wakes up.
    let ghost = tokio::spawn({
        let lock = client.get_lock("ghost");
        async move { lock.try_lock(LONG, Lease::Watchdog).await }
    });
    deployment.master_after(old, deployment.sentinels()).await;
    let guard = soon(ghost)
        .await
        .unwrap()
        .unwrap()
        .expect("at the new master");
    assert!(new.exists("ghost").await);
    old.resume();
    // A caller that asks now asks the new one, however long the old one acts as the master.
    for round in 0..50 {
        let name = format!("after-{round}");
        for client in [&idle, &client] {
            let guard = try_once(client, &name).await.unwrap().unwrap();
            assert!(new.exists(&name).await, "{name} is at the new master");
            guard.unlock().await.unwrap();
        }
    }
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    old.synced().await;
    eventually("nothing is left anywhere", LONG, async || {
        old.keys().await.is_empty() && new.keys().await.is_empty()
    })
    .await;
}

/// Messages of the new master wake a waiter: it subscribes there.
#[tokio::test]
async fn the_new_master_wakes_a_waiter() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let (client, other) = (connect(&deployment).await, connect(&deployment).await);
    let held = try_once(&client, "x").await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = other.get_lock("x");
        async move { lock.lock().await }
    });
    crate::common::subscribed(old, "x").await;
    replicated(new, "x").await;
    old.freeze();
    deployment.master_after(old, deployment.sentinels()).await;
    crate::common::subscribed(new, "x").await;
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
    old.resume();
}

/// The same with a try under way at a frozen master: the client makes it again at the new one, without waiting for the
/// old answer.
#[tokio::test]
async fn commands_under_way_are_given_up_when_a_question_finds_the_fail_over() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    let builder = ClientBuilder::sentinel(proxies.iter().map(Proxy::url), SERVICE)
        .server_url(&deployment.server_url())
        .command_timeout(2 * LONG);
    let client = builder.connect().await.unwrap();
    assert!(is_free(&client, "warm").await);
    for proxy in &proxies {
        proxy.refuse();
        proxy.reset_all();
    }
    old.freeze();
    let ghost = tokio::spawn({
        let lock = client.get_lock("ghost");
        async move { lock.try_lock(2 * LONG, Lease::Watchdog).await }
    });
    deployment.master_after(old, deployment.sentinels()).await;
    assert!(!ghost.is_finished());
    for proxy in &proxies {
        proxy.accept();
    }
    // Long before the command time-out.
    let guard = soon(ghost).await.unwrap().unwrap().expect("granted");
    assert!(new.exists("ghost").await, "by the new master");
    old.resume();
    guard.check().unwrap();
    guard.unlock().await.unwrap();
}

/// No single sentinel is needed: here only the last one can be reached.
#[tokio::test]
async fn the_last_sentinel_alone_announces_a_fail_over() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let cut_off: Vec<_> = deployment.sentinels()[..2].iter().map(Proxy::to).collect();
    for proxy in &cut_off {
        proxy.refuse();
    }
    let last = deployment.sentinels()[2].url();
    let urls = cut_off.iter().map(Proxy::url).chain([last]);
    let builder = ClientBuilder::sentinel(urls, SERVICE).server_url(&deployment.server_url());
    let fail = async || deployment.fail_over().await;
    goes_over(builder, old, new, fail).await;
}

/// Connections of clients: sentinels name theirs, and a replica has a flag.
async fn clients_of(server: &RedisServer) -> usize {
    let all = server.clients().await;
    let is_client = |client: &&ClientInfo| {
        let named = client
            .get("name")
            .is_some_and(|name| name.starts_with("sentinel-"));
        !named && !client.get("flags").is_some_and(|flags| flags.contains('S'))
    };
    all.iter().filter(is_client).count()
}

/// The sentinels announce nothing, and the old master goes on as one: the client gives up its connection all the same.
#[tokio::test]
async fn an_idle_client_leaves_an_old_master_that_cannot_be_demoted() {
    let deployment = SentinelDeployment::start().await;
    let old = &deployment.servers()[0];
    let client = connect(&deployment).await;
    assert!(is_free(&client, "warm").await);
    assert!(clients_of(old).await >= 1);
    cannot_be_demoted(old).await;
    deployment.fail_over().await;
    eventually("it is left", LONG, async || clients_of(old).await == 0).await;
    let role = old.info("replication", "role").await;
    assert_eq!(role.as_deref(), Some("master"));
}

/// The links to the sentinels are not cut either: they go silent, and nobody reports that.
#[tokio::test]
async fn a_fail_over_behind_links_that_went_deaf_is_found_by_asking() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    let builder = ClientBuilder::sentinel(proxies.iter().map(Proxy::url), SERVICE);
    let builder = builder.server_url(&deployment.server_url());
    let fail = async || {
        // By then the look that comes a second after the first one is over, too.
        let was_asked = |proxy: &Proxy| proxy.commands().contains_key("PING");
        eventually("each was asked whether it is there", LONG, async || {
            proxies.iter().all(was_asked)
        })
        .await;
        for proxy in &proxies {
            proxy.black_hole(Direction::Both);
        }
        deployment.fail_over().await;
        deployment.master_after(old, deployment.sentinels()).await;
        // The existing connections stay deaf.
        proxies.iter().for_each(Proxy::heal);
    };
    goes_over(builder, old, new, fail).await;
}

/// It does not listen to the old master any more either; that one goes on and has nothing to announce.
#[tokio::test]
async fn a_waiter_listens_to_the_new_master_though_the_old_one_goes_on() {
    let deployment = SentinelDeployment::start().await;
    let [old, new] = deployment.servers() else {
        panic!("two servers")
    };
    let (client, other) = (connect(&deployment).await, connect(&deployment).await);
    let held = try_once(&client, "x").await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = other.get_lock("x");
        async move { lock.lock().await }
    });
    crate::common::subscribed(old, "x").await;
    replicated(new, "x").await;
    cannot_be_demoted(old).await;
    deployment.fail_over().await;
    deployment.master_after(old, deployment.sentinels()).await;
    crate::common::subscribed(new, "x").await;
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}
