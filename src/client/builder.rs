//! Setting a client up.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::Pool;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Client;
use super::greet::{greet, greet_later};
use crate::backend::check_tls;
use crate::backend::{Backend, BrokenLinks, Dialer, Failure, Fleet, LaneConfig, Timers};
use crate::backend::{Cluster, NodeAddress};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::config::{Acks, Config, Publish, Settings};
use crate::engine::keeper::Starting;
use crate::engine::{Core, Engine};
use crate::error::{ConfigError, Error};
use crate::secrets::{Provider, Secrets, Tls, provider};

/// Sets a client up. Setters cannot fail; [`connect`](Self::connect) checks every value.
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
    nodes: ClusterSettings,
    identity: Credentials,
    settings: Settings,
}

/// What connections identify themselves by.
#[derive(Clone, Default)]
struct Credentials {
    tls: Option<Tls>,
    to_servers: Option<Provider>,
    to_sentinels: Option<Provider>,
}

/// What there is to know of the nodes of a cluster.
#[derive(Clone, Default)]
struct ClusterSettings {
    addresses: Option<NodeAddress>,
    publish: Option<Publish>,
}

/// What leads to the server.
#[derive(Clone)]
pub(super) enum Deployment {
    Url(String),
    Client(Box<redis::Client>),
    Sentinel(Sentinel),
    Cluster(Vec<String>),
}

/// A master by its sentinels.
#[derive(Clone)]
pub(super) struct Sentinel {
    urls: Vec<String>,
    service: String,
    /// How to connect to the master itself.
    server: String,
}

