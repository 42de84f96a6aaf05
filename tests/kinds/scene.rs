//! A server, a client of it, and locks of one kind.

use std::time::Duration;

use watchlock::{Backoff, Client, ClientBuilder, Error, Lease, Lock, LockGuard, Owner};
use watchlock_support::eventually;
use watchlock_support::proxy::{Match, Proxy};
use watchlock_support::server::{RedisServer, in_cluster};
use watchlock_test::Redis;

use crate::common::{LONG, SHORT, ms};
use crate::table::{Kind, Write};

/// Longer than any test waits.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Whether the servers of these tests are nodes of clusters: nothing makes a replica of those. `tests/cluster` has
/// masters that become replicas there.
pub(crate) fn takes_no_master() -> bool {
    if in_cluster() {
        println!("a node of a cluster takes no REPLICAOF");
    }
    in_cluster()
}

/// Whether a server that starts again takes no command for longer than [`SHORT`].
pub(crate) fn takes_long_to_start() -> bool {
    if in_cluster() {
        println!("a node of a cluster takes no command for two seconds after its start");
    }
    in_cluster()
}

/// A client that connects through a proxy, also when the server behind it is a cluster of one.
pub(crate) fn through(proxy: &Proxy) -> ClientBuilder {
    let port = proxy.port();
    Client::builder(&proxy.url()).node_addresses(move |host, _| (host.to_owned(), port))
}

pub(crate) struct Scene {
    pub(crate) kind: &'static Kind,
    pub(crate) server: RedisServer,
    pub(crate) client: Client,
    /// The Redis whose clock stands still, if the server is one in memory.
    timed: Option<Redis>,
}

impl Scene {
    pub(crate) async fn new(kind: &'static Kind) -> Self {
        Self::with(kind, |builder| builder).await
    }

    /// The watchdog's lease is [`SHORT`].
    pub(crate) async fn short(kind: &'static Kind) -> Self {
        Self::with(kind, |builder| builder.watchdog_lease(SHORT)).await
    }

    pub(crate) async fn with(
        kind: &'static Kind,
        set: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        Self::on(kind, RedisServer::start(), set).await
    }

    /// The watchdog's lease is [`SHORT`], and time passes by [`pass`](Self::pass) and [`keep`](Self::keep) alone: the server
    /// is a Redis in memory. In a cluster, and with `REAL_TIME` set, it is a real one, on which that takes its time.
    pub(crate) async fn timed(kind: &'static Kind) -> Self {
        Self::timed_with(kind, SHORT, async |server: &RedisServer| server.url()).await
    }

    /// The same with another lease, and the address of the server that `at` returns.
    pub(crate) async fn timed_with(
        kind: &'static Kind,
        lease: Duration,
        at: impl AsyncFnOnce(&RedisServer) -> String,
    ) -> Self {
        if in_cluster() || std::env::var_os("REAL_TIME").is_some() {
            let server = RedisServer::start();
            let builder = Client::builder(&at(&server).await).watchdog_lease(lease);
            let client = builder.connect().await;
            return Self::of_client(kind, server, client.expect("a client"));
        }
        let redis = Redis::start();
        redis.stop_clock();
        let server = RedisServer::of_others(redis.port());
        let builder = Client::builder(&at(&server).await).clock(redis.clock());
        let client = builder.watchdog_lease(lease).connect().await;
        let scene = Self::of_client(kind, server, client.expect("a client"));
        Self {
            timed: Some(redis),
            ..scene
        }
    }

    /// Lets a span pass in which the client need not renew anything.
    pub(crate) async fn pass(&self, span: Duration) {
        match &self.timed {
            Some(redis) => redis.advance(span),
            None => tokio::time::sleep(span).await,
        }
    }

    /// Lets a span pass in which the watchdog keeps a hold under a lease of this length.
    pub(crate) async fn keep(&self, guard: &LockGuard, lease: Duration, span: Duration) {
        let Some(redis) = &self.timed else {
            let lost = tokio::time::timeout(span, guard.lost()).await;
            return assert!(lost.is_err(), "kept alive");
        };
        let third = lease / 3;
        for _ in 0..span.as_millis().div_ceil(third.as_millis()) {
            redis.advance(third);
            eventually("it is renewed", LONG, async || {
                guard.valid_for() > third * 2
            })
            .await;
        }
    }

