//! One client on several runtimes: a connection for each, which ends with its runtime.

use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use watchlock::{Client, Error, Lease};
use watchlock_support::server::RedisServer;
use watchlock_support::wait_until;

use crate::common::{LONG, clean, soon, try_once};
use crate::works;

fn single() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

fn several() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Waits, outside of all runtimes, until the server has exactly that many connections.
fn connections(server: &RedisServer, count: usize) {
    let looking = single();
    wait_until(&format!("{count} connections"), LONG, || {
        looking.block_on(server.connections()) == count
    });
}

#[test]
fn each_runtime_has_a_connection_that_goes_with_it() {
    let server = RedisServer::start();
    let home = several();
    let client = home.block_on(async {
        let client = Client::connect(&server.url()).await.unwrap();
        drop(try_once(&client, "used").await.unwrap());
        clean(&server).await;
        client
    });
    connections(&server, 2);
    for make in [single, several] {
        let away = make();
        away.block_on(works(&client));
        connections(&server, 3);
        away.block_on(works(&client));
        connections(&server, 3);
        drop(away);
        connections(&server, 2);
    }
    home.block_on(works(&client));
    drop(client);
    connections(&server, 0);
}

#[test]
fn guards_cross_runtimes() {
    let server = RedisServer::start();
    let (one, other) = (several(), single());
    let client = one.block_on(Client::connect(&server.url())).unwrap();
    for _ in 0..50 {
        let guard = one.block_on(try_once(&client, "x")).unwrap().unwrap();
        let inner = other.block_on(guard.reenter(Lease::Watchdog)).unwrap();
        one.block_on(inner.unlock()).unwrap();
        other.block_on(guard.unlock()).unwrap();
    }
    one.block_on(clean(&server));
}

#[test]
fn many_short_runtimes_leave_nothing() {
    let server = RedisServer::start();
    let home = several();
    let client = home.block_on(Client::connect(&server.url())).unwrap();
    for round in 0..30 {
        let away = if round % 2 == 0 { single() } else { several() };
        let guard = away.block_on(try_once(&client, "x")).unwrap();
        drop(away);
        drop(guard.unwrap_or_else(|| panic!("free in round {round}")));
    }
    home.block_on(clean(&server));
    home.block_on(works(&client));
    connections(&server, 2);
}

#[test]
fn a_runtime_that_ends_in_the_middle_of_everything_stops_nobody_else() {
    let server = RedisServer::start();
    let home = several();
    let client = home.block_on(Client::connect(&server.url())).unwrap();
    for _ in 0..20 {
        let away = several();
        for _ in 0..8 {
            let lock = client.get_lock("x");
            away.spawn(async move {
                while let Ok(guard) = lock.lock().await {
                    let _ = guard.unlock().await;
                }
            });
        }
        let guard = home.block_on(soon(client.get_lock("x").lock())).unwrap();
        away.shutdown_background();
        home.block_on(guard.unlock()).unwrap();
        let again = client.get_lock("x");
        let again = home.block_on(again.try_lock(LONG, Lease::Watchdog));
        home.block_on(again.unwrap().expect("it is freed").unlock())
            .unwrap();
    }
    home.block_on(clean(&server));
}

#[test]
fn a_future_that_moves_to_another_runtime_goes_on() {
    let server = RedisServer::start();
    let (one, other) = (single(), single());
    let client = one.block_on(Client::connect(&server.url())).unwrap();
    let guard = one.block_on(try_once(&client, "x")).unwrap().unwrap();
    let lock = client.get_lock("x");
    let mut waiting = Box::pin(async move { lock.lock().await });
    let first = one.block_on(crate::common::poll_once(&mut waiting));
    assert!(first.is_none(), "it is held");
    one.block_on(guard.unlock()).unwrap();
    let guard = other.block_on(soon(waiting)).unwrap();
    other.block_on(guard.unlock()).unwrap();
}

#[test]
fn a_future_outlives_the_runtime_that_connects_for_it() {
    let server = RedisServer::start();
    let (one, other) = (single(), single());
    let client = other.block_on(Client::connect(&server.url())).unwrap();
    for polls in 1..20 {
        let away = single();
        let lock = client.get_lock("x");
        let mut waiting = Box::pin(async move { lock.lock().await });
        let ready = away.block_on(async {
            for _ in 0..polls {
                if let Some(ready) = crate::common::poll_once(&mut waiting).await {
                    return Some(ready);
                }
                tokio::task::yield_now().await;
            }
            None
        });
        drop(away);
        match ready {
            Some(guard) => drop(guard.unwrap()),
            None => drop(waiting),
        }
        let next = client.get_lock("x");
        let guard = other.block_on(soon(next.lock())).unwrap();
        one.block_on(guard.unlock()).unwrap();
    }
    other.block_on(clean(&server));
}

#[test]
fn a_client_is_dropped_anywhere() {
    let server = RedisServer::start();
    let home = several();
    for _ in 0..10 {
        let client = home.block_on(Client::connect(&server.url())).unwrap();
        let guard = home.block_on(try_once(&client, "x")).unwrap().unwrap();
        drop(client);
        // The last of its client, outside any runtime: the keeper finishes the release.
        thread::spawn(move || drop(guard)).join().unwrap();
        let free = home.block_on(server.exists("x"));
        assert!(!free, "released when the drop returned");
    }
    connections(&server, 0);
}

#[test]
fn a_shutdown_from_another_runtime() {
    let server = RedisServer::start();
    let (one, other) = (several(), single());
    let client = one.block_on(Client::connect(&server.url())).unwrap();
    one.block_on(works(&client));
    other.block_on(soon(client.shutdown(Duration::from_secs(1))));
    let after = one.block_on(try_once(&client, "x"));
    assert!(matches!(after, Err(Error::Closed)), "{after:?}");
    connections(&server, 0);
}