const ANY_SERVER: &str = "redis://master/";

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
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A client that is to be set up first.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(Deployment::Url(url.to_owned()))
    }

    /// A client that connects as one of the [`redis`](crate::redis) crate does, for what an address cannot
    /// say: a private certificate authority, client certificates. It takes where and how to connect from
    /// it, and makes its own connections.
    ///
    /// The given client brings its own TLS, by the features of the `redis` crate; the feature `tls` is not
    /// needed for it. With rustls the application chooses the process's provider of cryptography.
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
    pub(super) fn new(address: Deployment) -> Self {
        Self {
            address,
            pool: None,
            nodes: ClusterSettings::default(),
            identity: Credentials::default(),
            settings: Settings::default(),
        }
    }

    /// A client of the master that sentinels name, also after it has changed.
    ///
    /// All of `urls` are asked, by the name `service` under which they watch the master (`sentinel monitor <service>
    /// …`); the address that most of them name is connected to, and must say that it is a master. When they tell of
    /// another one, the client goes over to it, and asserts its holds there. An address without a port means 6379, as
    /// everywhere, while sentinels usually listen on 26379. User, password and encryption in these addresses are the
    /// sentinels'; those of the servers are set by [`server_url`](Self::server_url).
    ///
    /// A fail-over loses what the new master was not sent yet, locks among it:
    /// [`acknowledged_by`](Self::acknowledged_by) is the cure.
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
    pub fn sentinel(urls: impl IntoIterator<Item = impl Into<String>>, service: &str) -> Self {
        Self::new(Deployment::Sentinel(Sentinel {
            urls: urls.into_iter().map(Into::into).collect(),
            service: service.to_owned(),
            server: ANY_SERVER.to_owned(),
        }))
    }

    /// How to connect to the servers that [sentinels](Self::sentinel) name: an address whose user, password, database
    /// and encryption count, and whose host and port do not. Default `redis://master/`.
    ///
    /// Without sentinels it has no effect.
    pub fn server_url(mut self, url: &str) -> Self {
        if let Deployment::Sentinel(sentinel) = &mut self.address {
            url.clone_into(&mut sentinel.server);
        }
        self
    }

    /// A client of a cluster, which is found by any of these addresses: all are asked, and the first that answers counts.
    /// The first says how to connect to the nodes (TLS, user, password).
    ///
    /// One address is enough while its server is up when the client connects: [`Client::builder`] meets a cluster, too.
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

    /// Makes the connections for commands the way the application's pool does, by its manager. None is
    /// taken out of the pool: locks need connections that nothing else uses. Subscriptions, which a pool
    /// cannot give, come from the address; both must lead to the same database.
    ///
    /// How the sockets of these connections are tuned is the pool's choice, and cannot be changed from here:
    /// give its manager a `ConnectionInfo` whose TCP settings have `nodelay`, keepalive and, on Linux, a user
    /// time-out, as connections by an address have. Without `nodelay` commands may wait for each other.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Where the nodes of a cluster are to be reached, from the host and port that each announces: for clients behind a
    /// port forwarding or another network. Asked whenever a node is named, so it is to answer at once, and always the
    /// same. Default: where they say.
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
        self.nodes.addresses = Some(Arc::new(address));
        self
    }

    /// How releases are told in a cluster. Default: as each node can, by its version; so does Redisson since 3.22.
    /// All who wait for the same locks must do it in one way, or they are not woken, and notice a release at their next
    /// poll. Without a cluster it says nothing.
    #[doc(alias = "shardedSubscriptionMode")]
    pub fn publish(mut self, publish: Publish) -> Self {
        self.nodes.publish = Some(publish);
        self
    }

    /// The lease that the watchdog keeps alive: 500 ms to 24 h, whole milliseconds. Default 30 s, as
    /// Redisson's `lockWatchdogTimeout`. Renewed every third of it.
    #[doc(alias = "lockWatchdogTimeout")]
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.settings.watchdog_lease = lease;
        self
    }

    /// The bounds of a fixed lease: 10 ms to 365 days. Default 10 ms to 24 h.
    pub fn lease_bounds(mut self, shortest: Duration, longest: Duration) -> Self {
        self.settings.lease_bounds = shortest..=longest;
        self
    }

    /// What every key begins with, as a Redisson `nameMapper` may do. Default empty.
    #[doc(alias = "nameMapper")]
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.settings.key_prefix);
        self
    }

    /// The longest name with its prefix: 1 to 65 536 bytes. Default 512.
    pub fn max_name_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_key_bytes = bytes;
        self
    }

    /// How long to pause between tries, and how long a waiter sleeps at most without a wake-up.
    #[doc(alias = "retryDelay")]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.settings.backoff = backoff;
        self
    }

    /// How long a reply is waited for: 10 ms to 60 s. Default 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// How long a connection may take to come about: 10 ms to 60 s. Default 2 s.
    #[doc(alias = "connectTimeout")]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// For how long `lock` goes on trying while Redis is unreachable or refuses: up to 24 h. Default 5 s.
    #[doc(alias = "retryAttempts")]
    pub fn unavailable_after(mut self, span: Duration) -> Self {
        self.settings.unavailable_after = span;
        self
    }

    /// How long Redis keeps the key with a lock's newest fencing token after the last
    /// [fenced](crate::FencedLock) acquire of it: 1 s to 365 days, whole milliseconds. Default for ever.
    ///
    /// For services that have a fenced lock per order, user or file, and would leave a key for each. Tokens go on
    /// growing when the key is gone, since they follow Redis' clock. **Not with Java**: Redisson counts from the
    /// key, and starts again at 1 when it is gone. A client without this setting makes the key stay for ever again.
    pub fn fencing_token_ttl(mut self, ttl: Duration) -> Self {
        self.settings.fencing_token_ttl = Some(ttl);
        self
    }

    /// How much time Redisson gives a waiter of a [fair lock](crate::FairLock) to come to its turn: 15 s to 24 h, whole
    /// milliseconds. Default 5 min, as Redisson's `fairLockWaitTimeout`.
    ///
    /// It is not for how long a lock is waited for, which each call says. Waiters of watchlock keep their place for as
    /// long as their process lives, and lose it 15 s after that died; only Redisson goes by this time. Where both wait
    /// for a lock it should be the same on both sides.
    #[doc(alias = "fairLockWaitTimeout")]
    pub fn fair_wait(mut self, wait: Duration) -> Self {
        self.settings.fair_wait = wait;
        self
    }

    /// Whether the next waiter of this client gets a lock that is given back here without a word to Redis. Default true.
    ///
    /// A hold under the watchdog is then *passed on*: its field in Redis stays, and belongs to the next one. So the lock
    /// goes from one task to the next in microseconds instead of a round trip. It is done for plain and spin locks, for
    /// 10 ms in a row; the release behind that is sent alone, and this client leaves the lock free for a millisecond, so
    /// that other clients, also those that poll, wait no longer than that for their turn. `unlock` of a hold that is
    /// passed on asks nobody: what only Redis could know (that an operator deleted the key) the next one is told, by
    /// [`lost`](crate::LockGuard::lost).
    ///
    /// Set it to `false` if each hold is to have a field of its own in Redis, or each `unlock` an answer of Redis.
    pub fn pass_on(mut self, passes_on: bool) -> Self {
        self.settings.passes_on = passes_on;
        self
    }

    /// Has an acquire granted only when so many `replicas` have it, each within the time `within`; and a renewal lengthen
    /// the hold only then. Default: no replica is waited for.
    ///
    /// A fail-over then keeps the lock, if the replica that is promoted is one of those that acknowledged: with as many
    /// as there are replicas it always is. A master that was cut off from its replicas grants nothing, and what is held
    /// there ends with its lease. [What survives what](https://github.com/watchlock/watchlock/blob/main/docs/deployments.md#what-survives-what)
    /// says what remains.
    ///
    /// When fewer have it in time the acquire is undone and tried again within the wait; in the end it is
    /// [`Error::Refused`] by [`NotReplicated`](crate::NotReplicated). After two such times in a row that is said at once,
    /// and one command a second finds out whether the replicas are back. Giving back waits for no replica.
    ///
    /// 1 to 64 replicas, 1 ms to a quarter of [`command_timeout`](Self::command_timeout). Time enough for a replica that works
    /// is usually 200 ms. It is a number of its own on purpose, and not that of the replicas that happen to be connected:
    /// a master without any grants nothing. In a cluster it is about the replicas of each master.
    #[doc(alias = "checkLockSyncedSlaves")]
    #[doc(alias = "slavesSyncTimeout")]
    pub fn acknowledged_by(mut self, replicas: u32, within: Duration) -> Self {
        self.settings.acks = Some(Acks {
            wanted: replicas,
            within,
        });
        self
    }

    /// The certificates of connections that are encrypted (`rediss://`): to the server, the nodes of a cluster, the
    /// sentinels. Default: the authorities of the system, and no client certificate. Needs the feature `tls`.
    #[doc(alias = "sslTruststore")]
    #[doc(alias = "sslKeystore")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.identity.tls = Some(tls);
        self
    }

    /// What connections to servers identify themselves by, asked for at each connect: for passwords and certificates that
    /// change while the client lives. Connections that are there go on; the next one is made with what `secrets` says then.
    ///
    /// It is called on whichever runtime connects, and must not block it for long: a file may be read, a service should
    /// be asked by a task of the application's beforehand. One that panics is an attempt that failed. Not used for the
    /// commands of a [pool](Self::pool), whose manager identifies itself.
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
        self.identity.to_servers = Some(Arc::new(secrets));
        self
    }

    /// The same for connections to [sentinels](Self::sentinel).
    pub fn sentinel_secrets(
        mut self,
        secrets: impl Fn() -> Secrets + Send + Sync + 'static,
    ) -> Self {
        self.identity.to_sentinels = Some(Arc::new(secrets));
        self
    }

    /// The clock that leases are measured with. For tests; default [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Checks the settings, starts the keeper and connects.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a bad address or value, a pool that leads elsewhere, or a server that cannot be used:
    /// older than Redis 6.2, a replica, a sentinel, in cluster mode behind a pool, or not in cluster mode where a
    /// [cluster](Self::cluster) was to be; with
    /// [`UnknownService`](ConfigError::UnknownService) when no sentinel knows the service's name; with
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

    /// Checks the settings and starts the keeper, and does not wait for the server: a service comes up while
    /// Redis is down. Needs no runtime.
    ///
    /// The client connects in the background, as often as [`backoff`](Self::backoff) says; until it has,
    /// locks are [`Error::Unavailable`] after `unavailable_after`, or at the end of their wait. What
    /// [`connect`](Self::connect) would refuse of the server (another database than the pool's, a replica,
    /// too old, a wrong password) is logged as an error instead, once, and every use says what
    /// Redis says to it.
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
        keeper.spawn(greet_later(Arc::clone(&engine.core)));
        Ok(Client::of(engine))
    }

    /// The same at another address.
    pub(super) fn at(mut self, url: &str) -> Self {
        self.address = Deployment::Url(url.to_owned());
        self
    }

    /// The settings, for several clients that are set up in the same way.
    pub(super) fn settings(&mut self) -> &mut Settings {
        &mut self.settings
    }

    pub(super) fn checked(self) -> Result<(Config, Arc<Dialer>, Cluster), ConfigError> {
        let config = self.settings.validate()?;
        let Credentials {
            tls,
            to_servers,
            to_sentinels,
        } = self.identity;
        if let Some(tls) = &tls {
            check_tls(tls)?;
        }
        let dialer = match self.address {
            Deployment::Url(url) => Dialer::from_url(&url, self.pool)?,
            Deployment::Client(client) => Dialer::from_client(&client, self.pool)?,
            Deployment::Sentinel(_) if self.pool.is_some() => {
                return Err(ConfigError::Conflict {
                    first: "pool",
                    second: "sentinel",
                });
            }
            Deployment::Sentinel(Sentinel {
                urls,
                service,
                server,
            }) => {
                let secrets = provider(to_sentinels, tls.clone());
                Dialer::from_sentinels(&urls, &service, &server, secrets)?
            }
            Deployment::Cluster(_) if self.pool.is_some() => {
                return Err(ConfigError::Conflict {
                    first: "pool",
                    second: "cluster",
                });
            }
            Deployment::Cluster(urls) => Dialer::from_urls(&urls)?,
        };
        let dialer = Arc::new(dialer.identified_by(provider(to_servers, tls)));
        let ClusterSettings { addresses, publish } = self.nodes;
        let cluster = Cluster::new(Arc::clone(&dialer), addresses, publish);
        Ok((config, dialer, cluster))
    }
}

