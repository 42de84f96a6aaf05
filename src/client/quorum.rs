//! A quorum: independent servers whose majority grants locks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::runtime::Handle;
use uuid::Uuid;

use super::builder::start;
use super::greet::{greet, greet_later};
use super::{Client, ClientBuilder, ShutdownReport};
use crate::backend::Failure;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::engine::keeper::Engine;
use crate::error::{Cause, ConfigError, Error, QuorumError};
use crate::host::own;
use crate::lock::kinds::{fenced, plain};
use crate::lock::quorum::{self, QuorumNode, QuorumNodes, QuorumSettings};
use crate::lock::{FencedQuorumLock, QuorumLock, QuorumOwner};

/// The largest number of servers.
const MOST: usize = 9;

/// Independent servers whose majority grants locks: Redlock. Cheap to clone and made to be shared.
///
/// A lock is held when more than half of the servers granted it. So a minority may fail at any time, for any time, and come
/// back: no hold is lost, and it delays an acquire by one [node time-out](QuorumBuilder::node_timeout) at most. The
/// servers are independent masters: no replicas, no cluster.
///
/// It costs a connection, a background thread and a lease for each server. [When is it worth that?][docs] Where what the lock
/// protects can refuse a late writer, one server with a [fencing token](crate::FencedLock) is simpler and safer.
///
/// [docs]: https://github.com/watchlock/watchlock/blob/v0.1.0/docs/quorum.md
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// use watchlock::Quorum;
///
/// let servers = ["redis://one/", "redis://two/", "redis://three/"];
/// let quorum = Quorum::builder(servers).connect().await?;
/// let lock = quorum.get_lock("report:2026");
/// lock.run(async |guard| {
///     println!("nobody else is at {}", guard.name());
/// }).await
/// # }
/// ```
///
/// **Restarts.** A server that restarts without its data could grant a lock twice. So a server does not vote until it has
/// been up for the longest lease that any program takes: [`QuorumBuilder::restart_delay`].
#[doc(alias = "redlock")]
#[derive(Clone)]
pub struct Quorum {
    nodes: Arc<QuorumNodes>,
    clients: Arc<[Client]>,
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Quorum")
            .field("servers", &self.clients.len())
            .finish_non_exhaustive()
    }
}

impl Quorum {
    /// Configures a quorum of 3, 5, 7 or 9 servers (1 for tests) before it connects.
    pub fn builder<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> QuorumBuilder {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned());
        QuorumBuilder {
            urls: urls.collect(),
            client: Client::builder(""),
            settings: QuorumSettings::default(),
        }
    }

    /// A random id of this quorum in this process. On each server it uses another client id.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.nodes.id
    }

    /// The lock `name`. No I/O; a bad name is an error of the first use.
    #[must_use]
    pub fn get_lock(&self, name: impl AsRef<str>) -> QuorumLock {
        QuorumLock::of_quorum(&self.nodes, name.as_ref(), None, plain::kind)
    }

    /// The fenced lock `name`: the lock of that name, with a [fencing token](crate::FencingToken) to each hold. No I/O;
    /// a bad name is an error of the first use.
    #[must_use]
    pub fn get_fenced_lock(&self, name: impl AsRef<str>) -> FencedQuorumLock {
        FencedQuorumLock::of_quorum(&self.nodes, name.as_ref(), None, fenced::kind)
    }

    /// A new owner. Pass it to all code that may enter its locks again.
    #[must_use]
    pub fn new_owner(&self) -> QuorumOwner {
        QuorumOwner::new(&self.nodes)
    }

    /// Runs `future` as one owner: every handle of this quorum that is used inside acts for this owner. As
    /// [`Client::scope`](crate::Client::scope).
    ///
    /// # Cancel safety
    ///
    /// As `future`.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        let owner = self.new_owner();
        owner.scope(future).await
    }

    /// Ends the clients of all servers, each as by [`Client::shutdown`](crate::Client::shutdown). Reports a hold that was left
    /// on a majority, or whose release a majority did not answer.
    ///
    /// # Cancel safety
    ///
    /// As [`Client::shutdown`](crate::Client::shutdown).
    pub async fn shutdown(&self, timeout: Duration) -> ShutdownReport {
        let ends = self.clients.iter().map(|client| client.shutdown(timeout));
        // Polled after the first step of each shutdown: from then on the clients refuse new calls.
        let closing = async { self.nodes.end_waits() };
        let (reports, ()) = join(join_all(ends), closing).await;
        let needed = self.clients.len() / 2 + 1;
        ShutdownReport {
            held: named_by(needed, reports.iter().flat_map(|report| &report.held)),
            unreleased: named_by(needed, reports.iter().flat_map(|report| &report.unreleased)),
        }
    }

    /// As [`Client::shutting_down`](crate::Client::shutting_down).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn shutting_down(&self) {
        self.clients[0].shutting_down().await;
    }
}

