//! Configures a client and starts it.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Client;
use super::greet::{greet, greet_later};
use crate::backend::{
    Backend, BrokenLinks, Cluster, Dialer, Failure, Fleet, LaneConfig, NodeAddress, Timers,
    check_tls,
};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::config::{Acks, Config, Publish};
use crate::engine::core::Core;
use crate::engine::keeper::{Engine, Starting};
use crate::error::{ConfigError, Error};
use crate::host::own;
use crate::report::{LostHold, Metrics, OnLost, Report};
use crate::secrets::{Provider, Secrets, Tls, provider};

/// Configures a client. Setters cannot fail; [`connect`](Self::connect) checks every value.
///
/// Make the client after the fork; a client does not survive a fork.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// let client = watchlock::Client::builder("redis://127.0.0.1/")
///     .key_prefix("billing:")
///     .watchdog_lease(Duration::from_secs(10))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct ClientBuilder {
    address: Deployment,
    pool: Option<Pool>,
    node_addresses: Option<NodeAddress>,
    publish: Option<Publish>,
    tls: Option<Tls>,
    secrets: Option<Provider>,
    sentinel_secrets: Option<Provider>,
    pub(super) settings: Config,
}

#[derive(Clone)]
enum Deployment {
    Url(String),
    Client(Box<redis::Client>),
    Sentinel {
        urls: Vec<String>,
        service: String,
        /// How to connect to the master itself.
        server: String,
    },
    Cluster(Vec<String>),
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may hold a password.
        f.debug_struct("ClientBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects with the default settings: `redis://`, `rediss://` (feature `tls`) or `unix:` addresses,
    /// with user, password and database as usual.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a client that was not returned ends.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Configures a client before it connects.
    pub fn builder(url: impl AsRef<str>) -> ClientBuilder {
        ClientBuilder::new(Deployment::Url(url.as_ref().to_owned()))
    }

    /// Configures a client that takes where and how to connect from a client of the [`redis`](crate::redis) crate, for
    /// settings that an address cannot express. It makes its own connections.
    ///
    /// TLS is then that of the `redis` crate, by its features; the feature `tls` is not needed. With rustls the application
    /// installs the provider of cryptography for the process.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = watchlock::redis::Client::open("redis://127.0.0.1/")?;
    /// let client = watchlock::Client::builder_from(&redis).key_prefix("billing:").connect().await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder_from(redis: &redis::Client) -> ClientBuilder {
        ClientBuilder::new(Deployment::Client(Box::new(redis.clone())))
    }
}

impl ClientBuilder {
    fn new(address: Deployment) -> Self {
        Self {
            address,
            pool: None,
            node_addresses: None,
            publish: None,
            tls: None,
            secrets: None,
            sentinel_secrets: None,
            settings: Config::default(),
        }
    }

    /// A client of the master that sentinels name. It follows the master to another server.
    ///
    /// It asks all of `urls` for the master that they watch under the name `service` (`sentinel monitor <service> …`),
    /// connects to the address that most of them name, and requires that this server reports to be a master. When the
    /// sentinels name another master, the client connects to that one and asserts its holds there. An address without a
    /// port means 6379; sentinels usually listen on 26379. User, password and encryption in these addresses are for the
    /// sentinels; [`server_url`](Self::server_url) sets those for the servers.
    ///
    /// A fail-over loses writes that had not reached the new master, locks too;
    /// [`acknowledged_by`](Self::acknowledged_by) prevents that.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let client = watchlock::ClientBuilder::sentinel(sentinels, "mymaster")
    ///     .server_url("redis://:secret@master/2")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "useSentinelServers")]
    pub fn sentinel(
        urls: impl IntoIterator<Item = impl Into<String>>,
        service: impl AsRef<str>,
    ) -> Self {
        Self::new(Deployment::Sentinel {
            urls: urls.into_iter().map(Into::into).collect(),
            service: service.as_ref().to_owned(),
            server: "redis://master/".to_owned(),
        })
    }

