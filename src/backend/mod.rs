//! How commands reach Redis: lanes for commands, one connection for subscriptions.
//!
//! Callers' commands go over a lane of the caller's own runtime, the keeper's over a lane of the
//! keeper's thread, so that neither waits for the other and a blocked runtime delays only itself.

mod address;
mod alarm;
mod application;
pub(crate) mod class;
pub(crate) mod cluster;
mod commit;
mod committer;
pub(crate) mod dial;
mod drive;
mod failure;
mod fleet;
pub(crate) mod hello;
mod in_flight;
pub(crate) mod lane;
mod pace;
mod redirect;
mod send;
pub(crate) mod sentinel;
mod server;
mod socket;
mod survey;
mod switches;
pub(crate) mod timers;
#[cfg(feature = "tls")]
mod tls;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};

pub(crate) use self::alarm::Alarm;
pub(crate) use self::class::Class;
use self::cluster::Cluster;
use self::commit::Commit;
pub(crate) use self::dial::Dialer;
pub(crate) use self::drive::Connection;
pub(crate) use self::failure::{Failure, TOO_OLD};
pub(crate) use self::fleet::Fleet;
pub(crate) use self::in_flight::InFlight;
pub(crate) use self::lane::{Lane, LaneConfig};
pub(crate) use self::pace::Pace;
pub(crate) use self::redirect::Redirect;
pub(crate) use self::send::{round_trip, slots_of};
pub(crate) use self::timers::Timers;
use crate::clock::Moment;
use crate::error::{ConfigError, Error};
use crate::script::{Call, Order, Reply};
use crate::secrets::Tls;

/// Whether certificates can be used.
#[cfg(feature = "tls")]
pub(crate) fn check_tls(tls: &Tls) -> Result<(), ConfigError> {
    self::tls::check(tls)
}

/// Certificates are of no use without TLS.
#[cfg(not(feature = "tls"))]
pub(crate) fn check_tls(_: &Tls) -> Result<(), ConfigError> {
    Err(ConfigError::TlsDisabled)
}

/// A silence that is shorter says nothing of the connection, nor of the server.
pub(crate) const TELLING: Duration = Duration::from_millis(100);

/// The next try shall be on another connection, while there is time for one: after a silence of `limit`, if that is
/// `telling`.
fn give_up(lane: &Lane, generation: Option<u64>, limit: Duration, telling: Duration) {
    if limit < telling {
        return;
    }
    lane.overdue();
    let silent = lane.is_silent_for(limit);
    if let Some(generation) = generation.filter(|_| silent) {
        lane.replace(generation);
    }
}

/// A reply, and when its command was sent.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Just before the send: validity is counted from here.
    pub(crate) sent_at: Moment,
    /// How long the server had been up then, by its own word; asked only where it matters.
    pub(crate) server_age: Option<Duration>,
}

pub(crate) type Outcome = Result<Answer, Failure>;

/// A command in flight. Whoever holds a clone may await it; it runs once.
///
/// The reply may take for ever: whoever counts the time says so by [`Pending::overdue`], or awaits it
/// [within](Pending::within) a time.
#[derive(Clone)]
pub(crate) struct Pending {
    outcome: InFlight<Outcome>,
    lane: Arc<Lane>,
}

impl Pending {
    /// Starts `call` on the lane of `fleet` that it is for. It is sent when the result is first polled.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what the call borrows is free again"
    )]
    pub(crate) fn start(fleet: &Arc<Fleet>, call: Call<'_>) -> Self {
        let lane = match fleet.lane(call.target()) {
            Ok(lane) => lane,
            Err(failure) => {
                return Self::of(ready(Err(failure)).boxed(), Arc::clone(fleet.home()));
            }
        };
        if let Some(commits) = lane.commits()
            && call.order() != Order::Free
        {
            let commit = Commit::of(&call);
            let on = Arc::clone(commits.lane_of(&commit));
            let sending = send::send(Arc::clone(fleet), lane, Some(commit));
            return Self::of(sending.boxed(), on);
        }
        let sending = send::send(Arc::clone(fleet), Arc::clone(&lane), call.encode());
        Self::of(sending.boxed(), lane)
    }

    /// Asks whether the connection of a lane is still there.
    pub(crate) fn knock(lane: &Arc<Lane>) -> Self {
        let sending = send::send_on(Arc::clone(lane), Call::ping().encode());
        Self::of(sending.boxed(), Arc::clone(lane))
    }

    fn of(sending: BoxFuture<'static, Outcome>, lane: Arc<Lane>) -> Self {
        let outcome = InFlight::new(sending);
        Self { outcome, lane }
    }

    /// Sends it now, and not when the task of its connection runs. It may wake anybody, so no lock may be held.
    pub(crate) fn send_at_once(mut self) {
        let _ = (&mut self).now_or_never();
        self.lane.drive();
    }

    /// No reply came within a command time-out: whoever awaits it hears that.
    pub(crate) fn overdue(&self) {
        self.lane.overdue();
        self.outcome.end_with(Err(Failure::no_reply()));
    }

    /// Waits for the reply for at most `limit`.
    pub(crate) async fn within(mut self, limit: Duration) -> Outcome {
        let timers = self.lane.timers().clone();
        let outcome = timers.within(limit, &mut self).await;
        outcome.unwrap_or_else(|| {
            self.overdue();
            Err(Failure::no_reply())
        })
    }

    /// As [`within`](Self::within), for what is repeated while there is time: the next try is on another connection when
    /// this one was silent for `limit`, and that is `telling`.
    pub(crate) async fn within_one_try(mut self, limit: Duration, telling: Duration) -> Outcome {
        let (lane, generation) = (Arc::clone(&self.lane), self.lane.generation());
        let timers = lane.timers().clone();
        let outcome = timers.within(limit, &mut self).await;
        let outcome = outcome.unwrap_or_else(|| {
            self.outcome.end_with(Err(Failure::no_reply()));
            Err(Failure::no_reply())
        });
        if matches!(&outcome, Err(failure) if failure.is_unanswered()) {
            give_up(&lane, generation, limit, telling);
        }
        outcome
    }
}

