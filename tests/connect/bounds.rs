//! Every value of the builder has bounds, which are checked before the client connects.

use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder, ConfigError, Error};
use watchlock_support::server::RedisServer;

use crate::common::{ms, soon};
use crate::works;

const DAY: Duration = Duration::from_secs(24 * 3600);

type Change = fn(ClientBuilder) -> ClientBuilder;

fn backoff(builder: ClientBuilder, change: impl FnOnce(Backoff) -> Backoff) -> ClientBuilder {
    builder.backoff(change(Backoff::new()))
}

#[tokio::test]
async fn values_out_of_their_bounds_are_named() {
    let bad: [(&str, Change); 20] = [
        ("watchdog_lease", |b| b.watchdog_lease(ms(499))),
        ("watchdog_lease", |b| b.watchdog_lease(Duration::ZERO)),
        ("watchdog_lease", |b| b.watchdog_lease(DAY + ms(1))),
        ("watchdog_lease", |b| b.watchdog_lease(Duration::MAX)),
        ("key_prefix", |b| b.key_prefix(&"x".repeat(512))),
        ("command_timeout", |b| b.command_timeout(Duration::ZERO)),
        ("command_timeout", |b| b.command_timeout(ms(9))),
        ("command_timeout", |b| b.command_timeout(ms(60_001))),
        ("command_timeout", |b| b.command_timeout(Duration::MAX)),
        ("connect_timeout", |b| b.connect_timeout(ms(9))),
        ("connect_timeout", |b| b.connect_timeout(ms(60_001))),
        ("connect_timeout", |b| b.connect_timeout(Duration::MAX)),
        ("unavailable_after", |b| b.unavailable_after(DAY + ms(1))),
        ("unavailable_after", |b| b.unavailable_after(Duration::MAX)),
        ("Backoff::base", |b| backoff(b, |k| k.base(Duration::ZERO))),
        ("Backoff::base", |b| backoff(b, |k| k.base(ms(1_001)))),
        ("Backoff::cap", |b| backoff(b, |k| k.cap(Duration::MAX))),
        ("Backoff::cap", |b| backoff(b, |k| k.cap(Duration::ZERO))),
        ("Backoff::factor", |b| backoff(b, |k| k.factor(f64::NAN))),
        ("Backoff::factor", |b| backoff(b, |k| k.factor(0.99))),
    ];
    for (expected, spoil) in bad {
        // Nobody listens there: the values are checked first.
        let builder = spoil(Client::builder("redis://127.0.0.1:1/"));
        let error = soon(builder.connect()).await.map(drop).unwrap_err();
        let Error::Config(ConfigError::OutOfRange {
            setting, allowed, ..
        }) = &error
        else {
            panic!("{expected}: {error:?}");
        };
        assert_eq!(*setting, expected);
        assert!(!allowed.is_empty() && !error.is_transient());
    }
}

#[tokio::test]
async fn the_ends_of_the_bounds_are_good() {
    let server = RedisServer::start();
    let ends: [Change; 6] = [
        |b| b.watchdog_lease(ms(500)),
        |b| b.watchdog_lease(DAY),
        |b| b.key_prefix(&"x".repeat(512 - "works".len())),
        |b| {
            b.command_timeout(Duration::from_secs(60))
                .connect_timeout(Duration::from_secs(60))
        },
        |b| b.unavailable_after(Duration::ZERO),
        |b| backoff(b, |k| k.base(ms(1)).cap(ms(1)).factor(1.0)),
    ];
    for change in ends {
        let builder = change(Client::builder(&server.url()));
        works(&builder.connect().await.unwrap()).await;
    }
}

#[test]
fn a_builder_can_be_built_by_anything() {
    for url in ["", "\0", "redis://", "redis://h"] {
        let builder = Client::builder(url)
            .watchdog_lease(Duration::MAX)
            .command_timeout(Duration::ZERO)
            .key_prefix("\0");
        drop(format!("{builder:?}"));
    }
}