    pub(crate) async fn on(
        kind: &'static Kind,
        server: RedisServer,
        set: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        let client = set(Client::builder(&server.url())).connect().await;
        Self::of_client(kind, server, client.expect("a client"))
    }

    pub(crate) fn of_client(kind: &'static Kind, server: RedisServer, client: Client) -> Self {
        Self {
            kind,
            server,
            client,
            timed: None,
        }
    }

    /// A server that knows the kind's scripts, a proxy in front of it, and a client that connects through the proxy.
    pub(crate) async fn proxied(
        kind: &'static Kind,
        set: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> (Self, Proxy) {
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let client = set(through(&proxy)).connect().await;
        let scene = Self::of_client(kind, server, client.expect("a client"));
        scene.warm().await;
        (scene, proxy)
    }

    /// Calls each script once, and opens the connections.
    pub(crate) async fn warm(&self) {
        let lock = self.lock("warm");
        let guard = lock.lock().await.unwrap();
        let inner = guard.reenter(Lease::Watchdog).await.unwrap();
        guard.verify().await.unwrap();
        inner.unlock().await.unwrap();
        guard.unlock().await.unwrap();
        drop(lock.lock().await.unwrap());
        self.clean().await;
        lock.force_unlock().await.unwrap();
        self.put_stranger("warm", MINUTE).await;
        let busy = self.try_once(&self.client, "warm").await.unwrap();
        assert!(busy.is_none());
        self.server.cmd(&["DEL", "warm"]).await;
    }

    pub(crate) fn lock(&self, name: &str) -> Box<dyn Lock> {
        (self.kind.made.handle)(&self.client, name)
    }

    pub(crate) fn of(&self, client: &Client, name: &str) -> Box<dyn Lock> {
        (self.kind.made.handle)(client, name)
    }

    pub(crate) fn owned(&self, owner: &Owner, name: &str) -> Box<dyn Lock> {
        (self.kind.made.owned)(owner, name)
    }

    pub(crate) fn rival(&self, client: &Client, name: &str) -> Box<dyn Lock> {
        (self.kind.rival)(client, name)
    }

    /// Another client of the same server.
    pub(crate) async fn other(&self) -> Client {
        let mut builder = Client::builder(&self.server.url());
        if let Some(redis) = &self.timed {
            builder = builder.clock(redis.clock());
        }
        builder.connect().await.expect("a client")
    }

    /// A client whose waiters get messages, if the kind listens: it polls once a minute.
    pub(crate) async fn listener(&self) -> Client {
        let builder = Client::builder(&self.server.url()).backoff(self.rare());
        builder.connect().await.expect("a client")
    }

    /// Polls once a minute, if messages wake the kind's waiters.
    pub(crate) fn rare(&self) -> Backoff {
        if self.kind.differs(self.kind.deaf) {
            return Backoff::new();
        }
        Backoff::new().base(ms(60_000)).cap(ms(60_000))
    }

    /// The keys of locks that are held, and any others that should not stay.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut keys = self.server.keys().await;
        keys.retain(|key| !self.remains(key));
        keys
    }

    /// Asserts that the client relies on a hold for longer than `least`; or, for a kind that others may cut short, for
    /// no longer than the watchdog's lease.
    pub(crate) fn assert_vouched(&self, guard: &LockGuard, least: Duration) {
        let valid_for = guard.valid_for();
        if self.kind.differs(self.kind.assured) {
            let most = Duration::from_secs(30);
            assert!(!valid_for.is_zero() && valid_for <= most, "{valid_for:?}");
        } else {
            assert!(valid_for > least, "{valid_for:?}");
        }
    }

    fn remains(&self, key: &str) -> bool {
        let remains = self.kind.remains.iter();
        remains.into_iter().any(|prefix| key.starts_with(prefix))
    }

    /// Waits until nothing of any lock is left.
    pub(crate) async fn clean(&self) {
        eventually("no key and no channel is left", LONG, async || {
            self.keys().await.is_empty() && self.server.channels().await.is_empty()
        })
        .await;
    }

    /// I7: no key, no channel, and no more connections than there were.
    pub(crate) async fn nothing_is_left(&self, connections: usize) {
        self.clean().await;
        eventually("the connections are as before", LONG, async || {
            self.server.connections().await <= connections
        })
        .await;
    }