/// The longest pause between attempts to connect: a server that is back is to be found soon.
const RECONNECT: Duration = Duration::from_millis(200);

/// Starts the keeper; nothing is connected yet. With it its runtime, for tasks that end with it.
pub(super) fn start(
    config: Config,
    dialer: Arc<Dialer>,
    cluster: Cluster,
    asks_server: bool,
) -> Result<(Engine, Handle), Failure> {
    let starting = Starting::spawn().map_err(Failure::starting)?;
    let lanes = LaneConfig {
        dialer,
        clock: config.clock.clone(),
        backoff: config.backoff.at_most(RECONNECT),
        command_timeout: config.command_timeout,
        connect_timeout: config.connect_timeout,
        timers: Timers::of(&starting.runtime),
        asks_server,
        broken: Arc::new(BrokenLinks::default()),
        node: None,
        acks: config.acks,
    };
    let cluster = Arc::new(cluster);
    let runtime = starting.runtime.clone();
    let keeper_fleet = Fleet::open(lanes.clone(), Arc::clone(&cluster), &runtime);
    let (mailbox, mail) = mpsc::unbounded_channel();
    let backend = Backend::new(lanes, cluster);
    let core = Arc::new(Core::new(config, backend, keeper_fleet, mailbox));
    let keeper = starting.begin(Arc::clone(&core), mail);
    Ok((Engine::new(core, keeper), runtime))
}
