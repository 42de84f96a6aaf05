//! Who a client says that it is, and lists of holders that are longer than people read.

use serde_json::json;
use watchlock::{Client, ClientBuilder, ConfigError, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

use super::unheard;
use crate::common::{LONG, SHORT, connect, ms, soon};

const LABEL: &str = "billing@host-7";

fn labelled(server: &RedisServer) -> ClientBuilder {
    Client::builder(&server.url())
        .label(LABEL)
        .key_prefix("app:")
}

async fn is_shown(server: &RedisServer, key: &str) {
    eventually("the label is there", LONG, async || {
        server.exists(key).await
    })
    .await;
}

#[tokio::test]
async fn a_label_has_a_ttl_comes_back_and_is_deleted_by_shutdown() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let lazy = labelled(&server)
        .watchdog_lease(SHORT)
        .connect_lazy()
        .unwrap();
    let key = format!("watchlock_client:{}", lazy.id());
    is_shown(&server, &key).await;
    let ttl = server.pttl(&key).await;
    assert!((1..=3 * 1200).contains(&ttl), "{ttl}");
    assert_eq!(server.query::<String>(&["GET", &key]).await, LABEL);
    server.cmd(&["FLUSHALL"]).await;
    is_shown(&server, &key).await;
    soon(lazy.shutdown(LONG)).await;
    assert!(server.keys().await.is_empty());

    let dropped = labelled(&server).connect().await.unwrap();
    let key = format!("watchlock_client:{}", dropped.id());
    is_shown(&server, &key).await;
    drop(dropped);
    eventually("it is deleted", LONG, async || {
        server.keys().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn the_label_of_a_process_that_was_killed_expires() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let worker = Worker::rust();
    let opened = worker
        .call(
            "open",
            json!({"url": server.url(), "label": LABEL, "watchdog_ms": 600}),
        )
        .await;
    let id = opened.unwrap()["client_id"].as_str().unwrap().to_owned();
    worker
        .call("lock", json!({"owner": "a", "kind": "lock", "name": "x"}))
        .await
        .unwrap();
    let lock = connect(&server).await.get_lock("x");
    eventually("the label is shown", LONG, async || {
        let holders = lock.holders().await.unwrap();
        holders[0].client.unwrap().to_string() == id && holders[0].label.as_deref() == Some(LABEL)
    })
    .await;
    worker.kill();
    eventually("the lease is over, and so is the label", LONG, async || {
        server.keys().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn what_is_no_label_is_refused_or_not_shown() {
    let _unheard = unheard().await;
    for bad in [
        String::new(),
        "x".repeat(257),
        "a\nb".into(),
        "\u{7f}".into(),
    ] {
        let refused = Client::builder("redis://127.0.0.1:1/")
            .label(&bad)
            .connect()
            .await;
        let reported = matches!(
            refused,
            Err(Error::Config(ConfigError::OutOfRange {
                setting: "label",
                ..
            }))
        );
        assert!(reported, "{bad:?}: {refused:?}");
    }
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let key = format!("watchlock_client:{}", client.id());
    let set: [&[&str]; 4] = [
        &["SET", &key, "a\x1b[31mb"],
        &["SET", &key, ""],
        &["HSET", &key, "a", "b"],
        &["SET", &key, &"x".repeat(1 << 20)],
    ];
    for command in set {
        server.cmd(&["DEL", &key]).await;
        server.cmd(command).await;
        assert_eq!(lock.holders().await.unwrap()[0].label, None);
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_hundred_holders_are_listed_and_odd_ones_are_shown() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = connect(&server).await;
    let lock = client.get_read_write_lock("x");
    let many = |count: usize| (0..count).flat_map(|reader| [format!("r:{reader}"), "2".into()]);
    for (count, listed) in [(99, 99), (100, 100), (101, 100), (5_000, 100)] {
        let fields: Vec<_> = many(count).collect();
        let mut command = vec!["HSET", "x"];
        command.extend(fields.iter().map(String::as_str));
        server.cmd(&command).await;
        // Such a hash is no lock without its mode.
        let wrong = lock.read_lock().holders().await;
        assert!(matches!(wrong, Err(Error::WrongType { .. })), "{wrong:?}");
        server.cmd(&["HSET", "x", "mode", "read"]).await;
        let holders = lock.read_lock().holders().await.unwrap();
        assert_eq!(holders.len(), listed, "{count}");
        assert!(holders.iter().all(|holder| holder.hold_count == 2));
        assert_eq!(lock.write_lock().holders().await.unwrap(), []);
        server.cmd(&["DEL", "x"]).await;
    }

    // A writer of Redisson that also reads.
    let id = "6f0b3f6e-3b3c-4e0e-9d5d-0a3a3c1b6a11";
    let (reads, writes) = (format!("{id}:52"), format!("{id}:52:write"));
    server
        .cmd(&["HSET", "x", "mode", "write", &writes, "3", &reads, "1"])
        .await;
    for (holders, count) in [
        (lock.write_lock().holders().await.unwrap(), 3),
        (lock.read_lock().holders().await.unwrap(), 1),
    ] {
        assert_eq!(holders.len(), 1);
        assert_eq!(
            (&holders[0].hold_id, holders[0].hold_count),
            (&reads, count)
        );
        assert_eq!(holders[0].client.unwrap().to_string(), id);
    }

    for (field, value, count) in [
        ("", "1", Some(1)),
        ("no colon", "7", Some(7)),
        (":", "4294967295", Some(u32::MAX)),
        ("a:1", "4294967296", None),
        ("a:1", "-1", None),
        ("a:1", "1.5", None),
        ("a:1", "", None),
    ] {
        server.cmd(&["DEL", "odd"]).await;
        server.cmd(&["HSET", "odd", field, value]).await;
        match (client.get_lock("odd").holders().await, count) {
            (Ok(holders), Some(count)) => {
                assert_eq!(
                    (&*holders[0].hold_id, holders[0].hold_count),
                    (field, count)
                );
                assert_eq!(holders[0].client, None);
            }
            (Err(Error::WrongType { .. }), None) => {}
            (other, _) => panic!("{field:?} {value:?}: {other:?}"),
        }
    }
    server
        .cmd(&[
            "EVAL",
            "return redis.call('SET', KEYS[1], '\\255\\0\\n')",
            "1",
            "bytes",
        ])
        .await;
    let token = client.get_simple_lock("bytes").holders().await.unwrap();
    assert_eq!(token[0].hold_id, "\u{fffd}\0\n");
}

#[tokio::test]
async fn a_lock_whose_server_is_away_has_no_answer() {
    let _unheard = unheard().await;
    let server = RedisServer::start();
    let client = Client::builder(&server.url())
        .command_timeout(ms(200))
        .connect()
        .await
        .unwrap();
    server.freeze();
    let lock = client.get_lock("x");
    let silent = soon(lock.holders()).await;
    assert!(
        matches!(silent, Err(Error::Unavailable { .. })),
        "{silent:?}"
    );
    let silent = soon(lock.waiters()).await;
    assert!(
        matches!(silent, Err(Error::Unavailable { .. })),
        "{silent:?}"
    );
    server.resume();
}
