//! The connection for messages, when the server refuses it for a while.

use watchlock::{Backoff, Client};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, connect, ms, soon, subscribed, try_once};

const CLERK: [&str; 3] = ["ACL", "SETUSER", "clerk"];

async fn clerk(server: &RedisServer) -> Client {
    let rights = ["on", ">old", "~*", "&*", "+@all"];
    server.cmd(&[&CLERK[..], &rights[..]].concat()).await;
    let url = format!("redis://clerk:old@127.0.0.1:{}/", server.port());
    Client::connect(&url).await.unwrap()
}

async fn errors(server: &RedisServer, code: &str) -> bool {
    let field = format!("errorstat_{code}");
    server.info("errorstats", &field).await.is_some()
}

/// Somebody waits all the time; a right that it needs is taken away, and given back.
async fn a_waiter_hears_again(refuse: &[&str], code: &str, allow: &[&str]) {
    let server = RedisServer::start();
    let client = clerk(&server).await;
    let stranger = connect(&server).await;
    let guard = try_once(&stranger, "hot").await.unwrap().unwrap();
    let lock = client.get_lock("hot");
    let waiting = tokio::spawn(async move { lock.lock().await });
    subscribed(&server, "hot").await;
    // Its caller's, that of messages, and the keeper's: a wait whose next try has to connect with a wrong password fails.
    eventually("it has all connections", LONG, async || {
        let clients = server.clients().await;
        let of_clerk = clients.iter().filter(|client| client["user"] == "clerk");
        of_clerk.count() == 3
    })
    .await;
    server.cmd(&[&CLERK[..], refuse].concat()).await;
    server.cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually("subscribing is refused", LONG, async || {
        errors(&server, code).await
    })
    .await;
    server.cmd(&[&CLERK[..], allow].concat()).await;
    subscribed(&server, "hot").await;
    guard.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_password_that_was_wrong_for_a_while_bars_no_name_for_good() {
    a_waiter_hears_again(&["resetpass", ">new"], "WRONGPASS", &[">old"]).await;
}

#[tokio::test]
async fn a_channel_that_was_denied_for_a_while_bars_no_name_for_good() {
    a_waiter_hears_again(&["resetchannels"], "NOPERM", &["&*"]).await;
}

/// A name that stays refused costs a question now and then, not one at every poll.
#[tokio::test]
async fn a_channel_that_stays_denied_is_asked_for_ever_more_rarely() {
    let server = RedisServer::start();
    let client = clerk(&server).await;
    let stranger = connect(&server).await;
    let guard = try_once(&stranger, "hot").await.unwrap().unwrap();
    server.cmd(&[&CLERK[..], &["resetchannels"]].concat()).await;
    let lock = client.get_lock("hot");
    let waiting = tokio::spawn(async move { lock.lock().await });
    eventually("it polls", LONG, async || {
        server.calls_of("hgetall").await >= 10
    })
    .await;
    // 20 ms, 40, 80, … up to a second lie between polls: ten of them take some five seconds.
    let asked = server.info("commandstats", "cmdstat_subscribe").await;
    let asked = asked.unwrap_or_default();
    let calls = asked.split(&['=', ',']).collect::<Vec<_>>();
    let refused = calls.iter().position(|word| *word == "rejected_calls");
    let refused: u32 = refused.map_or(0, |at| calls[at + 1].parse().unwrap());
    assert!((1..=4).contains(&refused), "{asked}");
    guard.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
}

/// When no messages arrive, polls begin with the first delay, however long the longest is.
#[tokio::test]
async fn a_waiter_that_may_not_subscribe_polls_from_the_first_delay_on() {
    let server = RedisServer::start();
    drop(clerk(&server).await);
    server.cmd(&[&CLERK[..], &["resetchannels"]].concat()).await;
    let url = format!("redis://clerk:old@127.0.0.1:{}/", server.port());
    let polls = Backoff::new().base(ms(20)).cap(ms(60_000));
    let client = Client::builder(&url)
        .backoff(polls)
        .connect()
        .await
        .unwrap();
    let stranger = connect(&server).await;
    let guard = stranger
        .get_lock("hot")
        .lock_with_lease(LONG * 20)
        .await
        .unwrap();
    let lock = client.get_lock("hot");
    let waiting = tokio::spawn(async move { lock.lock().await });
    // The caller's try and the job's; then 20 ms, 40, 80, 160, 320.
    eventually("it polls", LONG / 2, async || {
        server.calls_of("hgetall").await >= 7
    })
    .await;
    guard.unlock().await.unwrap();
    waiting.abort();
}
