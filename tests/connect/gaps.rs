//! Servers that do not know every command, as some managed ones. Each command is hidden by an empty name.

use watchlock::{Client, Error, Lease, Lock};
use watchlock_support::server::RedisServer;

use crate::common::{ms, soon};

async fn without(command: &str) -> (RedisServer, Client) {
    let options = RedisServer::options();
    let hidden = format!("{command} \"\"");
    let server = options.config("rename-command", &hidden).start();
    let client = soon(Client::connect(&server.url())).await.unwrap();
    (server, client)
}

/// A lock of each kind. The first three need no time.
fn locks(client: &Client) -> [Box<dyn Lock>; 7] {
    let both = client.get_read_write_lock("rw");
    [
        Box::new(client.get_lock("plain")),
        Box::new(client.get_spin_lock("spin")),
        Box::new(client.get_simple_lock("simple")),
        Box::new(client.get_fair_lock("fair")),
        Box::new(client.get_fenced_lock("fenced")),
        Box::new(both.read_lock()),
        Box::new(both.write_lock()),
    ]
}

#[tokio::test]
async fn without_time_the_kinds_that_need_it_are_refused_and_nothing_is_taken() {
    let (server, client) = without("TIME").await;
    let [plain, spin, simple, needing @ ..] = locks(&client);
    for lock in [plain, spin, simple] {
        soon(lock.lock()).await.unwrap().unlock().await.unwrap();
    }
    for lock in needing {
        let name = lock.name().to_owned();
        let error = soon(lock.try_lock(ms(0), Lease::Watchdog)).await;
        let error = error.map(drop).unwrap_err();
        let Error::Unsupported { command, .. } = &error else {
            panic!("{name}: {error:?}");
        };
        assert_eq!((*command, error.lock()), ("TIME", Some(&*name)));
        assert!(!error.is_transient() && !error.was_sent(), "{name}");
        let text = error.to_string();
        assert!(
            text.contains("plain, spin and simple locks work there"),
            "{text}"
        );
    }
    let permit = soon(client.get_semaphore("s").with_permits(1).acquire()).await;
    let count = soon(client.get_count_down_latch("l").count_down()).await;
    for error in [permit.map(drop).unwrap_err(), count.map(drop).unwrap_err()] {
        let is_refused = matches!(
            error,
            Error::Unsupported {
                command: "TIME",
                ..
            }
        );
        assert!(is_refused, "{error:?}");
    }
    assert!(server.keys().await.is_empty());
}

#[tokio::test]
async fn without_eval_no_kind_works() {
    let (_server, client) = without("EVAL").await;
    for lock in locks(&client) {
        let error = soon(lock.lock()).await.map(drop).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Unsupported {
                    command: "EVAL",
                    ..
                }
            ),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(text.contains("no kind of lock works there"), "{text}");
    }
}

/// Waiters of other clients poll.
#[tokio::test]
async fn without_messages_all_kinds_work() {
    for command in ["PUBLISH", "SUBSCRIBE"] {
        let (server, client) = without(command).await;
        let other = soon(Client::connect(&server.url())).await.unwrap();
        for (lock, same) in locks(&client).into_iter().zip(locks(&other)) {
            let held = soon(lock.lock()).await.unwrap();
            let waiting = tokio::spawn(async move { same.lock().await });
            held.unlock().await.unwrap();
            soon(waiting)
                .await
                .unwrap()
                .unwrap()
                .unlock()
                .await
                .unwrap();
        }
    }
}
