//! A runtime whose clock is paused, as in the tests of many applications: its timers fire as soon as nothing else is
//! ready. Those of a client must not.

use std::time::Instant;

use watchlock::{Client, Error};
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{ms, try_once};

#[tokio::test(start_paused = true)]
async fn a_client_connects_where_time_is_paused() {
    let server = RedisServer::start();
    let given = watchlock::redis::Client::open(server.url()).unwrap();
    for _ in 0..30 {
        for builder in [Client::builder(&server.url()), Client::builder_from(&given)] {
            let client = builder.connect().await.unwrap();
            let lock = client.get_lock("x");
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
    }
}

/// Each step of the way takes longer than a look at the clock.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_far_away_is_waited_for_where_time_is_paused() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    proxy.latency(ms(100));
    for _ in 0..3 {
        let client = Client::connect(&proxy.url()).await.unwrap();
        let guard = try_once(&client, "x").await.unwrap().unwrap();
        proxy.reset_all();
        guard.unlock().await.unwrap();
        let lazy = Client::builder(&proxy.url()).connect_lazy().unwrap();
        let guard = try_once(&lazy, "y").await.unwrap().unwrap();
        guard.unlock().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_has_its_time_where_time_is_paused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let started = Instant::now();
    let error = Client::builder(&url).connect_timeout(ms(500)).connect();
    let error = error.await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(started.elapsed() >= ms(500), "{:?}", started.elapsed());
}
