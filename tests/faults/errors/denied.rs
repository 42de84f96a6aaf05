//! NOPERM, NOAUTH and WRONGPASS, in the middle of a hold: `Denied` at once, nothing left behind, and all is well when
//! the right is given back.

use std::time::Duration;

use watchlock::{Client, Error, LostReason};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use super::{MINUTE, one_try};
use crate::common::{LONG, SHORT, clean, connect, soon};

const RIGHTS: [&str; 9] = [
    "ACL",
    "SETUSER",
    "app",
    "on",
    ">secret",
    "~*",
    "&*",
    "+@all",
    "-@dangerous",
];

/// A server with a user `app`, and a client of that user.
async fn scene(lease: Duration) -> (RedisServer, Client) {
    let server = RedisServer::start();
    server.cmd(&RIGHTS).await;
    let url = format!("redis://app:secret@127.0.0.1:{}/", server.port());
    let client = Client::builder(&url).watchdog_lease(lease);
    let client = client.connect().await.unwrap();
    (server, client)
}

/// No key is there for ever.
async fn all_have_leases(server: &RedisServer, denied: &str) {
    for key in server.keys().await {
        assert_ne!(server.pttl(&key).await, -1, "without {denied}: {key}");
    }
}

fn is_denied<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Denied { .. }))
}

/// A renewal that is denied is no news of the hold: it is repeated, and the hold lost only at its end.
#[tokio::test]
async fn i8_denied_renewals_are_repeated_until_the_validity_ends() {
    for command in ["evalsha", "hexists", "pttl", "pexpire"] {
        let (server, client) = scene(SHORT).await;
        let guard = client.get_lock("held").lock().await.unwrap();
        let deny = format!("-{command}");
        server.cmd(&["ACL", "SETUSER", "app", &deny]).await;
        assert_eq!(soon(guard.lost()).await, LostReason::Expired, "{command}");
        assert!(guard.unlock().await.unwrap_err().is_lost());
        server
            .cmd(&["ACL", "SETUSER", "app", &format!("+{command}")])
            .await;
        let again = soon(client.get_lock("held").lock()).await.unwrap();
        server.cmd(&["ACL", "SETUSER", "app", &deny]).await;
        let left = again.valid_for();
        eventually("a renewal is due", LONG, async || {
            again.valid_for() < left / 2
        })
        .await;
        server
            .cmd(&["ACL", "SETUSER", "app", &format!("+{command}")])
            .await;
        eventually("renewed", LONG, async || again.valid_for() > left / 2).await;
        again.unlock().await.unwrap();
        clean(&server).await;
    }
}

/// One name of a call that is out of the user's reach, and nothing else is.
#[tokio::test]
async fn one_denied_name_does_not_cost_the_others_their_renewal() {
    let (server, client) = scene(SHORT).await;
    let mut guards = Vec::new();
    for i in 0..12 {
        let family = if i == 5 { "bad" } else { "good" };
        let name = format!("{family}:{i}");
        guards.push(client.get_lock(&name).lock().await.unwrap());
    }
    server
        .cmd(&["ACL", "SETUSER", "app", "resetkeys", "~good:*"])
        .await;
    assert_eq!(soon(guards[5].lost()).await, LostReason::Expired);
    let renewals = server.calls_of("pexpire").await;
    eventually("the others are renewed", LONG, async || {
        server.calls_of("pexpire").await >= renewals + 11 * 6
    })
    .await;
    for (i, guard) in guards.into_iter().enumerate() {
        assert_eq!(guard.unlock().await.is_err(), i == 5, "{i}");
    }
}

#[tokio::test]
async fn f11_a_user_deleted_in_the_middle_is_denied_and_comes_back() {
    let (server, client) = scene(SHORT * 2).await;
    let watched = client.get_lock("watched").lock().await.unwrap();
    let fixed = client.get_lock("fixed").lock_for(MINUTE).await.unwrap();
    server.cmd(&["ACL", "DELUSER", "app"]).await;
    let denied = soon(client.get_lock("new").lock()).await;
    assert!(is_denied(&denied), "{denied:?}");
    let denied = soon(fixed.unlock()).await;
    assert!(is_denied(&denied), "{denied:?}");
    assert_eq!(soon(watched.lost()).await, LostReason::Expired);
    assert!(watched.unlock().await.unwrap_err().is_lost());
    all_have_leases(&server, "its user").await;
    server.cmd(&RIGHTS).await;
    let again = soon(client.get_lock("watched").lock()).await.unwrap();
    again.unlock().await.unwrap();
    assert!(!server.exists("new").await);
}

/// The same for less than a lease: nothing is lost.
#[tokio::test]
async fn f11_a_user_that_is_back_within_the_lease_keeps_its_holds() {
    let (server, client) = scene(SHORT * 4).await;
    let guard = client.get_lock("kept").lock().await.unwrap();
    let changed = connect(&server).await;
    server
        .cmd(&["ACL", "SETUSER", "app", "resetpass", ">another"])
        .await;
    server.cmd(&["CLIENT", "KILL", "USER", "app"]).await;
    let denied = soon(one_try(&client, "new")).await;
    assert!(is_denied(&denied), "{denied:?}");
    server.cmd(&RIGHTS).await;
    let renewals = server.calls_of("pexpire").await;
    eventually("renewed", LONG, async || {
        server.calls_of("pexpire").await >= renewals + 3
    })
    .await;
    guard.check().unwrap();
    guard.unlock().await.unwrap();
    drop(changed);
    clean(&server).await;
}
