//! Looks into a server from outside, through one connection of the kit's own that no count includes.
//!
//! It lives on a runtime of the kit, so it works from any runtime and while the test's own is blocked.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, FromRedisValue, RedisResult, Value};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use super::{Inner, RedisServer};
use crate::wait::eventually;

const NAME: &str = "watchlock-kit";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

static KIT: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("redis-inspector")
        .enable_all()
        .build()
        .expect("a runtime for the kit")
});

/// Runs `future` on the kit's runtime and blocks this thread for it, inside a runtime or not.
pub(super) fn block_on<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    KIT.spawn(async move { sender.send(future.await) });
    receiver.recv().expect("the kit's runtime lives on")
}

/// A connection by `CLIENT LIST`: its fields by name (`id`, `addr`, `name`, `cmd`, `sub`, …).
pub type ClientInfo = BTreeMap<String, String>;

#[derive(Debug)]
pub(super) struct Inspector {
    url: String,
    connection: Mutex<Option<MultiplexedConnection>>,
}

impl Inspector {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            connection: Mutex::new(None),
        }
    }

    /// Runs a command, on a new connection if the old one turns out to be cut.
    pub(super) async fn run(&self, cmd: Cmd) -> RedisResult<Value> {
        let mut cached = self.connection.lock().await.clone();
        if let Some(connection) = &mut cached {
            match cmd.query_async(connection).await {
                Err(error) if error.is_io_error() && !error.is_timeout() => {}
                answer => return answer,
            }
        }
        let mut connection = self.connect().await?;
        *self.connection.lock().await = Some(connection.clone());
        cmd.query_async(&mut connection).await
    }

    pub(super) async fn info(&self, section: &str, field: &str) -> Option<String> {
        let mut info = redis::cmd("INFO");
        info.arg(section);
        let text: String = redis::from_redis_value(self.run(info).await.ok()?).ok()?;
        fields_of(&text).remove(field)
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let mut connection = connect(&self.url).await?;
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(NAME);
        // Refused while the server loads its data; a later connection gets the name.
        let _: Value = name.query_async(&mut connection).await?;
        Ok(connection)
    }
}

async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    let client = redis::Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// A connection of a test's own, which outlasts a machine that stands still. That of redis-rs gives up after 500 ms.
///
/// # Panics
/// If the server cannot be reached.
pub async fn connection(url: &str) -> MultiplexedConnection {
    connect(url).await.expect("a connection")
}

impl RedisServer {
    /// Runs a command and panics if the server refuses it.
    ///
    /// # Panics
    /// If the server refuses the command or cannot be reached.
    pub async fn cmd(&self, args: &[&str]) -> Value {
        let answer = self.try_cmd(args).await;
        answer.unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// Runs a command.
    ///
    /// # Errors
    /// What the server or the connection said.
    ///
    /// # Panics
    /// If `args` is empty.
    ///
    /// # Cancel safety
    /// A command under way is run to its end.
    pub async fn try_cmd(&self, args: &[&str]) -> RedisResult<Value> {
        let (name, rest) = args.split_first().expect("a command has a name");
        let mut cmd = redis::cmd(name);
        cmd.arg(rest);
        let inner: Arc<Inner> = Arc::clone(&self.inner);
        let task = KIT.spawn(async move { inner.inspector.run(cmd).await });
        task.await.expect("the inspector does not panic")
    }

    /// Runs a command and converts its answer.
    ///
    /// # Panics
    /// If the server refuses the command or its answer is of another type.
    pub async fn query<T: FromRedisValue>(&self, args: &[&str]) -> T {
        let answer = self.cmd(args).await;
        redis::from_redis_value(answer).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// The fields of a hash; empty if there is none.
    pub async fn hash(&self, key: &str) -> BTreeMap<String, String> {
        self.query(&["HGETALL", key]).await
    }

    /// Milliseconds to live: -2 absent, -1 without expiry.
    pub async fn pttl(&self, key: &str) -> i64 {
        self.query(&["PTTL", key]).await
    }

    /// Whether the key is there.
    pub async fn exists(&self, key: &str) -> bool {
        self.query(&["EXISTS", key]).await
    }

    /// All keys, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.query(&["KEYS", "*"]).await;
        keys.sort_unstable();
        keys
    }

    /// All channels that somebody listens to, sorted.
    pub async fn channels(&self) -> Vec<String> {
        let mut channels: Vec<String> = self.query(&["PUBSUB", "CHANNELS"]).await;
        if self.inner.cluster {
            channels.extend(self.sharded_channels().await);
        }
        channels.sort_unstable();
        channels
    }

    /// The channels of a node's slots that somebody listens to; none if the server knows no sharded channels.
    pub async fn sharded_channels(&self) -> Vec<String> {
        let channels = self.try_cmd(&["PUBSUB", "SHARDCHANNELS"]).await;
        let channels = channels
            .ok()
            .and_then(|answer| redis::from_redis_value(answer).ok());
        channels.unwrap_or_default()
    }

    /// How many connections listen to `channel`.
    pub async fn subscribers(&self, channel: &str) -> u64 {
        let (_, count): (String, u64) = self.query(&["PUBSUB", "NUMSUB", channel]).await;
        // A server that knows no sharded channels has none.
        let sharded = self.try_cmd(&["PUBSUB", "SHARDNUMSUB", channel]).await;
        let sharded = sharded
            .ok()
            .and_then(|answer| redis::from_redis_value(answer).ok());
        let (_, sharded): (String, u64) = sharded.unwrap_or_default();
        count + sharded
    }

    /// All connections except the kit's own.
    pub async fn clients(&self) -> Vec<ClientInfo> {
        let list: String = self.query(&["CLIENT", "LIST"]).await;
        let clients = list.lines().map(client_of);
        clients
            .filter(|client| client.get("name").is_none_or(|name| name != NAME))
            .collect()
    }

    /// The number of connections without the kit's own.
    pub async fn connections(&self) -> usize {
        self.clients().await.len()
    }

    /// Calls per command (lower case, `config|get` for subcommands) since start or [`Self::reset_calls`].
    ///
    /// Includes the commands that scripts call, and the kit's own.
    pub async fn calls(&self) -> BTreeMap<String, u64> {
        let info: String = self.query(&["INFO", "commandstats"]).await;
        info.lines().filter_map(calls_of).collect()
    }

    /// Calls of one command; 0 if it was never called.
    pub async fn calls_of(&self, command: &str) -> u64 {
        self.calls().await.get(command).copied().unwrap_or(0)
    }

    /// Sets the counts of [`Self::calls`] back to 0.
    pub async fn reset_calls(&self) {
        self.cmd(&["CONFIG", "RESETSTAT"]).await;
    }

    /// One field of a section of `INFO`.
    pub async fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = self.query(&["INFO", section]).await;
        fields_of(&text).remove(field)
    }

