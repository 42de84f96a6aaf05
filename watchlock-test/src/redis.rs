//! The Redis that a test starts.

use std::fmt;
use std::io;
use std::time::Duration;

use watchlock::{Client, ClientBuilder, Clock, ClockDriver, Error};

use crate::server::Server;
use crate::state::State;
use crate::{Fault, Stranger};

/// How often [`Redis::advance`] looks whether its clients are quiet, how often they must be, and how often it looks at most.
const LOOK: Duration = Duration::from_millis(1);
const QUIET: u32 = 2;
const LOOKS: u32 = 50;

/// A Redis in memory, which ends with this value.
///
/// It is a thread that listens on a port of 127.0.0.1. Each test can have its own: it starts in less than a millisecond.
/// It serves any client of Redis; those of [`client`](Self::client) share its clock.
///
/// # Time
/// The clock runs as the system's does. [`advance`](Self::advance) lets a span pass at once, for the TTLs in this Redis
/// and for its clients together; [`stop_clock`](Self::stop_clock) stops it, so that time passes by `advance` alone and
/// the test does not depend on how fast it runs. Command time-outs, and whatever a [`Fault`] or a frozen Redis delays,
/// take real time.
///
/// # Panics
/// It is made for tests: all methods but [`start_on`](Self::start_on) and the clients' panic instead of returning errors.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), watchlock::Error> {
/// use std::time::Duration;
/// use watchlock_test::Redis;
///
/// let redis = Redis::start();
/// let client = redis.client().await?;
/// let guard = client.get_lock("import").lock().await?;
///
/// redis.advance(Duration::from_secs(31)); // as after a suspend: the lease of 30 s is over
/// guard.lost().await;
/// # Ok(())
/// # }
/// ```
pub struct Redis {
    server: Server,
    clock: Clock,
    driver: ClockDriver,
}

impl Redis {
    /// Starts one on a free port. Works inside and outside of a runtime.
    ///
    /// # Panics
    /// If the system has no port or no thread for it.
    #[must_use]
    pub fn start() -> Self {
        Self::start_on(0).unwrap_or_else(|error| panic!("no Redis in memory: {error}"))
    }

