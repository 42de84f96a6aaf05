//! Makes connections: to an address, by a pool's manager, or to the master that sentinels name.
//!
//! Behind sentinels the address is a template: it says how to connect, and the [`sentinels`](super::sentinel) say where,
//! for each new connection. All connections of one [term](MasterTerm) lead to one endpoint. When the sentinels name
//! another master, the term ends and its connections are given up. A command that is in flight then is unanswered: a reply
//! of the old master does not count any more. A connection whose attempt began in an earlier term is not used.
//!
//! With a pool, connections are made by the manager's `create`, never by the pool's `get`: the driver of an idle
//! connection may live on a runtime that the user blocks, and a connection that is shared with the application would put
//! our commands into its `MULTI`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool::managed::Manager as _;
use deadpool_redis::Pool;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use redis::PushInfo;
use scopeguard::{ScopeGuard, guard};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};

use super::address::{Address, Endpoint};
use super::connection::Connection;
use super::hello::{Hello, check_master};
use super::redirect::slots_of;
use super::sentinel::Sentinels;
use crate::backend::failure::{Class, Failure, application};
use crate::backend::timers::Timers;
use crate::error::ConfigError;
use crate::log::log;
use crate::secrets::Provider;

/// A redis-rs time-out that never fires: deadlines are ours, and a timer of redis-rs would run on the wrong runtime.
const NO_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) struct Dialer {
    /// How to connect, and where unless sentinels say so: one address, or several of one cluster.
    addresses: Vec<Address>,
    /// The host as the nodes of its cluster name it.
    named: Option<Box<str>>,
    followed: Option<Followed>,
    /// Whether the application said that this is a cluster.
    pub(crate) for_cluster: bool,
    /// The index of the address that answered last.
    answered: AtomicUsize,
    /// Asked for credentials for each connection.
    secrets: Option<Provider>,
    pool: Option<Pool>,
    /// It was logged that the provider of credentials, or the manager of the pool, panicked.
    panicked: Arc<AtomicBool>,
}

/// A master that may change.
struct Followed {
    sentinels: Sentinels,
    /// Changes when another server becomes the master.
    terms: watch::Sender<()>,
    led: Mutex<Led>,
    /// Notified when the sentinels send a new connection to another endpoint than the earlier ones.
    found: Notify,
}

/// Where the connections of the present term lead.
#[derive(Default)]
struct Led {
    endpoint: Option<Endpoint>,
    /// The last new master that was logged.
    logged: Option<Endpoint>,
    /// How many questions to the sentinels are in flight.
    asking: usize,
}

impl Led {
    fn leads_elsewhere(&self, endpoint: &Endpoint) -> bool {
        self.endpoint.as_ref().is_some_and(|led| led != endpoint)
    }
}

impl Followed {
    /// Counts a question to the sentinels as in flight while the result lives.
    fn asking(&self) -> ScopeGuard<(), impl FnOnce(())> {
        self.led.lock().asking += 1;
        guard((), |()| self.led.lock().asking -= 1)
    }

    /// The sentinels send a connection to `endpoint`. If earlier connections lead elsewhere, one of the two answers is
    /// outdated, and we cannot know which, so all connections are made again, this one too.
    fn led_to(&self, endpoint: Endpoint) {
        let led = self.led.lock();
        if led.leads_elsewhere(&endpoint) {
            self.switch(led, &endpoint);
            self.found.notify_one();
        } else {
            let mut led = led;
            led.endpoint = Some(endpoint);
        }
    }

    fn switch(&self, mut led: MutexGuard<'_, Led>, endpoint: &Endpoint) {
        led.endpoint = None;
        self.terms.send_replace(());
        let is_new = led.logged.replace(endpoint.clone()).as_ref() != Some(endpoint);
        // Before the log: a subscriber that blocks must not block the keeper, too.
        drop(led);
        if is_new {
            log(|| tracing::info!("another server is the master now"));
        }
    }
}

/// The term of one master, which may be over.
#[derive(Clone)]
pub(crate) struct MasterTerm(watch::Receiver<()>);

impl MasterTerm {
    /// The present term; each change of `terms` ends one.
    fn current(terms: &watch::Sender<()>) -> Self {
        Self(terms.subscribe())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.has_changed().unwrap_or(false)
    }

    /// The output of `future`; none if the term ends first.
    pub(crate) async fn within<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            // The sender lives as long as the client, so this never fails.
            Ok(()) = self.0.changed() => None,
            output = future => Some(output),
        }
    }
}