    /// Waits until a replica is connected to its master and has its data.
    ///
    /// # Panics
    /// If that takes longer than 20 s.
    pub async fn synced(&self) {
        eventually(
            "the replica is in sync",
            super::READY_DEADLINE,
            async || {
                let link = self.info("replication", "master_link_status").await;
                link.as_deref() == Some("up")
            },
        )
        .await;
    }

    /// Waits until so many replicas acknowledge a write. A master sends them nothing before their first
    /// acknowledgement, which may be a second away.
    ///
    /// # Panics
    /// If that takes longer than 20 s.
    pub async fn acknowledged(&self, replicas: usize) {
        let (key, wanted) = ("watchlock:kit", replicas.to_string());
        eventually(
            "the replicas acknowledge a write",
            super::READY_DEADLINE,
            async || {
                self.cmd(&["SET", key, "written"]).await;
                let wait = ["WAIT", &wanted, "100"];
                self.query::<usize>(&wait).await >= replicas
            },
        )
        .await;
        self.cmd(&["DEL", key]).await;
        // The replicas have the deletion, too.
        self.cmd(&["WAIT", &wanted, "1000"]).await;
    }

    /// Cuts a replica off from its master, until it is [let in](Self::let_in) again.
    ///
    /// # Panics
    /// If it is still connected after 20 s.
    pub async fn cut_off_from(&self, master: &Self) {
        self.cmd(&["CONFIG", "SET", "masterauth", "wrong"]).await;
        master.cmd(&["CLIENT", "KILL", "TYPE", "replica"]).await;
        eventually("it is cut off", super::READY_DEADLINE, async || {
            let link = self.info("replication", "master_link_status").await;
            link.as_deref() == Some("down")
        })
        .await;
    }

    /// Lets a cut-off replica in again, to a master without a password.
    pub async fn let_in(&self) {
        self.cmd(&["CONFIG", "SET", "masterauth", ""]).await;
    }
}

fn fields_of(info: &str) -> BTreeMap<String, String> {
    let pairs = info.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

/// `id=3 addr=127.0.0.1:40000 name= cmd=ping …`
fn client_of(line: &str) -> ClientInfo {
    let pairs = line.split(' ').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(field, value)| (field.to_owned(), value.to_owned()))
        .collect()
}

/// `cmdstat_get:calls=5,usec=…`
fn calls_of(line: &str) -> Option<(String, u64)> {
    let (command, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
    let calls = figures.strip_prefix("calls=")?.split(',').next()?;
    Some((command.to_owned(), calls.parse().ok()?))
}