    /// How to connect to the servers that [sentinels](Self::sentinel) name: with the user, password, database and encryption
    /// of this address. Its host and port are ignored. Default `redis://master/`. No effect without sentinels.
    pub fn server_url(mut self, url: impl AsRef<str>) -> Self {
        if let Deployment::Sentinel { server, .. } = &mut self.address {
            url.as_ref().clone_into(server);
        }
        self
    }

    /// A client of a cluster. It asks all addresses and uses the first that knows the slots. The first address in the list says
    /// how to connect to the nodes (TLS, user, password).
    ///
    /// [`Client::builder`] detects a cluster too, and is enough if its one address is up when the client connects.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// use watchlock::ClientBuilder;
    ///
    /// let client = ClientBuilder::cluster(["redis://10.0.0.1:6379/", "redis://10.0.0.2:6379/"])
    ///     .connect()
    ///     .await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "useClusterServers")]
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        Self::new(Deployment::Cluster(urls.collect()))
    }

    /// Makes connections for commands with the manager of the application's pool. It takes none out of the pool, because
    /// locks need connections that nothing else uses. Subscriptions use the address, because a pool has no connections for
    /// them; both must lead to the same database.
    ///
    /// The pool configures the sockets of its connections. Give its manager a `ConnectionInfo` whose TCP settings have
    /// `nodelay`, keepalive and, on Linux, a user time-out, as connections by an address have. Without `nodelay` commands
    /// may delay each other. Time-outs of the pool are timers of the runtime that uses it: with a paused clock
    /// (`start_paused`) connect without a pool.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Maps the host and port that a cluster node announces to those where the client can reach it, for example behind port
    /// forwarding. Called each time a node is named, so it must return at once, and always the same. Default: the announced
    /// ones.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// let client = watchlock::Client::builder("redis://localhost:7000/")
    ///     .node_addresses(|_host, port| ("localhost".to_owned(), port))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "natMapper")]
    pub fn node_addresses(
        mut self,
        address: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.node_addresses = Some(Arc::new(address));
        self
    }

    /// How releases are published in a cluster. Default: by the version of each node, as Redisson does since 3.22. All
    /// clients of the same locks must use the same way; otherwise waiters miss releases until their next poll. No effect
    /// without a cluster.
    #[doc(alias = "shardedSubscriptionMode")]
    pub fn publish(mut self, publish: Publish) -> Self {
        self.publish = Some(publish);
        self
    }

    /// The lease that the watchdog renews, every third of it: 500 ms to 24 h, whole milliseconds. Default 30 s, as
    /// Redisson's `lockWatchdogTimeout`.
    #[doc(alias = "lockWatchdogTimeout")]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.settings.watchdog_lease = lease;
        self
    }

    /// The prefix of every key, like a Redisson `nameMapper`: shorter than the 512 bytes that a name may have with its
    /// prefix. Default empty.
    #[doc(alias = "nameMapper")]
    pub fn key_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        prefix.as_ref().clone_into(&mut self.settings.key_prefix);
        self
    }

    /// What [`holders`](crate::Handle::holders) shows to people beside the client's id, such as `billing@host-7`: 1 to 256
    /// bytes without control characters. Default none.
    ///
    /// The client writes it to the key `watchlock_client:<id>`, without the [prefix](Self::key_prefix), once a watchdog's
    /// lease, for three of them, and deletes it at its end. Locks do not depend on it: if the ACL denies it, the log says
    /// so at level `debug`.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.settings.label = Some(label.as_ref().to_owned());
        self
    }

    /// The pauses between tries, and the longest time that a waiter sleeps without a wake-up.
    #[doc(alias = "retryDelay")]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// How long to wait for a reply: 10 ms to 60 s. Default 1 s. It counts from when the command is submitted to the
    /// connection; one that waits for its turn, behind thousands of others, waits as long as its caller does. An `unlock`,
    /// and a try whose wait is shorter, end this long after their call.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// How long an attempt to connect may take: 10 ms to 60 s. Default 2 s. Sentinels have as long to answer, before it.
    #[doc(alias = "connectTimeout")]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long `lock` keeps trying while Redis is unreachable or refuses: up to 24 h. Default 5 s.
    #[doc(alias = "retryAttempts")]
    pub fn unavailable_after(mut self, span: Duration) -> Self {
        self.settings.unavailable_after = span;
        self
    }

    /// How long Redis keeps the key with a lock's newest fencing token after the last
    /// [fenced](crate::FencedLock) acquire of it: 1 s to 365 days, whole milliseconds. Default for ever.
    ///
    /// For services that have a fenced lock per order, user or file, and would leave a key for each. Tokens keep growing
    /// after the key expired, because they follow Redis' clock. **Not with Java**: Redisson counts from the key, and starts
    /// at 1 again when it is gone. A client without this setting makes the key permanent again.
    pub fn fencing_token_ttl(mut self, ttl: Duration) -> Self {
        self.settings.fencing_token_ttl = Some(ttl);
        self
    }

    /// How long Redisson lets a waiter of a [fair lock](crate::FairLock) keep its place in the queue: 15 s to 24 h, whole
    /// milliseconds. Default 5 min, as Redisson's `fairLockWaitTimeout`.
    ///
    /// It does not limit how long a call waits. Waiters of watchlock keep their place while their process lives, and lose
    /// it 15 s after it dies; the others wait that long for one of Java's. Set it to the same value on both sides.
    #[doc(alias = "fairLockWaitTimeout")]
    pub fn fair_wait(mut self, wait: Duration) -> Self {
        self.settings.fair_wait = wait;
        self
    }

    /// Whether a lock that this client releases goes to its next waiter without a command to Redis. Default true.
    ///
    /// A hold under the watchdog is then *passed on*: its field in Redis stays and belongs to the next holder, so the lock
    /// changes hands in microseconds instead of a round trip. This is done for plain and spin locks and the permits of a
    /// [`Semaphore`](crate::Semaphore), for 10 ms in a row. Then the release is sent, and this client may leave a lock free for
    /// a while, so that other clients get their turn. `unlock` of a hold that is passed on does not ask Redis: if the
    /// key is gone (an operator deleted it), the next holder learns it by [`lost`](crate::LockGuard::lost).
    ///
    /// Set it to `false` if each hold needs a field of its own in Redis, or each `unlock` a reply of Redis.
    pub fn pass_on(mut self, passes_on: bool) -> Self {
        self.settings.passes_on = passes_on;
        self
    }

    /// Grants an acquire only after `replicas` replicas acknowledged it within `within`, and a renewal likewise. Default: no
    /// acknowledgement.
    ///
    /// A fail-over then keeps the lock if the promoted replica is one that acknowledged; if all replicas must, it always
    /// is. A master that is cut off from its replicas grants nothing, and its holds end with their leases. [What survives what](https://github.com/watchlock/watchlock/blob/v0.1.0/docs/deployments.md#what-survives-what)
    /// says what remains.
    ///
    /// If fewer acknowledge in time, the acquire is undone and tried again within the wait; in the end it fails with
    /// [`Error::Refused`] and the source [`NotReplicated`](crate::NotReplicated). After two failures in a row acquires fail
    /// at once, and at least once a second one command finds out whether the replicas are back. A release waits for no
    /// replica.
    ///
    /// 1 to 64 replicas, 1 ms to a quarter of [`command_timeout`](Self::command_timeout); 200 ms is usually enough. The
    /// number is fixed, not that of the connected replicas, so a master without replicas grants nothing. In a cluster it
    /// applies to each master.
    #[doc(alias = "checkLockSyncedSlaves")]
    #[doc(alias = "slavesSyncTimeout")]
    pub fn acknowledged_by(mut self, replicas: u32, within: Duration) -> Self {
        self.settings.acks = Some(Acks {
            wanted: replicas,
            within,
        });
        self
    }

    /// The certificates for `rediss://` connections to servers, cluster nodes and sentinels. Default: the certificate
    /// authorities of the system, and no client certificate. Needs the feature `tls`.
    #[doc(alias = "sslTruststore")]
    #[doc(alias = "sslKeystore")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// The credentials of connections to servers. Called for each new connection, so passwords and certificates may change
    /// while the client lives; existing connections stay.
    ///
    /// It runs on the runtime that connects, and must not block it for long: it may read a file, but a service should be
    /// asked beforehand, by a task of the application. If it panics, the attempt to connect fails. A [pool](Self::pool) has
    /// credentials of its own.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// use watchlock::{Client, Secrets};
    ///
    /// let client = Client::builder("redis://redis.internal/")
    ///     .secrets(|| {
    ///         let password = std::fs::read_to_string("/run/secrets/redis").unwrap_or_default();
    ///         Secrets::new().user("app").password(password.trim())
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "credentialsResolver")]
    pub fn secrets(mut self, secrets: impl Fn() -> Secrets + Send + Sync + 'static) -> Self {
        self.secrets = Some(Arc::new(secrets));
        self
    }

    /// The credentials of connections to [sentinels](Self::sentinel), like [`secrets`](Self::secrets).
    pub fn sentinel_secrets(
        mut self,
        secrets: impl Fn() -> Secrets + Send + Sync + 'static,
    ) -> Self {
        self.sentinel_secrets = Some(Arc::new(secrets));
        self
    }

    /// Called once for each hold that is lost, to alarm, or to end the process: within milliseconds of
    /// [`lost`](crate::LockGuard::lost), also while the application's runtime is blocked. A [shutdown](Client::shutdown) is
    /// no loss.
    ///
    /// It has a thread of its own, so it may block: other losses wait for it, 1 024 of them at most; the log has all. A panic
    /// in it is caught and logged. A hold of several locks, or of a [quorum](crate::Quorum), is not reported, but each of
    /// its locks is.
    pub fn on_lost(mut self, callback: impl Fn(&LostHold) + Send + Sync + 'static) -> Self {
        self.settings.on_lost = Some(OnLost::new(callback));
        self
    }

    /// Adds the label `lock` to the instruments of locks, with what `label` returns for a lock's name. Default none: names of
    /// locks are too many for most systems of metrics, so map them to a few values. Needs the feature `metrics`.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// let client = watchlock::Client::builder("redis://127.0.0.1/")
    ///     .metrics_lock_label(|name| name.starts_with("order:").then_some("order"))
    ///     .connect()
    ///     .await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics_lock_label(mut self, label: fn(&str) -> Option<&'static str>) -> Self {
        self.settings.lock_label = Some(label);
        self
    }

    /// The clock that leases are measured with. For tests; default [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Checks the settings, starts the client's background thread and connects.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a bad address or value, a pool that leads elsewhere, or a server that cannot be used:
    /// older than Redis 6.2, a replica, a sentinel, behind TLS where the address asks for none, in cluster mode behind a
    /// pool, or not in cluster mode where a [cluster](Self::cluster) was to be; with
    /// [`UnknownService`](ConfigError::UnknownService) when most sentinels do not know the service's name; with
    /// [`NoRuntime`](ConfigError::NoRuntime) when there is no tokio runtime with timers and I/O (`enable_all`).
    /// [`Error::Unavailable`] when the server cannot be reached, or the system starts no thread;
    /// [`Error::Refused`], [`Error::Denied`] (a wrong password) when it answers so.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a client that was not returned ends.
    pub async fn connect(self) -> Result<Client, Error> {
        let (config, dialer, cluster) = self.checked()?;
        if Handle::try_current().is_err() {
            return Err(ConfigError::NoRuntime.into());
        }
        let (engine, _) = start(config, dialer, cluster, false)?;
        let fleet = engine.core.backend.callers_fleet()?;
        greet(&engine.core, &fleet).await?;
        Ok(Client::of(engine))
    }

    /// Checks the settings and returns without waiting for the server, so a service can start while Redis is down. Needs
    /// no runtime.
    ///
    /// The client connects in the background, with the pauses of [`backoff`](Self::backoff). Until then locks fail with
    /// [`Error::Unavailable`] after `unavailable_after`, or at the end of their wait. A server that
    /// [`connect`](Self::connect) would refuse (another database than the pool's, a replica, too old, a wrong password) is
    /// logged as an error, once for each reason, and new acquires fail with the error that `connect` would return, or that
    /// of Redis, until a later attempt finds that it can be used. What is asked for before the first attempt is over may be
    /// granted by such a server.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), watchlock::Error> {
    /// let client = watchlock::Client::builder("redis://127.0.0.1/").connect_lazy()?;
    /// match client.get_lock("report").lock().await {
    ///     Err(error) if error.is_transient() => println!("later: {error}"),
    ///     guard => guard?.unlock().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a bad address or value; [`Error::Unavailable`] when the system starts no thread.
    #[doc(alias = "lazyInitialization")]
    pub fn connect_lazy(self) -> Result<Client, Error> {
        let (config, dialer, cluster) = self.checked()?;
        let (engine, keeper) = start(config, dialer, cluster, false)?;
        keeper.spawn(own(greet_later(Arc::clone(&engine.core))));
        Ok(Client::of(engine))
    }

    /// The same settings for another address.
    pub(super) fn at(mut self, url: &str) -> Self {
        self.address = Deployment::Url(url.to_owned());
        self
    }

    pub(super) fn checked(self) -> Result<(Config, Arc<Dialer>, Cluster), ConfigError> {
        self.settings.check()?;
        if let Some(tls) = &self.tls {
            check_tls(tls)?;
        }
        if self.pool.is_some() {
            let second = match self.address {
                Deployment::Sentinel { .. } => Some("sentinel"),
                Deployment::Cluster(_) => Some("cluster"),
                Deployment::Url(_) | Deployment::Client(_) => None,
            };
            if let Some(second) = second {
                let first = "pool";
                return Err(ConfigError::Conflict { first, second });
            }
        }
        let dialer = match self.address {
            Deployment::Url(url) => Dialer::from_url(&url, self.pool)?,
            Deployment::Client(client) => Dialer::from_client(&client, self.pool)?,
            Deployment::Sentinel {
                urls,
                service,
                server,
            } => {
                let secrets = provider(self.sentinel_secrets, self.tls.clone());
                Dialer::from_sentinels(&urls, &service, &server, secrets)?
            }
            Deployment::Cluster(urls) => Dialer::from_urls(&urls)?,
        };
        let dialer = Arc::new(dialer.identified_by(provider(self.secrets, self.tls)));
        let cluster = Cluster::new(Arc::clone(&dialer), self.node_addresses, self.publish);
        Ok((self.settings, dialer, cluster))
    }
}