impl PartialEq for Pending {
    /// Whether they are the same command.
    fn eq(&self, other: &Self) -> bool {
        self.outcome.is_same(&other.outcome)
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        // A command that was started on a runtime that is gone may panic when polled; it is unanswered then.
        let polling = AssertUnwindSafe(|| Pin::new(&mut self.outcome).poll(context));
        let polled = catch_unwind(polling).unwrap_or_else(|_| {
            self.overdue();
            Poll::Ready(Err(Failure::no_reply()))
        });
        if polled.is_pending() {
            // Here, where no lock is held.
            self.lane.drive_if_full();
        }
        polled
    }
}

/// A fleet for each runtime.
type Fleets = Vec<(Id, Arc<Fleet>)>;

/// The callers' lanes of one client, and what is known of where they lead.
pub(crate) struct Backend {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// One for each runtime of callers: a few at most. None once the client is closed, and then for ever.
    fleets: Mutex<Option<Fleets>>,
}

impl Backend {
    pub(crate) fn new(config: LaneConfig, cluster: Arc<Cluster>) -> Self {
        Self {
            config,
            cluster,
            fleets: Mutex::new(Some(Vec::new())),
        }
    }

    /// The cluster, if there is one.
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Asks which slots are where; whether a node answered. `keepers` are the lanes of the runtime this runs on.
    pub(crate) async fn survey(&self, keepers: &Fleet) -> bool {
        let Some(ranges) = survey::survey(keepers, &self.config.dialer).await else {
            return false;
        };
        self.cluster.learn(ranges);
        self.prune(keepers);
        true
    }

    /// Ends the lanes to nodes that left the cluster; `keepers` are the keeper's own.
    fn prune(&self, keepers: &Fleet) {
        let nodes = self.cluster.nodes();
        keepers.prune(&nodes);
        for (_, fleet) in self.fleets.lock().iter().flatten() {
            fleet.prune(&nodes);
        }
    }

    pub(crate) fn config(&self) -> &LaneConfig {
        &self.config
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.config.timers
    }

    /// The lanes of the runtime this is called on; opened at first use, over with the runtime. Fails where a
    /// connection could not live, and when the client is closed.
    pub(crate) fn callers_fleet(&self) -> Result<Arc<Fleet>, Error> {
        let runtime = Handle::try_current().map_err(|_| ConfigError::NoRuntime)?;
        if let Some(fleet) = self.fleet_of(runtime.id())? {
            return Ok(fleet);
        }
        if !drives_connections() {
            return Err(ConfigError::NoRuntime.into());
        }
        self.open_fleet(&runtime)
    }

    fn fleet_of(&self, id: Id) -> Result<Option<Arc<Fleet>>, Error> {
        let fleets = self.fleets.lock();
        let mut fleets = fleets.as_ref().ok_or(Error::Closed)?.iter();
        let fleet = fleets.find(|(known, fleet)| *known == id && !fleet.is_over());
        Ok(fleet.map(|(_, fleet)| Arc::clone(fleet)))
    }

    fn open_fleet(&self, runtime: &Handle) -> Result<Arc<Fleet>, Error> {
        let mut fleets = self.fleets.lock();
        let fleets = fleets.as_mut().ok_or(Error::Closed)?;
        fleets.retain(|(_, fleet)| !fleet.is_over());
        // Another thread may have been quicker.
        if let Some((_, fleet)) = fleets.iter().find(|(known, _)| *known == runtime.id()) {
            return Ok(Arc::clone(fleet));
        }
        let fleet = Fleet::open(self.config.clone(), Arc::clone(&self.cluster), runtime);
        if fleet.is_over() {
            // The runtime is being shut down, and takes no more tasks.
            return Err(ConfigError::NoRuntime.into());
        }
        fleets.push((runtime.id(), Arc::clone(&fleet)));
        Ok(fleet)
    }

    /// Another server is the master now: no lane leads to the old one any more.
    pub(crate) fn switch(&self) {
        for (_, fleet) in self.fleets.lock().iter().flatten() {
            fleet.home().switch();
        }
    }

    /// Ends all of the callers' lanes; there are no new ones. The keeper's runtime, and so the timers, end next.
    pub(crate) fn close(&self) {
        self.config.timers.stop();
        let fleets = self.fleets.lock().take();
        for (_, fleet) in fleets.into_iter().flatten() {
            fleet.close();
        }
    }
}

/// Whether the runtime that this is called on has timers and I/O. The only way to find out is to use them.
fn drives_connections() -> bool {
    let using = || {
        drop(tokio::time::sleep(Duration::ZERO));
        // An error, as when there are no files left, is no panic: only a missing driver panics.
        #[cfg(unix)]
        drop(tokio::net::UnixDatagram::unbound());
    };
    catch_unwind(using).is_ok()
}