/// The names that at least `needed` servers reported, each once.
fn named_by<'a>(needed: usize, names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let same = names.chunk_by(|one, other| one == other);
    same.filter(|names| names.len() >= needed)
        .map(|names| names[0].clone())
        .collect()
}

/// Configures a quorum. Setters cannot fail; [`connect`](Self::connect) checks every value.
///
/// ```no_run
/// # async fn example() -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// use watchlock::Quorum;
///
/// let quorum = Quorum::builder(["redis://one/", "redis://two/", "redis://three/"])
///     .key_prefix("billing:")
///     .watchdog_lease(Duration::from_secs(10))
///     .max_lease(Duration::from_secs(60))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct QuorumBuilder {
    urls: Vec<String>,
    /// The settings of all clients; its address is not used.
    client: ClientBuilder,
    settings: QuorumSettings,
}

impl std::fmt::Debug for QuorumBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The addresses may hold passwords.
        f.debug_struct("QuorumBuilder")
            .field("servers", &self.urls.len())
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl QuorumBuilder {
    /// How long to wait for a server's answer to an acquire: 1 ms to 10 s, and at most a quarter of the lease. Default four
    /// times the measured round trip to that server, at least 50 ms. Connecting does not count: it has the
    /// [`connect_timeout`](Self::connect_timeout).
    ///
    /// A server that does not answer in time is skipped until it answers a question in the background. Entering a hold
    /// again with the other kind of lease waits up to this long for servers that the majority does not need.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.settings.node_timeout = Some(timeout);
        self
    }

    /// The longest lease that **any** program takes on locks of these servers, Java's `leaseTime` and
    /// `lockWatchdogTimeout` included: at least the watchdog's lease, up to 24 h. Default the watchdog's lease, or no limit
    /// where a [`restart_delay`](Self::restart_delay) is set. A longer lease is [`Error::InvalidLease`].
    pub fn max_lease(mut self, lease: Duration) -> Self {
        self.settings.max_lease = Some(lease);
        self
    }

    /// A server does not vote until its uptime, which it reports in whole seconds, is this long. Default
    /// [`max_lease`](Self::max_lease) plus 1 %, rounded up to seconds, plus 2 s: by then all leases that it may have
    /// forgotten are over. It is asked before that too, and counts if it is busy. A delay that is set here must cover the
    /// longest lease, because only an explicit [`max_lease`](Self::max_lease) limits leases then.
    ///
    /// `Duration::ZERO` lets all servers vote at once: for tests and demos, and where no server loses data
    /// (`appendfsync always`). With less than the default, a server that restarts without its data may grant a lock twice.
    pub fn restart_delay(mut self, delay: Duration) -> Self {
        self.settings.restart_delay = Some(delay);
        self
    }

    /// As [`ClientBuilder::watchdog_lease`].
    pub fn watchdog_lease(mut self, lease: Duration) -> Self {
        self.client = self.client.watchdog_lease(lease);
        self
    }

    /// As [`ClientBuilder::key_prefix`].
    pub fn key_prefix(mut self, prefix: impl AsRef<str>) -> Self {
        self.client = self.client.key_prefix(prefix);
        self
    }

    /// As [`ClientBuilder::label`].
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.client = self.client.label(label);
        self
    }

    /// As [`ClientBuilder::backoff`].
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.client = self.client.backoff(backoff);
        self
    }

    /// As [`ClientBuilder::command_timeout`], for renewals and releases. Acquires have the
    /// [`node_timeout`](Self::node_timeout).
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.client = self.client.command_timeout(timeout);
        self
    }

    /// As [`ClientBuilder::connect_timeout`].
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.client = self.client.connect_timeout(timeout);
        self
    }

    /// How long `lock` keeps trying while there is no quorum: up to 24 h. Default 5 s.
    pub fn unavailable_after(mut self, span: Duration) -> Self {
        self.client = self.client.unavailable_after(span);
        self
    }

    /// As [`ClientBuilder::fencing_token_ttl`].
    pub fn fencing_token_ttl(mut self, ttl: Duration) -> Self {
        self.client = self.client.fencing_token_ttl(ttl);
        self
    }

    /// Not for a quorum: [`connect`](Self::connect) fails with [`ConfigError::Conflict`], because its servers have no
    /// replicas. It exists so that settings that are copied from [`ClientBuilder::acknowledged_by`] are not ignored
    /// silently.
    pub fn acknowledged_by(mut self, replicas: u32, within: Duration) -> Self {
        self.client = self.client.acknowledged_by(replicas, within);
        self
    }

    /// As [`ClientBuilder::clock`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.client = self.client.clock(clock);
        self
    }

    /// Checks the settings and connects to all servers. A minority may be unreachable; the client keeps connecting to it in
    /// the background.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a bad address or value, with [`NoQuorum`](ConfigError::NoQuorum) when the servers are no
    /// quorum: an even number, two that are the same, a replica, a sentinel, one in cluster mode or too old; with
    /// [`Conflict`](ConfigError::Conflict) when [replicas](Self::acknowledged_by) are to acknowledge.
    /// [`Error::NoQuorum`] when too few can be reached; [`Error::Denied`] when one denies (it must allow `INFO`).
    /// [`Error::Unavailable`] when the system starts no thread.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a quorum that was not returned ends.
    pub async fn connect(self) -> Result<Quorum, Error> {
        let (builders, settings) = self.checked()?;
        if Handle::try_current().is_err() {
            return Err(ConfigError::NoRuntime.into());
        }
        let mut engines = Vec::new();
        for builder in builders {
            let (config, dialer, cluster) = builder.checked()?;
            engines.push(start(config, dialer, cluster, true)?);
        }
        let greeted = join_all(engines.iter().map(|(engine, _)| first_words(engine))).await;
        let reached = agreed(&greeted)?;
        let mut nodes = Vec::new();
        let mut clients = Vec::new();
        for ((engine, keeper), run_id) in engines.into_iter().zip(reached) {
            if run_id.is_none() {
                keeper.spawn(own(greet_later(Arc::clone(&engine.core))));
            }
            let client = Client::of(engine);
            nodes.push(QuorumNode::new(Arc::clone(&client.engine), run_id));
            clients.push(client);
        }
        Ok(Quorum {
            nodes: quorum::start(nodes, &settings)?,
            clients: clients.into(),
        })
    }

    fn checked(mut self) -> Result<(Vec<ClientBuilder>, QuorumSettings), Error> {
        let given = self.urls.len();
        if given.is_multiple_of(2) || given > MOST {
            return Err(QuorumError::Number { given }.into());
        }
        for (second, url) in self.urls.iter().enumerate() {
            if let Some(first) = self.urls[..second].iter().position(|other| other == url) {
                return Err(same(first, second));
            }
        }
        let ms = Duration::from_millis;
        let QuorumSettings {
            node_timeout,
            restart_delay,
            max_lease,
        } = self.settings;
        if let Some(timeout) = node_timeout {
            let is_allowed = (ms(1)..=ms(10_000)).contains(&timeout);
            ConfigError::check(is_allowed, "node_timeout", timeout, "1 ms to 10 s")?;
        }
        let settings = &mut self.client.settings;
        if settings.acks.is_some() {
            let (first, second) = ("acknowledged_by", "a quorum");
            return Err(ConfigError::Conflict { first, second }.into());
        }
        let longest = max_lease.unwrap_or(settings.watchdog_lease);
        let day = ms(24 * 3_600_000);
        let is_allowed = (settings.watchdog_lease..=day).contains(&longest);
        let allowed = "the watchdog's lease to 24 h";
        ConfigError::check(is_allowed, "max_lease", longest, allowed)?;
        // Each server must grant each hold itself.
        settings.passes_on = false;
        // A default limits leases only for the sake of the default restart delay.
        if max_lease.is_some() || restart_delay.is_none() {
            settings.max_lease = Some(longest);
        }
        let builders = self.urls.iter().map(|url| self.client.clone().at(url));
        Ok((builders.collect(), self.settings))
    }
}

