//! Faults that a lock in Redis must survive, each by its number. `tests/kinds` has those that each kind of lock must
//! survive by itself: lost replies (F3), restarts and lost keys (F6 to F8), refusals and rights (F9 to F11), odd keys,
//! names and times (F12, F20, F21). F13 and F17 to F18 are elsewhere.
//!
//! | fault | where |
//! |---|---|
//! | F2, F14, F16: the holder stands still, sleeps, goes away | `holders` |
//! | F3, F4, F15: replies that are lost or late, callers that are gone | `replies` |
//! | F3, F10: what is sent again, and what the client knows then | `repeats` |
//! | F3: answers from far away | `distance` |
//! | F5, F19: wake-ups that do not arrive | `wakeups` |
//! | F6, F7, F22: the server is gone, forgets scripts, stalls | `servers` |
//! | F9: how long a caller tolerates a refusal | `errors` |
//! | F13: the wall clock of the server steps | `wall_clock`, by hand |
//! | I6: whatever the server does, all calls end in time | `deadlines` |
//! | F17: blocked runtimes | `tests/waiting/starvation.rs` |
//! | F18: thousands of waiters | `tests/scale` |

#[path = "../common/mod.rs"]
mod common;

mod deadlines;
mod distance;
mod errors;
mod holders;
mod repeats;
mod replies;
mod servers;
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
pub(crate) const VERIFY: &str = include_str!("../../lua/lock/verify.lua");

/// A lease that no test waits for: what is gone before was released.
pub(crate) const HALF_A_MINUTE: Duration = Duration::from_secs(30);
/// By when something must be gone that would otherwise stay for [`HALF_A_MINUTE`].
pub(crate) const BEFORE_THE_LEASE: Duration = Duration::from_secs(15);
/// A short command time-out.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(400);

/// A server that knows all scripts, and a proxy in front of it.
pub(crate) async fn proxied() -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    for script in [ACQUIRE, REENTER, RELEASE, VERIFY] {
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

/// Polls come too late for the tests: whatever happens was a message, or a try with another reason.
pub(crate) fn minute() -> Backoff {
    Backoff::new().base(ms(60_000)).cap(ms(60_000))
}

/// The calls of `script` for the lock `key`.
pub(crate) fn calls(script: &str, key: &str) -> Match {
    Match::script(script).and(Match::key(key))
}
