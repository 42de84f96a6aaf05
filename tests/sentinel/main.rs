//! A master watched by sentinels, through the public API: fail-overs, their cost, and what must not go wrong.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "tls")]
mod encrypted;
mod failing_over;
mod finding;

use watchlock::{Client, ClientBuilder};
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};

use common::{LONG, ms};

/// Clients that renew soon enough for a test to see it.
pub(crate) fn builder(deployment: &SentinelDeployment) -> ClientBuilder {
    ClientBuilder::sentinel(deployment.urls(), SERVICE)
        .server_url(&deployment.server_url())
        .watchdog_lease(ms(20_000))
        // A fail-over may take longer than `lock` goes on by default.
        .unavailable_after(LONG)
}

pub(crate) async fn connect(deployment: &SentinelDeployment) -> Client {
    builder(deployment).connect().await.expect("a client")
}
