//! A master that became a replica: the client leaves it for the new one, without a storm of connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use watchlock::{Client, Lease};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, connect_short, ms, soon, try_once};

/// A port where no master is.
const NOBODY: &str = "1";

async fn total_connections(server: &RedisServer) -> u64 {
    let total = server.info("stats", "total_connections_received").await;
    total.unwrap().parse().unwrap()
}

/// Whatever it answers in between, a server that stays a replica sees few connections and no flood of commands; and the
/// holds that it still has are not lost.
#[tokio::test]
async fn a_server_that_stays_a_replica_is_not_stormed() {
    const HOLDS: usize = 250;
    const WAITERS: usize = 10;
    let server = RedisServer::start();
    let client = Client::builder(&server.url())
        .watchdog_lease(ms(30_000))
        .unavailable_after(2 * LONG);
    let client = client.connect().await.unwrap();
    let mut holds = Vec::new();
    for index in 0..HOLDS {
        let guard = try_once(&client, &format!("held-{index}")).await;
        holds.push(guard.unwrap().unwrap());
    }
    server.cmd(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let lock = client.get_lock(&format!("new-{index}"));
            tokio::spawn(async move { lock.lock().await })
        })
        .collect();
    eventually("they are refused", LONG, async || {
        server
            .info("errorstats", "errorstat_READONLY")
            .await
            .is_some()
    })
    .await;
    let connections = total_connections(&server).await;
    server.reset_calls().await;
    // Measuring a rate takes a while.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let connections = total_connections(&server).await - connections;
    let looks = server.calls_of("hexists").await;
    server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    assert!(connections <= 30, "{connections} connections in 4 s");
    // Each new connection asks for each hold once, and not more often.
    let most = (connections + 5) * HOLDS as u64;
    assert!(looks <= most, "{looks} looks at {HOLDS} holds in 4 s");
    for waiter in waiters {
        let guard = soon(waiter).await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
    for guard in holds {
        guard.unlock().await.expect("it was there all the time");
    }
}

#[tokio::test]
async fn a_renewal_leaves_a_master_that_became_a_replica() {
    let server = RedisServer::start();
    let client = connect_short(&server).await;
    let guard = try_once(&client, "held").await.unwrap().unwrap();
    server.cmd(&["REPLICAOF", "127.0.0.1", NOBODY]).await;
    let before = total_connections(&server).await;
    // Only the watchdog does anything.
    eventually("a new connection", SHORT, async || {
        total_connections(&server).await > before
    })
    .await;
    assert!(guard.is_valid(), "while there is time");
    server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let renewed = server.calls_of("pexpire").await;
    eventually("it is renewed", LONG, async || {
        server.calls_of("pexpire").await >= renewed + 3
    })
    .await;
    guard.unlock().await.unwrap();
}

/// A replica that takes writes refuses nothing, so only its role shows that it is not the master any more.
#[tokio::test]
async fn a_replica_that_takes_writes_grants_nothing() {
    let old = RedisServer::options()
        .config("replica-read-only", "no")
        .start();
    let client = Client::builder(&old.url()).watchdog_lease(ms(1_500));
    let client = client.connect().await.unwrap();
    let held = try_once(&client, "held").await.unwrap().unwrap();
    let new = RedisServer::options().replica_of(&old).start();
    new.synced().await;
    new.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    old.cmd(&["REPLICAOF", "127.0.0.1", &new.port().to_string()])
        .await;
    old.synced().await;
    eventually("it refuses", LONG, async || {
        match try_once(&client, "probe").await {
            Ok(probe) => {
                drop(probe);
                false
            }
            Err(_) => true,
        }
    })
    .await;
    let other = connect_short(&new).await;
    let theirs = try_once(&other, "x").await.unwrap().unwrap();
    // A new connection to it does not help.
    for _ in 0..5 {
        let error = try_once(&client, "x").await.expect_err("a replica");
        assert!(error.is_transient(), "{error}");
    }
    soon(held.lost()).await;
    theirs.unlock().await.unwrap();
    old.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let again = client.get_lock("x").try_lock(LONG, Lease::Watchdog).await;
    again.unwrap().unwrap().unlock().await.unwrap();
}

/// An address that leads to the master, wherever that is.
async fn address_of_master(port: &Arc<AtomicU16>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let port = Arc::clone(port);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let port = port.load(Ordering::SeqCst);
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", port)).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    format!("redis://{address}/")
}

#[tokio::test]
async fn a_hold_survives_a_fail_over_that_keeps_the_old_connections() {
    let old = RedisServer::start();
    let new = RedisServer::options().replica_of(&old).start();
    new.synced().await;
    let port = Arc::new(AtomicU16::new(old.port()));
    let client = Client::builder(&address_of_master(&port).await).watchdog_lease(ms(3_000));
    let client = client.connect().await.unwrap();
    let guard = try_once(&client, "held").await.unwrap().unwrap();
    eventually("the replica has it", LONG, async || {
        new.exists("held").await
    })
    .await;
    port.store(new.port(), Ordering::SeqCst);
    new.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    let new_port = new.port().to_string();
    old.cmd(&["REPLICAOF", "127.0.0.1", &new_port]).await;
    let renewed = new.calls_of("pexpire").await;
    eventually("it is renewed there", LONG, async || {
        new.calls_of("pexpire").await >= renewed + 3
    })
    .await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    let lock = client.get_lock("held");
    let again = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
    again.unwrap().unwrap().unlock().await.unwrap();
}