    /// Starts one on this port, for code that has the address in its settings.
    ///
    /// # Errors
    /// What the system says: as a rule, the port is taken.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    /// let redis = watchlock_test::Redis::start_on(port)?;
    /// assert_eq!(redis.url(), format!("redis://127.0.0.1:{port}/"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_on(port: u16) -> io::Result<Self> {
        let (clock, driver) = Clock::driven();
        Self::start_with(port, clock, driver)
    }

    /// Starts another one that shares this one's clock, as the servers of a quorum must.
    ///
    /// # Panics
    /// If the system has no port or no thread for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use watchlock::Quorum;
    /// use watchlock_test::Redis;
    ///
    /// let first = Redis::start();
    /// let servers = [first.start_another(), first.start_another(), first];
    /// let quorum = Quorum::builder(servers.iter().map(Redis::url))
    ///     .clock(servers[0].clock())
    ///     .restart_delay(std::time::Duration::ZERO) // they have just started, and nothing is lost by that
    ///     .connect()
    ///     .await?;
    /// servers[0].stop();
    /// quorum.get_lock("import").lock().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn start_another(&self) -> Self {
        Self::start_with(0, self.clock.clone(), self.driver.clone())
            .unwrap_or_else(|error| panic!("no Redis in memory: {error}"))
    }

    fn start_with(port: u16, clock: Clock, driver: ClockDriver) -> io::Result<Self> {
        Ok(Self {
            server: Server::start(port, driver.clone())?,
            clock,
            driver,
        })
    }

    /// Its address: `redis://127.0.0.1:<port>/`. No password is needed.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port())
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The clock of its clients, for a [`ClientBuilder`] of the code under test.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// A client with the default settings and the clock of this Redis.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    ///
    /// # Cancel safety
    /// As [`ClientBuilder::connect`].
    pub async fn client(&self) -> Result<Client, Error> {
        self.client_builder().connect().await
    }

    /// The same, to add settings.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// let redis = watchlock_test::Redis::start();
    /// let client = redis.client_builder().key_prefix("app:").connect().await?;
    /// let guard = client.get_lock("import").lock().await?;
    /// assert_eq!(redis.keys(), ["app:import"]);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    pub fn client_builder(&self) -> ClientBuilder {
        Client::builder(self.url()).clock(self.clock())
    }

    /// Lets `span` pass at once, for the TTLs and for the clients, as a machine that was suspended would see it. The
    /// clients notice at once: they send renewals that are due, report losses, and end waits whose time is over.
    ///
    /// Before that it waits until the clients have sent nothing for two milliseconds, for 50 at most: to a client a command
    /// that is under way would look overdue afterwards. It blocks its thread meanwhile. In a `#[tokio::test]` that is the
    /// thread of all tasks, and none of them reads its answer: so let a task that has just begun to lock come to its wait
    /// first, as in the example of [`stop_clock`](Self::stop_clock).
    ///
    /// A second or more at once is no silence of the server for them: `unavailable_after` ends by smaller spans, or by real
    /// time.
    ///
    /// Nothing happens within the span. So a lock with a watchdog is lost if `span` is longer than the lease (30 s), and
    /// renewed if it is shorter. A long job takes several spans, with a renewal after each:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// let client = redis.client().await?;
    /// let guard = client.get_lock("import").lock().await?;
    /// for _ in 0..180 {
    ///     redis.advance(Duration::from_secs(20));
    ///     while guard.valid_for() < Duration::from_secs(20) {
    ///         tokio::time::sleep(Duration::from_millis(1)).await;
    ///     }
    /// }
    /// guard.unlock().await // an hour later
    /// # }
    /// ```
    pub fn advance(&self, span: Duration) {
        self.wait_until_quiet();
        self.driver.advance(span);
    }

    /// Waits until no command has arrived for a while. One that is in flight at the jump would look overdue to its client.
    fn wait_until_quiet(&self) {
        let mut arrived = self.ask(|state| state.arrived_in_all());
        let mut quiet = 0;
        for _ in 0..LOOKS {
            std::thread::sleep(LOOK);
            let before = std::mem::replace(&mut arrived, self.ask(|state| state.arrived_in_all()));
            quiet = if arrived == before { quiet + 1 } else { 0 };
            if quiet == QUIET {
                break;
            }
        }
    }

    /// Stops the clock: from now on time passes by [`advance`](Self::advance) alone. So a `try_lock` that waits for a busy
    /// lock waits until then, too: run it in a task, and advance meanwhile. It waits once it has subscribed:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// redis.stop_clock();
    /// let lock = redis.client().await?.get_lock("import");
    /// let _other = redis.held_by_stranger("import");
    /// let wait = Duration::from_secs(20);
    /// let waiting = tokio::spawn(async move { lock.try_lock(wait, Lease::Watchdog).await });
    /// while redis.command_count("subscribe") == 0 {
    ///     tokio::time::sleep(Duration::from_millis(1)).await;
    /// }
    /// redis.advance(wait);
    /// assert!(waiting.await.expect("no panic")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A lease does not run down either:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// redis.stop_clock();
    /// let client = redis.client().await?;
    /// let lock = client.get_lock("import");
    /// let guard = lock.lock_with_lease(Duration::from_secs(10)).await?;
    /// redis.advance(Duration::from_secs(9));
    /// assert!(guard.is_valid()); // however slow this machine is
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop_clock(&self) {
        self.driver.stop();
    }

    /// Starts a stopped clock again. It takes in the time that passed meanwhile.
    pub fn start_clock(&self) {
        self.driver.go_on();
    }

    /// Takes the plain lock for somebody else, which keeps callers of the plain, fenced, spin and fair lock of that name out.
    /// To the other kinds it is a key of another kind ([`Error::WrongType`]). The value releases it when it is dropped.
    /// `name` is the key in Redis, with the clients' prefix.
    ///
    /// Its release wakes plain and fenced waiters. A fair waiter notices it at its next poll, a second later at most, and a
    /// spin waiter at its own: with a [stopped clock](Self::stop_clock), [`advance`](Self::advance) until it is in. To hold a
    /// fair or read/write lock against the code under test, take it with a second [`client`](Self::client).
    ///
    /// # Panics
    /// If somebody holds the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// let client = redis.client().await?;
    /// let lock = client.get_lock("import");
    ///
    /// let other = redis.held_by_stranger("import");
    /// assert!(lock.try_lock(Duration::ZERO, Lease::Watchdog).await?.is_none());
    /// drop(other);
    /// assert!(lock.try_lock(Duration::ZERO, Lease::Watchdog).await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn held_by_stranger(&self, name: impl AsRef<str>) -> Stranger {
        Stranger::takes(self.server.orders(), name.as_ref())
    }

    /// Loses all data, as `FLUSHALL` does, and a failover to an empty replica. Connections and subscriptions stay.
    pub fn lose_data(&self) {
        self.ask(State::lose_data);
    }

    /// Restarts without the data: connections are cut, the memory is lost. It ends [`stop`](Self::stop) and
    /// [`freeze`](Self::freeze).
    pub fn restart(&self) {
        self.ask(|state| {
            state.lose_data();
            state.restart();
        });
    }

    /// Restarts with its data, as a Redis that writes a log to the disk.
    pub fn restart_with_data(&self) {
        self.ask(State::restart);
    }

    /// Takes it down: connections are cut, and new ones as well, until it is restarted. Its data stays until then.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// let client = redis.client().await?;
    /// redis.stop();
    /// let error = client.get_lock("import").try_lock(Duration::ZERO, Lease::Watchdog).await.unwrap_err();
    /// assert!(error.is_transient());
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop(&self) {
        self.ask(State::stop);
    }

    /// From now on nothing is answered, and connections stay, as with a process that is stopped.
    pub fn freeze(&self) {
        self.ask(|state| state.freeze(true));
    }

    /// Ends [`freeze`](Self::freeze): what arrived meanwhile runs and is answered now.
    pub fn thaw(&self) {
        self.ask(|state| state.freeze(false));
    }

    /// Lets something go wrong with the next command that any client sends. Each call is for one more command; a restart
    /// forgets those that are left.
    ///
    /// What a client sends for its connection does not count: `HELLO`, `PING`, `SUBSCRIBE`, `SCRIPT` and the like; nor
    /// does a script that this Redis does not know yet, which the client sends again with its text.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    /// use watchlock::Lease;
    /// use watchlock_test::{Fault, Redis};
    ///
    /// let redis = Redis::start();
    /// let client = redis.client().await?;
    /// redis.next_command(Fault::Refused("OOM command not allowed".into()));
    /// assert!(client.get_lock("import").try_lock(Duration::ZERO, Lease::Watchdog).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_command(&self, fault: Fault) {
        self.ask(|state| state.add_fault(fault));
    }

    /// Whether nothing is left: no key, and no subscription.
    ///
    /// Some keys are meant to stay, and count here: the permits of a semaphore, the newest token of a fenced lock, for an
    /// hour the ids of those who counted down a latch. Code that uses these compares [`keys`](Self::keys).
    ///
    /// A client listens to the channel of a lock for a second longer than anybody waits for it; so ask when its
    /// [`shutdown`](Client::shutdown) is over.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// use std::time::Duration;
    ///
    /// let redis = watchlock_test::Redis::start();
    /// let client = redis.client().await?;
    /// let guard = client.get_lock("import").lock().await?;
    /// assert!(!redis.is_clean());
    /// guard.unlock().await?;
    /// client.shutdown(Duration::from_secs(5)).await;
    /// assert!(redis.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.ask(State::is_clean)
    }

    /// All keys, sorted.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.ask(State::keys)
    }

    /// How many commands of this name arrived since the start, whatever became of them. The name is that of
    /// `INFO commandstats`: `evalsha`, `client|setinfo`. What a script calls is not counted.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), watchlock::Error> {
    /// let redis = watchlock_test::Redis::start();
    /// redis.client().await?;
    /// assert_eq!(redis.command_count("flushall"), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn command_count(&self, name: &str) -> u64 {
        let name = name.to_lowercase();
        self.ask(move |state| state.arrived(&name))
    }

    fn ask<R: Send + 'static>(&self, order: impl FnOnce(&mut State) -> R + Send + 'static) -> R {
        self.server.orders().ask(order)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("url", &self.url())
            .finish_non_exhaustive()
    }
}
