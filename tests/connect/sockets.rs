//! What the system is told to do with a connection's socket, as far as it shows that.

use std::collections::BTreeSet;

use watchlock::Client;
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, soon, try_once};

/// The local ports of connections that the system asks for a sign of life.
fn kept_alive() -> BTreeSet<String> {
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

/// Each connection to `server`, those of the background thread among them.
pub(crate) async fn are_kept_alive(client: &Client, server: &RedisServer) {
    let guard = try_once(client, "x").await.unwrap().expect("it is free");
    eventually("each socket has a timer for it", LONG, async || {
        let kept = kept_alive();
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
async fn a_connection_that_was_cut_silently_is_noticed_by_the_system() {
    let server = RedisServer::start();
    let client = Client::connect(&server.url()).await.unwrap();
    are_kept_alive(&client, &server).await;
}

#[tokio::test]
async fn so_is_one_by_a_given_client() {
    let server = RedisServer::start();
    let given = watchlock::redis::Client::open(server.url()).unwrap();
    let client = soon(Client::builder_from(&given).connect()).await.unwrap();
    are_kept_alive(&client, &server).await;
}