    /// Waits until no lock is held.
    pub(crate) async fn free(&self) {
        eventually("no lock is held", LONG, async || {
            self.keys().await.is_empty()
        })
        .await;
    }

    /// I4: every key of a hold has a time to live.
    pub(crate) async fn assert_leased(&self, when: &str) {
        for key in self.keys().await {
            assert_ne!(self.server.pttl(&key).await, -1, "{when}: {key}");
        }
    }

    /// One try under the watchdog.
    pub(crate) async fn try_once(
        &self,
        client: &Client,
        name: &str,
    ) -> Result<Option<LockGuard>, Error> {
        let lock = self.of(client, name);
        lock.try_lock(Duration::ZERO, Lease::Watchdog).await
    }

    /// One try of a rival: whether nobody holds the lock. It is free again when this returns.
    pub(crate) async fn is_free(&self, client: &Client, name: &str) -> bool {
        let lock = self.rival(client, name);
        let tried = lock.try_lock(Duration::ZERO, Lease::Watchdog).await;
        match tried.expect("a clean answer") {
            Some(guard) => {
                guard.unlock().await.expect("our own lock");
                true
            }
            None => false,
        }
    }

    /// Writes somebody else's hold for so long.
    pub(crate) async fn put_stranger(&self, name: &str, ttl: Duration) {
        let ttl = ttl.as_millis().to_string();
        for write in self.kind.stranger {
            self.write(write, name, &ttl).await;
        }
    }

    /// Writes something that is no lock of this kind.
    pub(crate) async fn put(&self, write: Write, name: &str) {
        self.write(write, name, "").await;
    }

    async fn write(&self, write: Write, name: &str, ttl: &str) {
        let filled = write.iter().map(|part| match *part {
            "KEY" => name,
            "TTL" => ttl,
            part => part,
        });
        self.server.cmd(&filled.collect::<Vec<_>>()).await;
    }

    /// What Redis keeps under a key, byte for byte.
    pub(crate) async fn dump(&self, key: &str) -> Option<Vec<u8>> {
        self.server.query(&["DUMP", key]).await
    }

    /// Waits until so many connections listen; for a kind that does not listen, until the wait has lasted for some
    /// tries.
    pub(crate) async fn waited_for(&self, listeners: u64) {
        if self.kind.differs(self.kind.deaf) {
            let before = self.calls().await;
            eventually("tried again and again", LONG, async || {
                self.calls().await >= before + 2 * listeners
            })
            .await;
            return;
        }
        eventually("somebody listens", LONG, async || {
            let mut listening = 0;
            for channel in self.server.channels().await {
                listening += self.server.subscribers(&channel).await;
            }
            listening >= listeners
        })
        .await;
    }

    /// Calls of scripts.
    pub(crate) async fn calls(&self) -> u64 {
        let calls = self.server.calls().await;
        let counted = ["evalsha", "eval"];
        counted.iter().filter_map(|name| calls.get(*name)).sum()
    }

    /// Calls of the commands that create a hold.
    pub(crate) async fn writes(&self) -> u64 {
        self.server.calls_of("hset").await + self.server.calls_of("set").await
    }

    /// Asserts the hold count in Redis, if it has one; 0 when the lock is free.
    pub(crate) async fn assert_count(&self, name: &str, count: u32) {
        if count == 0 {
            return assert!(!self.server.exists(name).await, "{name} is free");
        }
        if self.kind.differs(self.kind.local_levels) {
            return assert!(self.server.exists(name).await, "{name} is held");
        }
        let mut hash = self.server.hash(name).await;
        hash.remove("mode");
        let counts: Vec<_> = hash.into_values().collect();
        assert_eq!(counts, [count.to_string()], "{name}");
    }

    /// Waits until Redis has this hold count.
    pub(crate) async fn counted(&self, name: &str, count: u32) {
        if self.kind.differs(self.kind.local_levels) {
            return;
        }
        let count = count.to_string();
        eventually("Redis has the count", LONG, async || {
            let mut hash = self.server.hash(name).await;
            hash.remove("mode");
            hash.into_values().all(|value| value == count)
        })
        .await;
    }
}

/// Commands about this lock, without those of its subscription.
pub(crate) fn about(name: &str) -> Match {
    let subscribes = |name: &str| name.ends_with("SUBSCRIBE");
    let not_that = Match::when(move |command| !subscribes(&command.name()));
    Match::arg(name).and(not_that)
}
