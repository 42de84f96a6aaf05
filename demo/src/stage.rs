//! What all scenes share: the way to Redis, names that are ours alone, workers, and the table of results.

use std::time::Duration;

use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use watchlock_support::worker::Worker;

use crate::Result;

/// The watchdog's lease in the demo; the library's default is 30 s.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Redis, as somebody who looks at the keys.
pub(crate) struct Stage {
    pub(crate) url: String,
    prefix: String,
    redis: MultiplexedConnection,
}

/// A number that was expected, and the one that was seen.
pub(crate) struct Row {
    what: String,
    expected: String,
    seen: String,
    pub(crate) right: bool,
}

impl Row {
    pub(crate) fn new(
        what: &str,
        expected: &str,
        seen: impl std::fmt::Display,
        right: bool,
    ) -> Self {
        Self {
            what: what.to_owned(),
            expected: expected.to_owned(),
            seen: seen.to_string(),
            right,
        }
    }
}

impl Stage {
    pub(crate) async fn set(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self {
            url: url.to_owned(),
            prefix: format!("watchlock-demo:{}:", uuid::Uuid::new_v4()),
            redis: client.get_multiplexed_async_connection().await?,
        })
    }

    /// A key that nobody else uses.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(crate) fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }

    /// A process with a client of its own.
    pub(crate) async fn worker(&self) -> Result<Worker> {
        let worker = Worker::rust();
        worker.open(&self.url, Some(LEASE)).await?;
        Ok(worker)
    }

    /// How much longer Redis keeps the key; negative when it is not there.
    pub(crate) async fn pttl(&self, key: &str) -> Result<i64> {
        Ok(self.redis().pttl(key).await?)
    }

    /// Who holds the lock, and how often, as Redis has it.
    pub(crate) async fn holder(&self, key: &str) -> Result<Option<(String, u32)>> {
        let fields: Vec<(String, u32)> = self.redis().hgetall(key).await?;
        Ok(fields.into_iter().next())
    }

    /// Waits until somebody waits for the lock: that its wake-ups are subscribed to.
    pub(crate) async fn waiter_of(&self, name: &str) -> Result<()> {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        for _ in 0..1_000 {
            let subscribers: (String, u64) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(&channel)
                .query_async(&mut self.redis())
                .await?;
            if subscribers.1 > 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err("nobody waits for the lock".into())
    }

    /// Removes what the scenes left on purpose; no key of a lock may be among it.
    pub(crate) async fn clear(&self) -> Result<Row> {
        let mut redis = self.redis();
        // Keys of tokens have the name inside.
        let pattern = format!("*{}*", self.prefix);
        let keys: Vec<String> = {
            let mut found = redis.scan_match(pattern).await?;
            let mut keys = Vec::new();
            while let Some(key) = found.next_item().await {
                keys.push(key?);
            }
            keys
        };
        let mut locks = 0;
        for key in keys {
            let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut redis).await?;
            locks += u32::from(kind == "hash");
            redis.del::<_, ()>(&key).await?;
        }
        Ok(Row::new(
            "locks left in Redis at the end",
            "0",
            locks,
            locks == 0,
        ))
    }
}

/// The headline of a scene.
pub(crate) fn headline(letter: char, text: &str) {
    println!("\n({letter}) {text}");
}

/// A step of a scene.
pub(crate) fn step(text: impl std::fmt::Display) {
    println!("    {text}");
}

/// The rows, aligned.
pub(crate) fn table(rows: &[Row]) -> String {
    let width = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row).chars().count()).max();
    let what = width(|row| &row.what).unwrap_or(0);
    let expected = width(|row| &row.expected)
        .unwrap_or(0)
        .max("expected".len());
    let seen = width(|row| &row.seen).unwrap_or(0).max("seen".len());
    let mut table = format!("{:what$}  {:expected$}  {:seen$}\n", "", "expected", "seen");
    for row in rows {
        let verdict = if row.right { "ok" } else { "WRONG" };
        let Row {
            what: text,
            expected: should,
            seen: is,
            ..
        } = row;
        let line = format!("{text:what$}  {should:expected$}  {is:seen$}  {verdict}\n");
        table.push_str(&line);
    }
    table
}