impl Dialer {
    /// With a pool, commands go over connections of its manager.
    pub(crate) fn from_url(url: &str, pool: Option<Pool>) -> Result<Self, ConfigError> {
        Ok(Self::new(vec![Address::from_url(url)?], pool))
    }

    /// From a client of redis-rs, for settings that an address cannot express.
    pub(crate) fn from_client(
        client: &redis::Client,
        pool: Option<Pool>,
    ) -> Result<Self, ConfigError> {
        Ok(Self::new(vec![Address::from_client(client)?], pool))
    }

    /// To the master that sentinels name. `template` gives all but host and port.
    pub(crate) fn from_sentinels(
        urls: &[String],
        service: &str,
        template: &str,
        secrets: Option<Provider>,
    ) -> Result<Self, ConfigError> {
        let followed = Followed {
            sentinels: Sentinels::from_urls(urls, service, secrets)?,
            terms: watch::Sender::new(()),
            led: Mutex::default(),
            found: Notify::new(),
        };
        let mut dialer = Self::from_url(template, None)?;
        dialer.followed = Some(followed);
        Ok(dialer)
    }

    fn new(addresses: Vec<Address>, pool: Option<Pool>) -> Self {
        Self {
            addresses,
            named: None,
            followed: None,
            for_cluster: false,
            answered: AtomicUsize::new(0),
            secrets: None,
            pool,
            panicked: Arc::default(),
        }
    }

