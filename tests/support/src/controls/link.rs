//! One connection, opened again when it fails, and commands that are repeated until they are answered.

use std::time::{Duration, Instant};

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisResult};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::COMMAND_TIMEOUT;

const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Link {
    redis: redis::Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// An answer, and which send it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) code: i64,
    /// Just before the send that was answered.
    pub(super) sent: Instant,
    /// Just before the first send.
    pub(super) first_sent: Instant,
    /// The fencing token, where there is one.
    pub(super) token: Option<u64>,
}

impl Answer {
    /// Whether an earlier send was not answered, and so may have run.
    pub(super) fn is_repeat(&self) -> bool {
        self.sent != self.first_sent
    }
}

impl Link {
    pub(super) fn new(url: &str) -> Self {
        Self {
            redis: redis::Client::open(url).expect("a redis URL"),
            connection: Mutex::new(None),
        }
    }

    /// Runs a script, again and again on fresh connections until there is an answer.
    pub(super) async fn call(&self, script: &str, keys: &[&str], args: &[String]) -> Answer {
        let mut first_sent = None;
        loop {
            let sent = Instant::now();
            if let Ok(mut connection) = self.connection().await {
                let sent = Instant::now();
                let first_sent = *first_sent.get_or_insert(sent);
                let mut command = redis::cmd("EVAL");
                command.arg(script).arg(keys.len()).arg(keys).arg(args);
                let answer = command.query_async::<redis::Value>(&mut connection);
                match timeout(COMMAND_TIMEOUT, answer).await {
                    Ok(Ok(reply)) => {
                        let (code, token) = read(&reply);
                        return Answer {
                            code,
                            sent,
                            first_sent,
                            token,
                        };
                    }
                    _ => *self.connection.lock().await = None,
                }
            }
            sleep(PAUSE.saturating_sub(sent.elapsed())).await;
        }
    }

    /// Subscribes, and returns when the server confirmed it.
    pub(super) async fn subscribe(&self, channel: &str) -> RedisResult<PubSub> {
        let mut messages = self.redis.get_async_pubsub().await?;
        messages.subscribe(channel).await?;
        Ok(messages)
    }

    async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(COMMAND_TIMEOUT))
            .set_response_timeout(None);
        let fresh = self
            .redis
            .get_multiplexed_async_connection_with_config(&config);
        Ok(connection.insert(fresh.await?).clone())
    }
}

/// A code, or a code and a token.
fn read(reply: &redis::Value) -> (i64, Option<u64>) {
    let int = |value: &redis::Value| match value {
        redis::Value::Int(int) => Some(*int),
        _ => None,
    };
    let (code, token) = match reply {
        redis::Value::Array(parts) => (parts.first(), parts.get(1)),
        one => (Some(one), None),
    };
    let token = token
        .and_then(int)
        .and_then(|token| u64::try_from(token).ok());
    (code.and_then(int).expect("scripts answer numbers"), token)
}
