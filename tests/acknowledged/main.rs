//! Acquires and renewals that count only when replicas acknowledged them. `WAIT` has its traps from Redis 7.2 on; name
//! such a server in `REDIS_SERVER`, or run all of them with `make servers`.

#[path = "../common/mod.rs"]
mod common;

mod clusters;
mod granting;
mod keeping;
mod refusing;
mod traps;

use std::time::Duration;

use watchlock::{Client, ClientBuilder, Error, LockGuard, NotReplicated};
use watchlock_support::server::RedisServer;

use common::ms;

/// How long replicas may take: long enough for a busy machine.
pub(crate) const WITHIN: Duration = Duration::from_millis(500);

/// A master and a replica in sync.
pub(crate) struct Pair {
    pub(crate) master: RedisServer,
    pub(crate) replica: RedisServer,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        let master = RedisServer::start();
        let replica = RedisServer::options().replica_of(&master).start();
        replica.synced().await;
        master.acknowledged(1).await;
        Self { master, replica }
    }

    pub(crate) fn builder(&self) -> ClientBuilder {
        Client::builder(&self.master.url())
            .acknowledged_by(1, WITHIN)
            .command_timeout(4 * WITHIN)
            .watchdog_lease(ms(20_000))
    }

    pub(crate) async fn connect(&self) -> Client {
        self.builder().connect().await.expect("a client")
    }
}

/// The error of an acquire that too few replicas acknowledged.
pub(crate) fn few(refused: Result<Option<LockGuard>, Error>) -> NotReplicated {
    match refused {
        Err(error) => *of(&error),
        Ok(granted) => panic!("granted: {}", granted.is_some()),
    }
}

pub(crate) fn of(error: &Error) -> &NotReplicated {
    assert!(error.is_transient(), "{error:?}");
    let few = error.not_replicated();
    few.unwrap_or_else(|| panic!("another error: {error:?}"))
}
