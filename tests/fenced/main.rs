//! Fencing tokens: one for each hold, larger than all before, whatever happens to replies, keys and servers.

#[path = "../common/mod.rs"]
mod common;

mod life;
mod losses;
mod order;
mod replies;
mod tokens;
mod values;

use watchlock_support::server::RedisServer;

/// The key of the newest token of a lock whose name has no brace.
pub(crate) fn token_key(name: &str) -> String {
    format!("redisson_lock_token:{{{name}}}")
}

/// What Redis has as the newest token; `None` without a key.
pub(crate) async fn stored(server: &RedisServer, name: &str) -> Option<String> {
    server.query(&["GET", &token_key(name)]).await
}
