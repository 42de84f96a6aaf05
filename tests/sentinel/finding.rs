//! How the master is found.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use watchlock::{ClientBuilder, ConfigError, Error};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, is_free, ms, try_once};
use crate::{builder, connect};

#[tokio::test]
async fn the_master_is_found_and_the_lock_is_there() {
    let deployment = SentinelDeployment::start().await;
    let client = connect(&deployment).await;
    let guard = try_once(&client, "x").await.unwrap().unwrap();
    assert!(deployment.servers()[0].exists("x").await);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_reported_at_connect() {
    let deployment = SentinelDeployment::start().await;
    let error = ClientBuilder::sentinel(deployment.urls(), "another")
        .connect()
        .await
        .unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::UnknownService)),
        "{error:?}"
    );
}

#[test]
fn the_master_is_found_where_time_is_paused() {
    let home = tokio::runtime::Runtime::new().unwrap();
    let deployment = home.block_on(SentinelDeployment::start());
    let mut paused = tokio::runtime::Builder::new_current_thread();
    let paused = paused.enable_all().start_paused(true).build().unwrap();
    paused.block_on(async {
        for _ in 0..10 {
            let client = connect(&deployment).await;
            assert!(is_free(&client, "x").await);
        }
    });
}

/// It has just started and watches nothing yet.
#[tokio::test]
async fn one_sentinel_that_does_not_know_the_service_says_little() {
    let (gone, fresh) = (RedisServer::start().url(), knowing_nothing().await);
    let error = ClientBuilder::sentinel([fresh.clone(), gone.clone(), gone.clone()], SERVICE);
    let error = error.connect_timeout(ms(500)).connect().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.is_transient());
    let error = ClientBuilder::sentinel([fresh.clone(), fresh, gone], SERVICE);
    let error = error.connect_timeout(ms(500)).connect().await.unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::UnknownService)),
        "{error:?}"
    );
}

#[tokio::test]
async fn dead_and_frozen_sentinels_cost_nothing() {
    let deployment = SentinelDeployment::start().await;
    let urls = deployment.urls();
    deployment.sentinels()[0].kill();
    let client = connect(&deployment).await;
    assert!(is_free(&client, "x").await);
    deployment.sentinels()[0].restart();
    // A frozen sentinel accepts connections, and answers nothing. It is the first in the list, so a client that asks in
    // turn would wait for it.
    deployment.sentinels()[0].freeze();
    let mut took = Vec::new();
    for _ in 0..5 {
        let started = Instant::now();
        let client = ClientBuilder::sentinel(urls.clone(), SERVICE);
        assert!(is_free(&client.connect().await.unwrap(), "x").await);
        took.push(started.elapsed());
    }
    deployment.sentinels()[0].resume();
    // Waiting for it would take a connect time-out each time; a busy machine is not slow each time.
    let shortest = took.iter().min();
    assert!(
        shortest.is_some_and(|shortest| *shortest < ms(300)),
        "{took:?}"
    );
}

/// Sentinels have the time that the application set, however far away they are.
#[tokio::test]
async fn sentinels_that_are_far_away_have_the_connect_timeout() {
    let deployment = SentinelDeployment::start().await;
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    for proxy in &proxies {
        proxy.latency(ms(400));
    }
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    let builder = ClientBuilder::sentinel(urls.clone(), SERVICE).connect_timeout(LONG);
    let client = builder.connect().await.unwrap();
    assert!(is_free(&client, "x").await);
    let builder = ClientBuilder::sentinel(urls, SERVICE).connect_timeout(ms(200));
    let error = builder.connect().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("connect_timeout"), "{source}");
}

/// The one that answers cannot outvote the silent one, so the client waits for it, and then still connects.
#[tokio::test]
async fn the_wait_for_a_silent_sentinel_leaves_time_to_connect() {
    let deployment = SentinelDeployment::start().await;
    let two = deployment.urls()[..2].to_vec();
    deployment.sentinels()[0].freeze();
    let builder = ClientBuilder::sentinel(two, SERVICE).connect_timeout(ms(1_000));
    let client = builder.connect().await;
    deployment.sentinels()[0].resume();
    assert!(is_free(&client.unwrap(), "x").await);
}

