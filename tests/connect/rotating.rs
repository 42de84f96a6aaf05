//! Passwords that change while a client lives: the client calls for them at each connect, also for subscriptions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use watchlock::{Client, Error, Secrets};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, gone, ms, soon, subscribed, try_once};
use crate::works;

/// A server with two users that differ only in their passwords, and a client that looks up which to use.
async fn rotating(server: &RedisServer, password: &Arc<Mutex<&'static str>>) -> Client {
    set_password(server, "one").await;
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let password = Arc::clone(password);
    let builder = Client::builder(&url).watchdog_lease(SHORT);
    let builder = builder.secrets(move || Secrets::new().user("app").password(*password.lock()));
    builder.connect().await.expect("a client")
}

async fn set_password(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let user = [
        "ACL", "SETUSER", "app", "reset", "on", &password, "~*", "&*", "+@all",
    ];
    server.cmd(&user).await;
}

/// Cuts off everybody who is connected as the user.
async fn cut(server: &RedisServer) {
    server.cmd(&["CLIENT", "KILL", "USER", "app"]).await;
}

#[tokio::test]
async fn a_password_that_changes_costs_no_hold_and_no_wake_up() {
    // Without the user's password nobody can connect.
    let server = RedisServer::options().password("operator").start();
    let password = Arc::new(Mutex::new("one"));
    let client = rotating(&server, &password).await;
    let held = try_once(&client, "x").await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = client.get_lock("x");
        async move { lock.lock().await }
    });
    subscribed(&server, "x").await;
    set_password(&server, "two").await;
    *password.lock() = "two";
    cut(&server).await;
    subscribed(&server, "x").await;
    tokio::time::sleep(SHORT * 2).await;
    held.check().expect("renewed over a new connection");
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_password_that_is_not_supplied_in_time_is_denied_and_comes_back() {
    // Without the user's password nobody can connect.
    let server = RedisServer::options().password("operator").start();
    let password = Arc::new(Mutex::new("one"));
    let client = rotating(&server, &password).await;
    set_password(&server, "two").await;
    cut(&server).await;
    eventually("it is denied", LONG, async || {
        matches!(try_once(&client, "x").await, Err(Error::Denied { .. }))
    })
    .await;
    *password.lock() = "two";
    eventually("it comes back", LONG, async || {
        matches!(try_once(&client, "x").await, Ok(Some(_)))
    })
    .await;
    gone(&server, "x").await;
}

/// The provider is the application's code.
#[tokio::test]
async fn a_provider_that_panics_is_an_attempt_that_failed() {
    let server = RedisServer::start();
    let panics = Arc::new(AtomicBool::new(false));
    let url = server.url();
    let builder = Client::builder(&url).secrets({
        let panics = Arc::clone(&panics);
        move || {
            assert!(!panics.load(Ordering::SeqCst), "by intention");
            Secrets::new()
        }
    });
    let client = builder.connect().await.unwrap();
    panics.store(true, Ordering::SeqCst);
    server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    let waiting = client.get_lock("x");
    let failed = waiting.try_lock(ms(300), watchlock::Lease::Watchdog).await;
    assert!(
        matches!(failed, Err(Error::Unavailable { .. })),
        "{failed:?}"
    );
    panics.store(false, Ordering::SeqCst);
    eventually("it goes on", LONG, async || {
        try_once(&client, "x").await.is_ok()
    })
    .await;
    works(&client).await;
}
