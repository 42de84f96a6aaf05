//! Passwords and owner ids are nobody's business.

use std::error::Error as _;
use std::time::Duration;

use watchlock::{Client, Error};
use watchlock_support::server::RedisServer;

use super::Log;
use crate::common::{LONG, connect_short, ms, soon, subscribed};

/// An error with all its causes.
fn whole(error: &Error) -> String {
    let mut texts = vec![format!("{error} {error:?}")];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(format!("{error} {error:?}"));
        cause = error.source();
    }
    texts.concat()
}

#[tokio::test]
async fn a_password_shows_nowhere() {
    const SECRET: &str = "hunter2secret";
    let log = Log::new().await;
    let server = RedisServer::options().password(SECRET).start();
    let builder = Client::builder(&server.url())
        .command_timeout(ms(200))
        .unavailable_after(ms(300));
    let mut seen = vec![format!("{builder:?} {:?}", builder.clone())];
    let client = builder.connect().await.unwrap();
    let owner = client.new_owner();
    let lock = owner.get_lock("secret");
    let guard = lock.lock_for(LONG).await.unwrap();
    seen.push(format!("{client:?} {owner:?} {lock:?} {guard:?}"));
    seen.push(format!("{:?} {:?}", client.get_lock("x"), guard.hold()));
    server.kill();
    let errors = [
        Client::connect(&server.url()).await.err(),
        client.get_lock("x").lock().await.err(),
        client.get_lock("x").is_locked().await.err(),
        guard.unlock().await.err(),
    ];
    server.restart();
    server
        .cmd(&["CONFIG", "SET", "requirepass", "another"])
        .await;
    let denied = soon(Client::connect(&server.url())).await.err();
    for error in errors.iter().chain([&denied]) {
        seen.push(whole(error.as_ref().expect("none of them can work")));
    }
    drop((client, owner));
    seen.push(format!("{:?}", log.all()));
    for text in seen {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[tokio::test]
async fn owner_ids_show_in_no_event() {
    let log = Log::new().await;
    let server = RedisServer::start();
    let (client, other) = (connect_short(&server).await, connect_short(&server).await);
    let ids = [client.id().to_string(), other.id().to_string()];
    let guard = client.get_lock("ids").lock().await.unwrap();
    let lock = other.get_lock("ids");
    let waiter = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "ids").await;
    guard.unlock().await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    server.cmd(&["DEL", "ids"]).await;
    soon(guard.lost()).await;
    drop(guard);
    let lock = client.get_lock("ids");
    let body = lock.try_run(Duration::ZERO, LONG, async |_| ());
    body.await.unwrap();
    soon(client.shutdown(LONG)).await;
    let all = format!("{:?}", log.all());
    assert!(all.contains("hold lost"));
    assert!(ids.iter().all(|id| !all.contains(id)), "{all}");
}