#[tokio::test]
async fn no_sentinel_at_all_is_unavailable() {
    let url = RedisServer::start().url();
    let error = ClientBuilder::sentinel([url], SERVICE).connect().await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = ClientBuilder::sentinel(Vec::<String>::new(), SERVICE).connect();
    let error = error.await.unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::OutOfRange { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn passwords_of_servers_and_sentinels_are_apart() {
    let deployment = SentinelDeployment::options()
        .password("server1")
        .sentinel_password("sentinel2")
        .start()
        .await;
    let client = connect(&deployment).await;
    assert!(is_free(&client, "x").await);
    let bare = deployment.sentinels().iter();
    let bare = bare.map(|sentinel| format!("redis://127.0.0.1:{}/", sentinel.port()));
    let error = ClientBuilder::sentinel(bare, SERVICE)
        .server_url(&deployment.server_url())
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
    let error = ClientBuilder::sentinel(deployment.urls(), SERVICE)
        .server_url("redis://:wrong@any/")
        .connect()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

#[tokio::test]
async fn a_pool_leads_to_one_server() {
    let deployment = SentinelDeployment::start().await;
    let pool = deadpool_redis::Config::from_url(deployment.servers()[0].url());
    let pool = pool.create_pool(Some(deadpool_redis::Runtime::Tokio1));
    let error = builder(&deployment).pool(pool.unwrap()).connect().await;
    let error = error.unwrap_err();
    assert!(
        matches!(error, Error::Config(ConfigError::Conflict { .. })),
        "{error:?}"
    );
}

fn list(texts: &[&str]) -> String {
    let bulks = texts
        .iter()
        .map(|text| format!("${}\r\n{text}\r\n", text.len()));
    format!("*{}\r\n{}", texts.len(), bulks.collect::<String>())
}

/// A sentinel that gives the address and the epoch that the test sets.
async fn saying(port: u16, epoch: u64) -> String {
    let master = list(&["127.0.0.1", &port.to_string()]);
    answering(master + &list(&["config-epoch", &epoch.to_string()])).await
}

/// A sentinel that watches no master of the name.
async fn knowing_nothing() -> String {
    answering("*-1\r\n-ERR No such master with that name\r\n".to_owned()).await
}

/// A sentinel that answers so to the two questions.
async fn answering(answers: String) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut link, _)) = listener.accept().await {
            let answers = answers.clone();
            tokio::spawn(async move {
                let mut heard = vec![0; 4096];
                while let Ok(1..) = link.read(&mut heard).await {
                    let text = String::from_utf8_lossy(&heard).into_owned();
                    heard.fill(0);
                    let mut said = String::new();
                    if text.contains("SETINFO") {
                        said.push_str("+OK\r\n+OK\r\n");
                    }
                    if text.contains("GET-MASTER") {
                        said.push_str(&answers);
                    }
                    if link.write_all(said.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}/")
}

/// A sentinel that was cut off names the old master, and may be the first to answer.
#[tokio::test]
async fn the_majority_of_sentinels_counts_and_in_a_tie_the_later_epoch() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let most = [
        saying(old.port(), 7).await,
        saying(new.port(), 1).await,
        saying(new.port(), 1).await,
    ];
    let tie = [saying(old.port(), 1).await, saying(new.port(), 2).await];
    // The last answer is right in at most one of the two orders.
    let turned = [tie[1].clone(), tie[0].clone()];
    for urls in [most.to_vec(), tie.to_vec(), turned.to_vec()] {
        for _ in 0..5 {
            let client = ClientBuilder::sentinel(urls.clone(), SERVICE)
                .connect()
                .await;
            let client = client.unwrap();
            let guard = try_once(&client, "x").await.unwrap().unwrap();
            assert!(new.exists("x").await && !old.exists("x").await);
            guard.unlock().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_replica_that_sentinels_name_is_no_master() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    replica.synced().await;
    let urls = [saying(replica.port(), 1).await];
    let connecting = ClientBuilder::sentinel(urls, SERVICE).connect_timeout(ms(500));
    let error = connecting.connect().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("not a master"), "{source}");
}

/// A client that listens to a sentinel that answers goes on listening over the same connection.
#[tokio::test]
async fn each_sentinel_is_listened_to_by_one_connection() {
    let deployment = SentinelDeployment::start().await;
    let proxies: Vec<_> = deployment.sentinels().iter().map(Proxy::to).collect();
    let client = ClientBuilder::sentinel(proxies.iter().map(Proxy::url), SERVICE)
        .server_url(&deployment.server_url())
        // The silence of a busy machine does not count as a sentinel's.
        .connect_timeout(LONG)
        .command_timeout(LONG)
        .connect()
        .await
        .unwrap();
    let said = |proxy: &Proxy, word: &str| proxy.commands().get(word).copied().unwrap_or(0);
    // Every five seconds; a subscription that ended with the first answer would have begun again by the second.
    eventually(
        "each was asked twice whether it is there",
        LONG,
        async || proxies.iter().all(|proxy| said(proxy, "PING") >= 2),
    )
    .await;
    for proxy in &proxies {
        assert_eq!(said(proxy, "SUBSCRIBE"), 1);
    }
    drop(client);
}

/// A sentinel that names a master: its port and epoch; none while it is silent.
#[derive(Default)]
struct FakeSentinel {
    names: Mutex<Option<(u16, u64)>>,
    answered: AtomicUsize,
}

impl FakeSentinel {
    fn answer(&self, question: &str) -> Option<String> {
        let (port, epoch) = (*self.names.lock().unwrap())?;
        let mut answer = String::new();
        if question.contains("SETINFO") {
            answer.push_str("+OK\r\n+OK\r\n");
        }
        if question.contains("GET-MASTER") {
            answer += &list(&["127.0.0.1", &port.to_string()]);
            answer += &list(&["config-epoch", &epoch.to_string()]);
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        Some(answer)
    }

    /// Starts it, and returns its address.
    async fn start(self: &Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let sentinel = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((mut link, _)) = listener.accept().await {
                let sentinel = Arc::clone(&sentinel);
                tokio::spawn(async move {
                    let mut heard = [0; 4096];
                    while let Ok(length @ 1..) = link.read(&mut heard).await {
                        let question = String::from_utf8_lossy(&heard[..length]);
                        if let Some(answer) = sentinel.answer(&question) {
                            link.write_all(answer.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        url
    }
}

/// One sentinel was cut off with the old master. The others named the new one, and cannot be reached for a while.
#[tokio::test]
async fn a_client_that_followed_a_fail_over_does_not_go_back() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let mut urls = Vec::new();
    let sentinels: [_; 3] = std::array::from_fn(|_| Arc::<FakeSentinel>::default());
    for (sentinel, (master, epoch)) in sentinels.iter().zip([(&old, 1), (&new, 2), (&new, 2)]) {
        *sentinel.names.lock().unwrap() = Some((master.port(), epoch));
        urls.push(sentinel.start().await);
    }
    let client = ClientBuilder::sentinel(urls, SERVICE);
    let client = client.connect().await.unwrap();
    let lock = client.get_lock("mine");
    let mine = lock.lock_with_lease(LONG * 10).await.unwrap();
    assert!(new.exists("mine").await);
    // Else its attempt, which knows the new master already, may come after the connections are ended. The third is ours.
    eventually("the keeper is connected", LONG, async || {
        new.info("clients", "connected_clients").await.as_deref() == Some("3")
    })
    .await;
    for silent in &sentinels[1..] {
        *silent.names.lock().unwrap() = None;
    }
    let answered = || sentinels[0].answered.load(Ordering::Relaxed);
    let before = answered();
    new.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    eventually("it asks again and again", LONG, async || {
        assert!(try_once(&client, "x").await.is_err());
        answered() >= before + 3
    })
    .await;
    assert!(mine.is_valid() && !old.exists("x").await);
    *sentinels[2].names.lock().unwrap() = Some((new.port(), 2));
    eventually("it is back at the new master", LONG, async || {
        matches!(try_once(&client, "x").await, Ok(Some(_)))
    })
    .await;
    mine.verify().await.unwrap();
}
