//! The socket options of a connection, as far as the system shows them.

use std::collections::BTreeSet;

use watchlock::Client;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, soon, try_once};

/// The local ports of connections with a keepalive timer.
fn with_keepalive() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let rows = table.lines().skip(1);
    let rows = rows.map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row[5].starts_with("02:"))
        .filter_map(|row| {
            let (_, port) = row[1].split_once(':')?;
            Some(u16::from_str_radix(port, 16).ok()?.to_string())
        })
        .collect()
}

/// Each connection to `server` has one, including those of the background thread.
pub(crate) async fn have_keepalive(client: &Client, server: &RedisServer) {
    let guard = try_once(client, "x").await.unwrap().expect("it is free");
    eventually("each socket has a keepalive timer", LONG, async || {
        let kept = with_keepalive();
        let clients = server.clients().await;
        let ports = clients
            .iter()
            .map(|client| client.get("addr").and_then(|addr| addr.rsplit(':').next()));
        clients.len() >= 2 && ports.flatten().all(|port| kept.contains(port))
    })
    .await;
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn connections_have_keepalive() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    have_keepalive(&client, &server).await;
}

#[tokio::test]
async fn connections_of_a_given_client_have_keepalive() {
    let server = RedisServer::start();
    let given = watchlock::redis::Client::open(server.url()).unwrap();
    let client = soon(Client::builder_from(&given).connect()).await.unwrap();
    have_keepalive(&client, &server).await;
}
