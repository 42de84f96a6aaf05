//! A client behind a proxy, and the commands that faults are aimed at.

mod deadlines;
mod holders;
mod replies;
mod servers;
mod values;
mod wakeups;
mod wall_clock;

use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder};
use watchlock_support::proxy::{Match, Proxy};
use watchlock_support::server::RedisServer;

use crate::common::ms;

pub(crate) const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
pub(crate) const REENTER: &str = include_str!("../../lua/lock/reenter.lua");
pub(crate) const RELEASE: &str = include_str!("../../lua/lock/release.lua");
pub(crate) const RENEW: &str = include_str!("../../lua/lock/renew.lua");

/// A lease that no test waits for: what is gone before was released.
pub(crate) const HALF_A_MINUTE: Duration = Duration::from_secs(30);
/// By when something must be gone that would otherwise stay for [`HALF_A_MINUTE`].
pub(crate) const BEFORE_THE_LEASE: Duration = Duration::from_secs(15);
/// A command time-out that is soon over.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

/// A server that knows all scripts, and a proxy before it.
pub(crate) async fn proxied() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    for script in [ACQUIRE, REENTER, RELEASE, RENEW] {
        server.cmd(&["SCRIPT", "LOAD", script]).await;
    }
    let proxy = Proxy::to(&server);
    (server, proxy)
}

/// A client that gives up on an answer soon, and on the server late.
pub(crate) fn hasty(url: &str) -> ClientBuilder {
    Client::builder(url)
        .command_timeout(TIMEOUT)
        .unavailable_after(BEFORE_THE_LEASE)
}

/// No poll comes in time: what happens was a message, or a try with a reason.
pub(crate) fn minute() -> Backoff {
    Backoff::new().base(ms(60_000)).cap(ms(60_000))
}

/// The calls of `script` for the lock `key`.
pub(crate) fn calls(script: &str, key: &str) -> Match {
    Match::script(script).and(Match::key(key))
}
