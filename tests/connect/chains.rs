//! What an application prints: an error and its sources, each text once.

use std::error::Error as _;

use watchlock::{Client, ClientBuilder, Error, Lease, MultiLock, Quorum};
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::{ms, soon, try_once};
use crate::fake::{Say, serve};

/// The texts of an error and its sources. Fails if one is contained in the text above it.
fn chain(error: &Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        let above = texts.iter().find(|above| above.contains(&text));
        assert_eq!(above, None, "{text:?} is said twice");
        texts.push(text);
        next = error.source();
    }
    texts.join(": ")
}

async fn refused(builder: ClientBuilder) -> Error {
    let connecting = builder.connect_timeout(ms(500)).connect();
    soon(connecting).await.map(drop).unwrap_err()
}

fn says(error: &Error, words: &[&str]) {
    let said = chain(error);
    for word in words {
        assert!(said.contains(word), "{word:?} is missing: {said}");
    }
}

#[tokio::test]
async fn what_keeps_a_client_from_connecting_is_said_once() {
    let absent = RedisServer::start().url();
    says(&refused(Client::builder(&absent)).await, &["refused"]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("redis://{}/", listener.local_addr().unwrap());
    let error = refused(Client::builder(&silent)).await;
    says(&error, &["connect_timeout", "500ms"]);
    let error = refused(ClientBuilder::sentinel([&silent], "main")).await;
    says(&error, &["connect_timeout", "500ms"]);
    let error = refused(Client::builder("redis://no.such.host.invalid/")).await;
    chain(&error);
    let error = refused(Client::builder("redis://127.0.0.1:1/").command_timeout(ms(1))).await;
    says(&error, &["command_timeout is 1ms", "10 ms to 60 s"]);
    let server = RedisServer::options().password("secret").start();
    let wrong = server.url().replace("secret", "wrong");
    says(
        &refused(Client::builder(&wrong)).await,
        &["authentication failed"],
    );
    let replica = RedisServer::options()
        .replica_of(&RedisServer::start())
        .start();
    says(
        &refused(Client::builder(&replica.url())).await,
        &["replica"],
    );
    let nonsense = serve(|_| Say::Now("HTTP/1.1 400 Bad Request\r\n\r\n")).await;
    chain(&refused(Client::builder(&nonsense)).await);
    let two = [absent.clone(), silent.clone()];
    let error = Quorum::builder(two).connect().await.unwrap_err();
    says(&error, &["1, 3, 5, 7 or 9"]);
    let three = [absent, silent, "redis://127.0.0.1:1/".to_owned()];
    let connecting = Quorum::builder(three).connect_timeout(ms(500)).connect();
    chain(&soon(connecting).await.unwrap_err());
}

#[tokio::test]
async fn a_password_that_is_not_encoded_is_called_that() {
    for url in [
        "redis://:a#b@127.0.0.1/",
        "redis://app:1#b@127.0.0.1/",
        "redis://:a/b@127.0.0.1/",
        "redis://app:1/b@127.0.0.1:6379/0",
        "redis://app:1?b@127.0.0.1:6379",
        "redis://:a%zz#@@127.0.0.1/",
    ] {
        let error = refused(Client::builder(url)).await;
        says(&error, &["percent-encoded", "%23"]);
    }
}

#[tokio::test]
async fn what_a_command_fails_by_is_said_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let client = Client::builder(&proxy.url()).command_timeout(ms(400));
    let client = client.unavailable_after(ms(400)).connect().await.unwrap();
    let held = try_once(&client, "held").await.unwrap().unwrap();
    for (answer, words) in [
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            &["OOM"][..],
        ),
        (
            "NOPERM this user has no permissions to run it",
            &["no permissions"],
        ),
        (
            "ERR max requests limit exceeded. Limit: 10",
            &["limit exceeded"],
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            &["loading"],
        ),
        (
            "ERR unknown command 'EVALSHA', with args beginning with: 'x'",
            &["unknown command"],
        ),
        ("WRONGTYPE Operation against a key", &[]),
    ] {
        let fault = proxy.inject(Fault::Answer(answer.to_owned()));
        let fault = fault.on(Match::command("EVALSHA")).always().arm();
        let error = soon(try_once(&client, "x")).await.unwrap_err();
        says(&error, words);
        if answer.contains("limit exceeded") {
            assert!(error.is_transient(), "{error:?}");
        }
        fault.cancel();
    }
    server.cmd(&["SET", "text", "x"]).await;
    chain(&try_once(&client, "text").await.unwrap_err());
    chain(&try_once(&client, "").await.unwrap_err());
    let lock = client.get_lock("x");
    chain(&lock.try_lock(ms(0), Lease::from(ms(1))).await.unwrap_err());
    chain(&lock.unlock().await.unwrap_err());
    chain(&MultiLock::new([lock.clone(), lock.clone()]).unwrap_err());
    proxy.black_hole(Direction::Replies);
    for error in [
        soon(try_once(&client, "x")).await.unwrap_err(),
        soon(lock.lock()).await.unwrap_err(),
        soon(lock.is_locked()).await.unwrap_err(),
        soon(held.unlock()).await.unwrap_err(),
    ] {
        says(&error, &["400ms"]);
        let said = chain(&error);
        assert!(
            said.contains("command_timeout") || said.contains("connect_timeout"),
            "{said}"
        );
    }
    proxy.heal();
    server.kill();
    chain(&soon(try_once(&client, "x")).await.unwrap_err());
    client.shutdown(ms(0)).await;
    chain(&try_once(&client, "x").await.unwrap_err());
}

#[tokio::test]
async fn what_replicas_and_quorums_fail_by_is_said_once() {
    let server = RedisServer::start();
    let client = Client::builder(&server.url()).acknowledged_by(1, ms(10));
    let client = client.connect().await.unwrap();
    let error = try_once(&client, "x").await.unwrap_err();
    says(&error, &["0 of 1 replicas"]);
    let three: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let quorum = Quorum::builder(three.iter().map(RedisServer::url))
        .restart_delay(ms(0))
        .connect_timeout(ms(500))
        .command_timeout(ms(400))
        .connect();
    let quorum = quorum.await.unwrap();
    let lock = quorum.get_lock("x");
    let held = lock.lock().await.unwrap();
    for server in &three[..2] {
        server.kill();
    }
    // Another lock: that this one is busy, the process knows by itself until it notices that the servers are gone.
    let other = quorum.get_lock("y");
    let tried = soon(other.try_lock(ms(0), Lease::Watchdog)).await;
    chain(&tried.unwrap_err());
    chain(&soon(held.unlock()).await.unwrap_err());
}