/// Greets a server and returns its run id.
async fn first_words(engine: &Engine) -> Result<Arc<str>, Error> {
    let core = &engine.core;
    let fleet = core.backend.callers_fleet()?;
    greet(core, &fleet).await?;
    let connected = fleet.home().connected();
    let server = connected.and_then(|connected| connected.server);
    let silent = || Error::from(Failure::no_connection());
    server.map(|server| server.run_id).ok_or_else(silent)
}

/// Checks that the servers that answered can be a quorum. Returns their run ids.
fn agreed(greeted: &[Result<Arc<str>, Error>]) -> Result<Vec<Option<Arc<str>>>, Error> {
    let mut last: Option<Cause> = None;
    for (place, answer) in greeted.iter().enumerate() {
        match answer {
            Ok(run_id) => {
                let before = &greeted[..place];
                let twin = |other: &Result<Arc<str>, Error>| other.as_ref().ok() == Some(run_id);
                if let Some(first) = before.iter().position(twin) {
                    return Err(same(first, place));
                }
            }
            Err(Error::Config(ConfigError::Unsupported { reason })) => {
                let place = place + 1;
                return Err(QuorumError::Unsupported { place, reason }.into());
            }
            Err(error) if error.is_transient() => last = Some(Arc::new(error.clone())),
            Err(error) => return Err(error.clone()),
        }
    }
    let reached = greeted.iter().filter(|answer| answer.is_ok()).count();
    let needed = greeted.len() / 2 + 1;
    let run_ids = greeted.iter().map(|answer| answer.as_ref().ok().cloned());
    match last {
        Some(cause) if reached < needed => Err(Error::no_quorum(reached, needed, cause)),
        _ => Ok(run_ids.collect()),
    }
}

fn same(first: usize, second: usize) -> Error {
    let (first, second) = (first + 1, second + 1);
    QuorumError::SameServer { first, second }.into()
}