    /// From addresses of one cluster; the first that answers is used. The first in the list says how to connect to nodes.
    pub(crate) fn from_urls(urls: &[String]) -> Result<Self, ConfigError> {
        let addresses = urls.iter().map(|url| Address::from_url(url));
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(ConfigError::InvalidUrl);
        }
        let mut dialer = Self::new(addresses, None);
        dialer.for_cluster = true;
        Ok(dialer)
    }

    /// Connects in the same way to another server. The nodes of its cluster name its host `named`.
    pub(crate) fn at(&self, endpoint: &Endpoint, named: &str) -> Self {
        let there = Self {
            named: Some(named.into()),
            panicked: Arc::clone(&self.panicked),
            ..Self::new(
                vec![self.addresses[0].at(&endpoint.host, endpoint.port)],
                None,
            )
        };
        there.identified_by(self.secrets.clone())
    }

    pub(crate) fn identified_by(self, secrets: Option<Provider>) -> Self {
        Self { secrets, ..self }
    }

    /// The host of a server whose answer names none.
    pub(crate) fn host(&self) -> &str {
        let named = self.named.as_deref();
        named.unwrap_or_else(|| self.now().host())
    }

    fn now(&self) -> &Address {
        // Relaxed: the number stands for itself.
        &self.addresses[self.answered.load(Ordering::Relaxed)]
    }

    pub(crate) fn has_pool(&self) -> bool {
        self.pool.is_some()
    }

    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        self.followed.as_ref().map(|followed| &followed.sentinels)
    }

    /// A sentinel announces a master at `endpoint`. Returns whether connections lead elsewhere, or may: they are given up
    /// then. The sentinels learn of a new master one after the other, so a question in flight may be answered with the old
    /// one.
    pub(crate) fn switch_to(&self, endpoint: &Endpoint) -> bool {
        let Some(followed) = &self.followed else {
            return false;
        };
        let led = followed.led.lock();
        if led.asking == 0 && !led.leads_elsewhere(endpoint) {
            return false;
        }
        followed.switch(led, endpoint);
        true
    }

    /// Asks the sentinels where the master is, each within `limit`. Returns whether connections lead elsewhere; they are
    /// given up then.
    pub(crate) async fn look_for_switch(&self, timers: &Timers, limit: Duration) -> bool {
        let Some(followed) = &self.followed else {
            return false;
        };
        let Ok(endpoint) = followed.sentinels.master(timers, limit).await else {
            return false;
        };
        let led = followed.led.lock();
        let elsewhere = led.leads_elsewhere(&endpoint);
        if elsewhere {
            followed.switch(led, &endpoint);
        }
        elsewhere
    }

    /// Waits until the sentinels send a new connection to another endpoint than the earlier ones.
    pub(crate) async fn found_elsewhere(&self) {
        match &self.followed {
            Some(followed) => followed.found.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Where to connect now, by sentinels that answer within `limit`.
    async fn whereto(&self, timers: &Timers, limit: Duration) -> Result<Address, Failure> {
        let Some(followed) = &self.followed else {
            return self.identified(self.now());
        };
        let _asking = followed.asking();
        let endpoint = followed.sentinels.master(timers, limit).await?;
        let address = self.addresses[0].at(&endpoint.host, endpoint.port);
        followed.led_to(endpoint);
        self.identified(&address)
    }

    /// The same server with the credentials of now.
    fn identified(&self, address: &Address) -> Result<Address, Failure> {
        address.identified(self.secrets.as_ref(), &self.panicked)
    }

    /// A new connection for commands, driven by the current runtime, and the term of the master it leads to.
    pub(crate) async fn connect(
        &self,
        timers: &Timers,
        timeout: Duration,
    ) -> Result<(Connection, Option<MasterTerm>), Failure> {
        let connecting = async {
            match &self.pool {
                None => {
                    self.in_term(|| self.to_master(timers, timeout).boxed())
                        .await
                }
                Some(pool) => {
                    let made = application::run(pool.manager().create()).await;
                    let made = made.ok_or_else(|| application::panicked(&self.panicked))?;
                    let mut connection = made.map_err(Failure::connecting)?;
                    connection.set_response_timeout(NO_TIMEOUT);
                    Ok((Connection::of(connection), None))
                }
            }
        };
        self.within(timers, timeout, connecting).await
    }

    /// Connects to all addresses of a cluster and takes the first that knows the slots. If none does, it takes the first
    /// that answers, so that the caller finds out why it cannot be used.
    async fn to_any(&self) -> Result<Connection, Failure> {
        let all = self.addresses.iter().enumerate();
        let asked = all.map(async |(index, address)| {
            let address = self.identified(address)?;
            let mut connection = address.multiplexed().await?;
            // A frozen server accepts connections, but does not answer. A node that was reset answers, but knows no slots.
            let hello = Hello::of(&mut connection).await;
            let in_cluster = hello.map_err(Failure::greeting)?.is_in_cluster();
            let knows = in_cluster && slots_of(&mut connection, address.host()).await.is_ok();
            Ok((knows, index, connection))
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut refused, mut unfit) = (Failure::no_connection(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok((true, index, connection)) => return Ok(self.takes(index, connection)),
                Ok((false, index, connection)) => {
                    unfit.get_or_insert((index, connection));
                }
                Err(failure) if refused.class == Class::Unreached => refused = failure,
                Err(_) => {}
            }
        }
        let (index, connection) = unfit.ok_or(refused)?;
        Ok(self.takes(index, connection))
    }

    fn takes(&self, index: usize, connection: Connection) -> Connection {
        // Relaxed: the number stands for itself.
        self.answered.store(index, Ordering::Relaxed);
        connection
    }

    /// Calls `make` again until it succeeds or fails within one term.
    async fn in_term<'a, T>(
        &'a self,
        make: impl Fn() -> BoxFuture<'a, Result<T, Failure>>,
    ) -> Result<(T, Option<MasterTerm>), Failure> {
        let Some(followed) = &self.followed else {
            return Ok((make().await?, None));
        };
        loop {
            let mut term = MasterTerm::current(&followed.terms);
            // One round for each change of the master.
            if let Some(made) = term.within(make()).await {
                return Ok((made?, Some(term)));
            }
        }
    }

    async fn to_master(&self, timers: &Timers, timeout: Duration) -> Result<Connection, Failure> {
        if self.addresses.len() > 1 {
            return self.to_any().await;
        }
        let address = self.whereto(timers, timeout).await?;
        let mut connection = address.multiplexed().await?;
        if self.followed.is_some() {
            check_master(&mut connection).await?;
        }
        Ok(connection)
    }

    /// A connection by the address, whether or not there is a pool.
    pub(crate) async fn connect_by_address(
        &self,
        timers: &Timers,
        timeout: Duration,
    ) -> Result<Connection, Failure> {
        let connecting = async { self.whereto(timers, timeout).await?.multiplexed().await };
        self.within(timers, timeout, connecting).await
    }

    /// A new connection for subscriptions. Messages go to `pushes`.
    pub(crate) async fn subscribe(
        &self,
        timers: &Timers,
        timeout: Duration,
        pushes: UnboundedSender<PushInfo>,
    ) -> Result<Connection, Failure> {
        let connecting = self.in_term(|| {
            let pushes = pushes.clone();
            let connecting = async {
                let address = self.whereto(timers, timeout).await?;
                address.pushing(pushes).await
            };
            connecting.boxed()
        });
        let (connection, _term) = self.within(timers, timeout, connecting).await?;
        Ok(connection)
    }

    /// Why the server refuses connections, or why the sentinels name no master, if they say so.
    pub(crate) async fn refusal(&self, timers: &Timers, timeout: Duration) -> Option<Failure> {
        let asking = async {
            let address = self.whereto(timers, timeout).await?;
            address.asked_first().multiplexed().await.map(drop)
        };
        timers.within(self.limit(timeout), asking).await?.err()
    }

    /// Whether the server expects TLS, and the address asks for none.
    pub(crate) async fn lacks_tls(&self, timers: &Timers, timeout: Duration) -> bool {
        let asking = async {
            let address = self.whereto(timers, timeout).await.ok()?;
            Some(address.speaks_tls().await)
        };
        let asked = timers.within(self.limit(timeout), asking).await;
        asked.flatten().unwrap_or(false)
    }

    /// The longest time that an attempt takes: `timeout`, and as long before it for the question to the sentinels.
    pub(crate) fn limit(&self, timeout: Duration) -> Duration {
        timeout * (1 + u32::from(self.followed.is_some()))
    }

    async fn within<T>(
        &self,
        timers: &Timers,
        timeout: Duration,
        connecting: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match timers
            .within_run_time(self.limit(timeout), connecting)
            .await
        {
            // A lane treats an unknown service as not started yet.
            Some(result) => result.map_err(Failure::unreached_unless_refused),
            None => Err(Failure::slow_connect(timeout)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        Endpoint::new("h", port)
    }

    #[test]
    fn what_leads_elsewhere_or_might_is_given_up() {
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let dialer = Dialer::from_sentinels(&urls, "main", "redis://any/", None).unwrap();
        let followed = dialer.followed.as_ref().unwrap();
        assert!(!dialer.switch_to(&endpoint(1)), "nothing leads anywhere");
        followed.led_to(endpoint(1));
        let first = MasterTerm::current(&followed.terms);
        assert!(!dialer.switch_to(&endpoint(1)), "it leads there");
        assert!(!first.is_over());
        assert!(dialer.switch_to(&endpoint(2)));
        assert!(first.is_over());
        followed.led_to(endpoint(2));
        let second = MasterTerm::current(&followed.terms);
        assert!(
            !dialer.switch_to(&endpoint(2)),
            "the old one is forgotten, and nobody asks"
        );
        let asking = followed.asking();
        assert!(
            dialer.switch_to(&endpoint(2)),
            "an answer in flight may name the old one"
        );
        assert!(second.is_over());
        drop(asking);
        assert!(!dialer.switch_to(&endpoint(2)));
    }

    /// Callers connect on runtimes of the application, whose subscriber may block there. The keeper connects meanwhile.
    #[test]
    fn nothing_is_locked_while_another_master_is_logged() {
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let dialer = Dialer::from_sentinels(&urls, "main", "redis://any/", None).unwrap();
        let dialer = Arc::new(dialer);
        let (logged, free) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let writer = {
            let (dialer, logged, free) = (dialer.clone(), logged.clone(), free.clone());
            move || {
                logged.fetch_add(1, Ordering::Relaxed);
                let followed = dialer.followed.as_ref().unwrap();
                let is_free = followed.led.try_lock().is_some();
                free.fetch_add(usize::from(is_free), Ordering::Relaxed);
                std::io::sink()
            }
        };
        let subscriber = tracing_subscriber::fmt().with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let followed = dialer.followed.as_ref().unwrap();
            followed.led_to(endpoint(1));
            followed.led_to(endpoint(2));
            followed.led_to(endpoint(2));
            assert!(dialer.switch_to(&endpoint(3)));
        });
        assert_eq!(logged.load(Ordering::Relaxed), 2);
        assert_eq!(free.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_connection_that_is_sent_elsewhere_ends_the_term_of_all() {
        let urls = ["redis://127.0.0.1:1/".to_owned()];
        let dialer = Dialer::from_sentinels(&urls, "main", "redis://any/", None).unwrap();
        let followed = dialer.followed.as_ref().unwrap();
        let term = MasterTerm::current(&followed.terms);
        followed.led_to(endpoint(1));
        followed.led_to(endpoint(1));
        assert!(!term.is_over());
        assert_eq!(dialer.found_elsewhere().now_or_never(), None);
        followed.led_to(endpoint(2));
        assert!(term.is_over());
        assert_eq!(dialer.found_elsewhere().now_or_never(), Some(()));
        let term = MasterTerm::current(&followed.terms);
        // The next question to the sentinels shows which answer was right.
        followed.led_to(endpoint(1));
        assert!(!term.is_over());
    }
}