/// The longest pause between attempts to connect, so that a server that is back is found soon.
const RECONNECT: Duration = Duration::from_millis(200);

/// Starts the keeper without connecting. Also returns its runtime, for tasks that end with it.
pub(super) fn start(
    mut config: Config,
    dialer: Arc<Dialer>,
    cluster: Cluster,
    asks_server: bool,
) -> Result<(Engine, Handle), Failure> {
    config.metrics = Metrics::start(&config.clock, config.lock_label);
    let report = Report::start(config.on_lost.clone(), config.metrics.clone());
    let report = report.map_err(Failure::starting)?;
    let starting = Starting::spawn().map_err(Failure::starting)?;
    let lanes = LaneConfig {
        dialer,
        clock: config.clock.clone(),
        backoff: config.backoff.at_most(RECONNECT),
        command_timeout: config.command_timeout,
        connect_timeout: config.connect_timeout,
        timers: Timers::of(&starting.runtime, config.clock.clone()),
        asks_server,
        broken: Arc::new(BrokenLinks::default()),
        node: None,
        acks: config.acks,
        metrics: config.metrics.clone(),
        used_by: "callers",
    };
    let keepers = LaneConfig {
        used_by: "keeper",
        ..lanes.clone()
    };
    let cluster = Arc::new(cluster);
    let runtime = starting.runtime.clone();
    let keepers = Fleet::open(keepers, Arc::clone(&cluster), &runtime);
    let (mailbox, mail) = mpsc::unbounded_channel();
    let backend = Backend::new(lanes, cluster, keepers);
    let core = Arc::new(Core::new(config, report, backend, mailbox));
    Ok((starting.begin(core, mail), runtime))
}
