//! LOADING, BUSY, MASTERDOWN and no room for connections: certainly nothing was done, and it passes.

use std::sync::Arc;

use watchlock::Error;
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use super::{Story, patient};
use crate::common::LONG;

fn is_unavailable(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. })
}

#[tokio::test]
async fn loading_is_waited_for_and_holds_live_through_it() {
    let server = RedisServer::options()
        .aof()
        .config("key-load-delay", "1000")
        .config("loading-process-events-interval-bytes", "1024")
        .start();
    let fill = "for i = 1, 5000 do redis.call('SET', 'fill-' .. i, string.rep('x', 100)) end";
    server.cmd(&["EVAL", fill, "0"]).await;
    let story = Story::begin(patient(&server.url()).await).await;
    server.kill();
    server.launch();
    eventually("it loads", LONG, async || {
        let ping = server.try_cmd(&["PING"]).await;
        ping.is_err_and(|error| error.code() == Some("LOADING"))
    })
    .await;
    let waiting = story.suffer(is_unavailable).await;
    server.ready().await;
    let unfill = "for i = 1, 5000 do redis.call('DEL', 'fill-' .. i) end";
    server.cmd(&["EVAL", unfill, "0"]).await;
    waiting.recover(&server).await;
}

#[tokio::test]
async fn busy_with_a_script_is_waited_for() {
    let server = Arc::new(
        RedisServer::options()
            .config("lua-time-limit", "50")
            .start(),
    );
    let story = Story::begin(patient(&server.url()).await).await;
    let probe = redis::Client::open(server.url()).unwrap();
    let mut probe = probe.get_multiplexed_async_connection().await.unwrap();
    let endless = tokio::spawn({
        let server = Arc::clone(&server);
        async move {
            server
                .try_cmd(&["EVAL", "while true do redis.call('TIME') end", "0"])
                .await
        }
    });
    eventually("it is busy", LONG, async || {
        let pong = redis::cmd("PING").query_async::<()>(&mut probe).await;
        pong.is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let waiting = story.suffer(is_unavailable).await;
    let kill = redis::cmd("SCRIPT").arg("KILL").clone();
    kill.query_async::<()>(&mut probe).await.unwrap();
    assert!(endless.await.unwrap().is_err());
    waiting.recover(&server).await;
}

#[tokio::test]
async fn masterdown_is_waited_for() {
    let server = RedisServer::options()
        .config("replica-serve-stale-data", "no")
        .start();
    let story = Story::begin(patient(&server.url()).await).await;
    server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let waiting = story.suffer(is_unavailable).await;
    server.cmd(&["REPLICAOF", "NO", "ONE"]).await;
    waiting.recover(&server).await;
}

#[tokio::test]
async fn no_room_for_connections_is_waited_for() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let story = Story::begin(patient(&proxy.url()).await).await;
    // The kit's own connection is there already, and takes the only place.
    server.cmd(&["CONFIG", "SET", "maxclients", "1"]).await;
    proxy.reset_all();
    eventually("the client is out", LONG, async || {
        server.connections().await == 0
    })
    .await;
    let waiting = story.suffer(is_unavailable).await;
    server.cmd(&["CONFIG", "SET", "maxclients", "1000"]).await;
    waiting.recover(&server).await;
}
