//! Holds that still have their majority take back servers that return.

use futures_util::future::join_all;
use watchlock::{Client, Lease, LockGuard, QuorumLock};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match, Proxy};

use crate::common::{LONG, ms, script, soon};
use crate::{Five, end, of, try_once};

#[tokio::test]
async fn a_hold_outlives_the_restart_of_all_servers_one_after_the_other() {
    let five = Five::start();
    let quorum = five.connect_for(ms(2_000)).await;
    let other = five.connect().await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    for server in &five.0 {
        server.restart();
        five.until(5, "x").await;
        assert!(try_once(&other.get_lock("x")).await.is_none());
        guard.verify().await.unwrap();
    }
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn a_fixed_lease_gets_no_longer_by_a_repair() {
    let five = Five::start();
    let quorum = five.connect().await;
    let guard = quorum
        .get_lock("x")
        .lock_with_lease(ms(20_000))
        .await
        .unwrap();
    five.until(5, "x").await;
    five.0[0].restart();
    five.0[3].cmd(&["DEL", "x"]).await;
    // Nobody renews it, so only a question finds it, and questions to the other nodes may be answered before.
    eventually("all have it again", LONG, async || {
        guard.verify().await.expect("three have it");
        five.have(&[0, 1, 2, 3, 4], "x").await == 5
    })
    .await;
    let left = i64::try_from(guard.valid_for().as_millis()).unwrap();
    assert!(left < 20_000);
    for server in [0, 3] {
        assert!(five.0[server].pttl("x").await <= 20_000);
    }
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn both_sorts_of_levels_are_taken_along() {
    let five = Five::start();
    let quorum = five.connect_for(ms(2_000)).await;
    let guard = quorum.get_lock("x").lock().await.unwrap();
    let fixed = guard.reenter(ms(1_900)).await.unwrap();
    for server in [0, 1, 2, 3, 4] {
        five.0[server].restart();
        five.until(5, "x").await;
    }
    assert_eq!(guard.hold_count(), 2);
    end(fixed).await;
    guard.verify().await.unwrap();
    five.until(5, "x").await;
    end(guard).await;
    five.clean().await;
}

#[tokio::test]
async fn a_hold_that_is_over_is_not_repaired() {
    let five = Five::start();
    let quorum = five.connect_for(ms(1_200)).await;
    let lock = quorum.get_lock("x");
    let guard = lock.lock().await.unwrap();
    five.until(5, "x").await;
    for server in [0, 1, 2] {
        five.0[server].cmd(&["DEL", "x"]).await;
    }
    soon(guard.lost()).await;
    let other = five.connect().await;
    let got = soon(other.get_lock("x").try_lock(ms(20_000), Lease::Watchdog)).await;
    let got = got.unwrap().expect("it is lost");
    assert!(guard.unlock().await.expect_err("lost").is_lost());
    end(got).await;
    five.clean().await;
}

/// The release reaches all servers at once, but the holder's renewals hear of it at one after the other.
#[tokio::test]
async fn a_forced_release_is_not_undone_one_server_after_the_other() {
    let five = Five::start();
    let proxies: Vec<_> = five.0.iter().map(Proxy::to).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let quorum = of(&urls).watchdog_lease(ms(6_000)).connect().await.unwrap();
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let renewals = Match::script(&script("lock/verify.lua"));
    for (late, proxy) in (0..).zip(&proxies) {
        let delay = Fault::DelayRequest(ms(500 * late));
        let _ = proxy.inject(delay).on(renewals.clone()).arm();
    }
    let released = five.connect().await.get_lock("x").force_unlock().await;
    assert!(released.unwrap());
    soon(guard.lost()).await;
    assert_eq!(five.have(&[0, 1, 2, 3, 4], "x").await, 0);
    five.clean().await;
}

/// Thousands of holds may lack the same server, and the others must have time for renewals.
#[tokio::test]
async fn a_server_that_stays_busy_makes_no_work_for_the_others() {
    let five = Five::start();
    let proxies: Vec<_> = five.0.iter().map(Proxy::to).collect();
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let quorum = of(&urls).connect().await.unwrap();
    let client = Client::connect(five.0[4].url()).await.unwrap();
    let other = client.get_lock("x").lock().await.unwrap();
    let guard = quorum.get_lock("x").lock().await.unwrap();
    five.until(5, "x").await;
    let tries = proxies[4].count(Match::script(&script("lock/acquire.lua")));
    let looks = Match::script(&script("lock/verify.lua"));
    let looks: Vec<_> = proxies[..4]
        .iter()
        .map(|proxy| proxy.count(looks.clone()))
        .collect();
    eventually("it was asked again and again", LONG, async || {
        tries.seen() >= 5
    })
    .await;
    for looks in looks {
        // Once: by the script's hash, and by its text.
        assert!(looks.seen() <= 2, "asked {} times", looks.seen());
    }
    other.unlock().await.unwrap();
    end(guard).await;
    five.clean().await;
}

/// A server that lost a thousand holds, and answers no try, costs the others little.
#[tokio::test]
async fn a_server_is_taken_back_into_a_few_holds_at_a_time() {
    const HOLDS: u64 = 1_000;
    let five = Five::start();
    let (near, proxy) = (Proxy::to(&five.0[0]), Proxy::to(&five.0[4]));
    let mut urls = five.urls();
    (urls[0], urls[4]) = (near.url(), proxy.url());
    // On a busy machine a thousand releases at once take longer than a second. And a renewal would count as a look.
    let builder = of(&urls).command_timeout(ms(10_000));
    let builder = builder.watchdog_lease(ms(600_000));
    let quorum = builder.connect().await.unwrap();
    let locks = (0..HOLDS).map(|number| quorum.get_lock(format!("x{number}")));
    let locks: Vec<_> = locks.collect();
    let mut guards = Vec::new();
    for some in locks.chunks(50) {
        for locked in join_all(some.iter().map(QuorumLock::lock)).await {
            guards.push(locked.unwrap());
        }
    }
    // On a busy machine some were got by a majority, and the others join.
    for server in &five.0 {
        eventually("it has all", LONG, async || {
            server.query::<u64>(&["DBSIZE"]).await == HOLDS
        })
        .await;
    }
    // Else those that are asked before it is there are asked twice.
    let look = script("lock/verify.lua");
    five.0[0].cmd(&["SCRIPT", "LOAD", &look]).await;
    // It forgets all of them, and its answer to the first try is lost, with all behind it.
    let acquires = Match::script(&script("lock/acquire.lua"));
    let deaf = proxy.inject(Fault::SwallowReply).on(acquires).arm();
    let looks = near.count(Match::script(&look));
    five.0[4].restart();
    eventually("it is asked", LONG, async || deaf.fired() > 0).await;
    let pings = proxy.count(Match::command("PING"));
    eventually("it is silent", LONG, async || pings.seen() > 0).await;
    // For the holds whose repair had begun; on a busy machine the servers seem far away, and those are more.
    assert!(looks.seen() < HOLDS * 2 / 3, "asked {} times", looks.seen());
    for ended in join_all(guards.into_iter().map(LockGuard::unlock)).await {
        ended.expect("held to the end");
    }
    five.clean().await;
}

/// It got a bare majority beside somebody else.
#[tokio::test]
async fn servers_that_were_busy_at_the_acquire_join_when_they_are_free() {
    let five = Five::start();
    let quorum = five.connect().await;
    let mut others = Vec::new();
    for server in [3, 4] {
        let client = Client::connect(five.0[server].url()).await.unwrap();
        others.push(client.get_lock("x").lock().await.unwrap());
    }
    let guard = quorum.get_lock("x").lock().await.unwrap();
    for other in others {
        other.unlock().await.unwrap();
    }
    five.until(5, "x").await;
    for server in [0, 1, 2] {
        assert!(five.0[server].exists("x").await);
    }
    guard.verify().await.unwrap();
    end(guard).await;
    five.clean().await;
}

/// The repair of a server and the end of the hold meet: whichever is first, nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_taken_back_beside_the_last_release_keeps_nothing() {
    let five = Five::start();
    let quorum = five.connect().await;
    let lock = quorum.get_lock("x");
    for round in 0..8 {
        let guard = soon(lock.lock()).await.unwrap();
        five.until(5, "x").await;
        five.0[3].cmd(&["DEL", "x"]).await;
        eventually("it is taken back", LONG, async || {
            guard.verify().await.expect("four have it");
            five.0[3].exists("x").await
        })
        .await;
        // Its answer is on its way.
        if round % 2 == 1 {
            tokio::task::yield_now().await;
        }
        end(guard).await;
        five.clean().await;
    }
}
