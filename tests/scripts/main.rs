//! The Lua scripts, called directly, as any client could: reply, keys, leases and messages, each run twice.

#[path = "../common/mod.rs"]
mod common;

mod contract;
mod denied;
mod ends;
mod fair;
mod fenced;
mod kept;
mod latch;
mod permits;
mod rw;
mod simple;

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use watchlock_support::server::{RedisServer, connection};

pub(crate) use crate::common::both;
use crate::common::channel;

pub(crate) const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
pub(crate) const REENTER: &str = include_str!("../../lua/lock/reenter.lua");
pub(crate) const VERIFY: &str = include_str!("../../lua/lock/verify.lua");
pub(crate) const RELEASE: &str = include_str!("../../lua/lock/release.lua");
pub(crate) const FORCE: &str = include_str!("../../lua/lock/force_release.lua");

/// The lock of these tests.
pub(crate) const LOCK: &str = "lock";
/// A client, and two of its holds.
pub(crate) const CLIENT: &str = "6a1b0c0e-0000-4000-8000-000000000001";
pub(crate) const MINE: &str = "6a1b0c0e-0000-4000-8000-000000000001:7";
pub(crate) const LATER: &str = "6a1b0c0e-0000-4000-8000-000000000001:8";

/// A server, and a listener on the lock's channel.
pub(crate) struct Scene {
    pub(crate) server: RedisServer,
    listener: PubSub,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).unwrap();
        let mut listener = client.get_async_pubsub().await.unwrap();
        listener.subscribe(channel(LOCK)).await.unwrap();
        Self { server, listener }
    }

    /// Runs a script on the lock.
    pub(crate) async fn run(&self, script: &str, args: &[&str]) -> RedisResult<i64> {
        let call = [&["EVAL", script, "1", LOCK], args].concat();
        redis::from_redis_value(self.server.try_cmd(&call).await?).map_err(Into::into)
    }

    /// Runs a script whose reply may have a number.
    pub(crate) async fn run_both(&self, script: &str, args: &[&str]) -> RedisResult<(i64, i64)> {
        let call = [&["EVAL", script, "1", LOCK], args].concat();
        self.server.try_cmd(&call).await.map(both)
    }

    pub(crate) async fn acquire(&self, hold: &str, lease: &str) -> RedisResult<i64> {
        self.run(ACQUIRE, &[hold, lease]).await
    }

    pub(crate) async fn reenter(&self, hold: &str, count: &str, lease: &str) -> RedisResult<i64> {
        self.run(REENTER, &[hold, count, lease]).await
    }

    pub(crate) async fn verify(&self, hold: &str, lease: &str) -> RedisResult<i64> {
        self.run(VERIFY, &[hold, lease]).await
    }

    pub(crate) async fn release(&self, hold: &str, count: &str) -> RedisResult<(i64, i64)> {
        self.run_both(RELEASE, &[hold, count, &channel(LOCK)]).await
    }

    pub(crate) async fn force(&self) -> RedisResult<(i64, i64)> {
        self.run_both(FORCE, &[CLIENT, &channel(LOCK)]).await
    }

    /// What was published since the last call.
    pub(crate) async fn messages(&mut self) -> Vec<String> {
        let server = &self.server;
        server.cmd(&["PUBLISH", &channel(LOCK), "note"]).await;
        let mut messages = Vec::new();
        let mut stream = self.listener.on_message();
        loop {
            let message = stream.next().await.expect("the listener lives");
            let text: String = message.get_payload().unwrap();
            if text == "note" {
                return messages;
            }
            messages.push(text);
        }
    }

    /// The hash as (field, value), and the time to live.
    pub(crate) async fn state(&self) -> (Vec<(String, String)>, i64) {
        let hash = self.server.hash(LOCK).await;
        (hash.into_iter().collect(), self.server.pttl(LOCK).await)
    }

    /// Asserts that `hold` has the lock with this count, and a lease within the bounds.
    pub(crate) async fn assert_held(&self, hold: &str, count: &str, lease: (i64, i64)) {
        let (hash, ttl) = self.state().await;
        assert_eq!(hash, [(hold.to_owned(), count.to_owned())]);
        assert!(
            ttl > lease.0 && ttl <= lease.1,
            "{ttl} ms, expected {lease:?}"
        );
    }

    pub(crate) async fn assert_free(&self) {
        assert_eq!(self.state().await, (Vec::new(), -2));
    }

    /// A connection of a user who may do everything except these.
    pub(crate) async fn user_without(&self, denied: &[&str]) -> redis::aio::MultiplexedConnection {
        let rights = ["ACL", "SETUSER", "limited", "reset", "on", ">pw"];
        let keys = ["~*", "&*", "+@all"];
        let call = [&rights[..], &keys[..], denied].concat();
        self.server.cmd(&call).await;
        let url = self.server.url().replace("//", "//limited:pw@");
        connection(&url).await
    }
}

/// A script for which one command gives this Lua value when `condition` is true of its first argument, `key`.
pub(crate) fn faked(script: &str, command: &str, condition: &str, value: &str) -> String {
    let fake = format!(
        "local real, redis = redis, {{}} \
        for name, part in pairs(real) do redis[name] = part end \
        function redis.call(command, key, ...) \
            if command == '{command}' and {condition} then return {value} end \
            if key then return real.call(command, key, ...) end \
            return real.call(command) \
        end "
    );
    fake + script
}

/// A script that runs at this time, in ms.
pub(crate) fn at_time(script: &str, now_ms: i64) -> String {
    let time = format!("{{ '{}', '{}' }}", now_ms / 1_000, now_ms % 1_000 * 1_000);
    faked(script, "TIME", "true", &time)
}

/// The code of an error. Redis 6.2 puts it after its own words about the script and the line.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let text = error.detail().unwrap_or_default();
    let raised = match error.code() {
        Some("@user_script:") => text,
        Some("ERR") if text.contains("@user_script:") => text.split_once("@user_script:")?.1,
        code => return code,
    };
    let mut words = raised.split(' ').map(|word| word.trim_start_matches('-'));
    words.find(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// Whether Redis said that the key is of another type.
pub(crate) fn is_wrong_type<T>(result: &RedisResult<T>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| code(error) == Some("WRONGTYPE"))
}

/// Whether Redis executed the call and it failed.
pub(crate) fn is_refused(result: &RedisResult<Value>) -> bool {
    let error = result.as_ref().err();
    error.is_some_and(|error| !error.is_io_error() && error.kind() != ErrorKind::Parse)
}
