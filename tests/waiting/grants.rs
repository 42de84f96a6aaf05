//! A grant and its caller: not collected, collected by another of the same owner, or refused in the very moment.

use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, clean, connect, gone, ms, poll_once, soon, subscribed};

/// It is taken back after a command time-out, or ends with its lease before; the keeper has nothing to do with it
/// any more, and looks after everything else.
#[tokio::test]
async fn i9_a_grant_that_nobody_collects_leaves_the_keeper_at_rest() {
    for lease in [Lease::Watchdog, Lease::Fixed(ms(150))] {
        let server = RedisServer::start();
        let builder = Client::builder(&server.url()).watchdog_lease(SHORT);
        let client = builder.command_timeout(ms(400)).connect().await.unwrap();
        let kept = client.get_lock("kept").lock().await.unwrap();
        let first = client.get_lock("line").lock().await.unwrap();
        let lock = client.get_lock("line");
        let mut waiting = Box::pin(lock.try_lock(LONG * 10, lease));
        assert!(poll_once(&mut waiting).await.is_none());
        subscribed(&server, "line").await;
        let grants = server.calls_of("hset").await;
        first.unlock().await.unwrap();
        eventually("it was granted", LONG, async || {
            server.calls_of("hset").await > grants
        })
        .await;
        gone(&server, "line").await;
        eventually("the job of the name is over", LONG, async || {
            server.channels().await.is_empty()
        })
        .await;
        let renewals = server.calls_of("pexpire").await;
        eventually("the other hold is renewed on and on", LONG, async || {
            server.calls_of("pexpire").await >= renewals + 6
        })
        .await;
        kept.check().unwrap();
        soon(client.shutdown(ms(100))).await;
        drop(waiting);
        clean(&server).await;
    }
}

/// The second acquire looks whether its owner has the lock while the first one is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_behind_a_hold_of_its_own_owner() {
    let server = RedisServer::start();
    let client = connect(&server).await;
    for round in 0..1_000 {
        let owner = client.new_owner();
        let lock = owner.get_lock(&format!("own-{round}"));
        let both = [(); 2].map(|()| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.lock().await })
        });
        let mut guards = Vec::new();
        for acquiring in both {
            guards.push(soon(acquiring).await.unwrap().unwrap());
        }
        assert_eq!(lock.hold_count(), 2);
        drop(guards);
    }
    clean(&server).await;
}
