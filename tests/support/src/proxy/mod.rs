//! A TCP proxy between clients and a server that understands whole commands, and harms them on request.
//!
//! It runs on a thread and a runtime of its own, so it works while the test's runtime is blocked; its methods are
//! synchronous and may be called from anywhere. Each client's connection has one connection to the server.
//!
//! - *Aimed* faults hit the n-th command that matches: [`Proxy::inject`].
//! - *Random* faults hit any command with a probability, seeded: [`Proxy::random`].
//! - *Standing* conditions last until taken back: [`Proxy::refuse`], [`Proxy::black_hole`], [`Proxy::hold`],
//!   [`Proxy::latency`].
//! - *At once*, to connections that are there: [`Proxy::reset_all`] and its like.
//!
//! Not understood: MONITOR, `CLIENT REPLY OFF`.

#![expect(
    clippy::must_use_candidate,
    reason = "how many were hit is worth knowing, and may be ignored"
)]

mod alarm;
mod carrier;
mod fault;
mod link;
mod pending;
mod resp;
mod rules;
mod server;
mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use fault::{Command, Direction, Fault, Match};
pub use rules::{Aim, Odds, Shot};

use crate::server::RedisServer;
use link::Ending;
use server::Server;
pub use shared::Traffic;
use shared::{Modes, Shared};

/// A proxy before a server on loopback; it ends, with its connections, when dropped.
///
/// ```no_run
/// use watchlock_support::proxy::{Fault, Match, Proxy};
/// use watchlock_support::server::RedisServer;
///
/// let server = RedisServer::start();
/// let proxy = Proxy::to(&server);
/// // … connect a client to proxy.url() …
/// let aim = proxy
///     .inject(Fault::SwallowReply)
///     .on(Match::command("EVALSHA").and(Match::key("my-lock")))
///     .nth(2)
///     .arm();
/// // … let the client lock and unlock …
/// assert_eq!(aim.fired(), 1);
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    server: Server,
    url: String,
}

impl Proxy {
    /// A proxy before `server`, on a port of its own.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn to(server: &RedisServer) -> Self {
        let proxy = Self::to_port(server.port());
        let url = server.url_via(proxy.port());
        Self { url, ..proxy }
    }

    /// A proxy before whatever listens on a port of 127.0.0.1.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn to_port(port: u16) -> Self {
        let shared = Arc::new(Shared::new(port));
        let server = Server::start(&shared);
        Self {
            url: format!("redis://127.0.0.1:{}/", server.port()),
            shared,
            server,
        }
    }

    /// The address for clients, with the server's password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Aims a fault; it is injected when [armed](Shot::arm).
    pub fn inject(&self, fault: Fault) -> Shot<'_> {
        Shot::new(self, Some(fault))
    }

    /// Counts the commands that match, from now on, and does nothing to them.
    #[must_use]
    pub fn count(&self, commands: Match) -> Aim {
        Shot::new(self, None).on(commands).always().arm()
    }

    /// Random faults from now on, instead of earlier ones.
    pub fn random(&self, odds: Odds) {
        self.shared.rules.lock().odds = Some(odds);
    }

    /// No random faults and no aimed ones any more; connections that were harmed stay so.
    pub fn calm(&self) {
        let mut rules = self.shared.rules.lock();
        rules.odds = None;
        rules.aims.clear();
    }

    /// Resets all connections; says how many.
    pub fn reset_all(&self) -> usize {
        let links = self.shared.open_links();
        self.shared.end("reset", Ending::Reset, &links)
    }

    /// Resets one connection, the oldest being 0, counted modulo their number; says how many (0 or 1).
    pub fn reset_one(&self, number: usize) -> usize {
        let links = self.shared.open_links();
        let chosen = links.get(number.checked_rem(links.len()).unwrap_or(0));
        let chosen: Vec<_> = chosen.cloned().into_iter().collect();
        self.shared.end("reset", Ending::Reset, &chosen)
    }

    /// Resets the connections that have subscribed to a channel; says how many.
    pub fn reset_subscribers(&self) -> usize {
        let mut links = self.shared.open_links();
        links.retain(|link| link.state.lock().pending.is_subscriber());
        self.shared.end("reset", Ending::Reset, &links)
    }

    /// Closes the server's side of all connections and leaves the clients' open; says how many.
    pub fn half_open_all(&self) -> usize {
        let links = self.shared.open_links();
        self.shared.end("half_open", Ending::HalfOpen, &links)
    }

    /// Bytes are accepted and not forwarded, on all connections and on new ones until [`Self::heal`]. What is lost is
    /// lost: connections that are there stay deaf when it is over, until they are closed.
    pub fn black_hole(&self, direction: Direction) {
        self.change(|modes| modes.black_hole = Some(direction));
        for link in self.shared.open_links() {
            link.state.lock().deafen(direction);
        }
        self.shared.rules.lock().count_fault("black_hole");
    }

    /// Nothing is forwarded until [`Self::heal`], and then all of it: a partition that ends. Connections made in the
    /// meantime are held as well.
    pub fn hold(&self, direction: Direction) {
        self.change(|modes| modes.held = Some(direction));
        self.shared.rules.lock().count_fault("hold");
    }

    /// Ends [`Self::black_hole`] and [`Self::hold`].
    pub fn heal(&self) {
        self.change(|modes| {
            modes.black_hole = None;
            modes.held = None;
        });
    }

    /// Leads to another server from now on, as a virtual address that moves, and resets all connections.
    pub fn lead_to(&self, server: &RedisServer) {
        self.shared.target.store(server.port(), Ordering::SeqCst);
        self.reset_all();
    }

    /// Refuses new connections until [`Self::accept`]; those that are there go on.
    ///
    /// # Panics
    /// If the proxy's thread has died.
    pub fn refuse(&self) {
        self.server.listen(false);
        self.shared.rules.lock().count_fault("refuse");
    }

    /// Accepts new connections again, on the same port.
    ///
    /// # Panics
    /// If somebody else has taken the port.
    pub fn accept(&self) {
        self.server.listen(true);
    }

    /// Adds this time to every round trip, half of it each way. Requests under way at once are delayed at once.
    ///
    /// Exact to about 0.1 ms. It holds for frames that come from now on.
    pub fn latency(&self, round_trip: Duration) {
        self.change(|modes| modes.round_trip = round_trip);
    }

    /// Faults so far by kind ([`Fault::kind`], and `reset`, `half_open`, `hold`, `refuse`).
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.shared.rules.lock().faults.clone()
    }

    /// All faults so far.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.shared.rules.lock().faults.values().sum()
    }

    /// Commands so far by name in upper case. Those that went into a black hole are not counted.
    #[must_use]
    pub fn commands(&self) -> BTreeMap<String, u64> {
        self.shared.rules.lock().commands.clone()
    }

    /// What clients sent so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.shared.traffic()
    }

    /// EVALSHA calls so far by the script's hash.
    #[must_use]
    pub fn scripts(&self) -> BTreeMap<String, u64> {
        self.shared.rules.lock().scripts.clone()
    }

    /// Connections whose client has not closed.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open_links().len()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted()
    }

    fn change(&self, change: impl FnOnce(&mut Modes)) {
        self.shared.modes.send_modify(change);
    }
}
