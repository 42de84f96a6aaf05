//! Which lane a command takes.
//!
//! A client has a *fleet* for each runtime that it is used from, and one for the keeper's: a lane to its one server, or a
//! lane to each node of a cluster.
//!
//! 1. The lane to a node is opened when the first command for it is sent, and ends when the node leaves the cluster.
//!    Commands that wait for its connection at that time were not sent.
//! 2. Until it is known that there is a cluster, every command takes the lane *home*, which leads to the address that was
//!    given. After that the lane home rests.
//! 3. A closed fleet opens no lane.
//! 4. A node that does not have a command's slot runs nothing and names the node that has it. The command is sent there,
//!    up to [`HOPS`] times: nodes may point at each other while a cluster changes.

use std::collections::BTreeSet;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, ready};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::ask_for_slots::{SpareConnection, ask_for_slots};
use super::slot_map::Cluster;
use crate::backend::command::{
    AckCommand, AckLanes, CommandResult, FailedSend, Lane, LaneConfig, Pending, TimedCommand,
    TimedReply, all_once, once,
};
use crate::backend::connect::ClusterNode;
use crate::backend::failure::{Class, Failure};
use crate::backend::timers::Timers;
use crate::error::{ConfigError, Error};
use crate::host::is_simulated;
use crate::log::log;
use crate::script::{Call, Encoded, Order, Reply, Turn};
use crate::slot::Target;

/// How many redirects a command follows.
const HOPS: usize = 5;

/// The pause before a command follows the next redirect, once two nodes pointed at each other.
const PAUSE: Duration = Duration::from_millis(10);

/// A lane, with the connections beside it on which replicas acknowledge, if they must.
#[derive(Clone)]
struct LaneRoute {
    lane: Arc<Lane>,
    acks: Option<Arc<AckLanes>>,
}

impl LaneRoute {
    fn open(config: LaneConfig, runtime: &Handle) -> Self {
        let acks = config
            .acks
            .map(|acks| Arc::new(AckLanes::open(acks, &config, runtime)));
        let beside = acks.iter().flat_map(|acks| acks.lanes()).cloned();
        Self {
            lane: Lane::open(config, beside.collect(), runtime, false),
            acks,
        }
    }
}

/// A command that can be sent over another route if it did not run on the first.
trait Message: Send {
    /// `asking` sends `ASKING` before it, for a slot that is migrating to the node of the route.
    fn sent_on(
        &mut self,
        route: &LaneRoute,
        asking: bool,
    ) -> impl Future<Output = Result<TimedReply, FailedSend>> + Send;
}

impl Message for Encoded {
    async fn sent_on(&mut self, route: &LaneRoute, asking: bool) -> Result<TimedReply, FailedSend> {
        once(&route.lane, self, asking).await
    }
}

impl Message for AckCommand {
    async fn sent_on(&mut self, route: &LaneRoute, asking: bool) -> Result<TimedReply, FailedSend> {
        let Some(acks) = &route.acks else {
            return Err(Failure::no_reply().into());
        };
        acks.send(self.again(asking)).await
    }
}

/// Sends a message over `route`, and follows redirects.
#[expect(
    clippy::manual_async_fn,
    reason = "an async fn keeps its arguments twice"
)]
fn send(
    fleet: Arc<Fleet>,
    route: LaneRoute,
    mut message: impl Message,
) -> impl Future<Output = CommandResult> + Send {
    async move {
        // Boxed, so that a command that waits for a place of its lane needs little memory.
        match Box::pin(message.sent_on(&route, false)).await {
            Ok(answer) => Ok(answer),
            Err(wrong) if !fleet.cluster.is_joined() => Err(wrong.failure),
            Err(wrong) => Box::pin(follow(&fleet, route.clone(), message, wrong)).await,
        }
    }
}

/// What a command came to, in metrics.
fn outcome_of(result: &CommandResult) -> &'static str {
    match result {
        Ok(_) => "answered",
        Err(failure) if failure.was_not_sent() => "not_sent",
        Err(failure) if failure.is_unanswered() => "unanswered",
        Err(_) => "refused",
    }
}

async fn follow(
    fleet: &Fleet,
    mut route: LaneRoute,
    mut message: impl Message,
    mut wrong: FailedSend,
) -> CommandResult {
    let cluster = &fleet.cluster;
    for hop in 0..HOPS {
        let Some(redirect) = wrong.redirect.take() else {
            break;
        };
        let asking = redirect.asking;
        let node = cluster.redirected(redirect);
        let _visit = node.visit();
        route = fleet.route_to(&node);
        if hop > 1 {
            route.lane.timers().sleep(PAUSE).await;
        }
        match message.sent_on(&route, asking).await {
            Ok(answer) => return Ok(answer),
            Err(next) => wrong = next,
        }
    }
    if wrong.failure.class == Class::NotReady
        && let Some(node) = route.lane.node()
    {
        node.set_cut_off(true);
    }
    if wrong.failure.is_transient() {
        cluster.doubt();
    }
    Err(wrong.failure)
}

impl Pending {
    /// Starts `call` on the lane of `fleet` that it belongs to. It is sent when the result is first polled, or when its turn
    /// comes after that.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "what the call borrows is free again"
    )]
    pub(crate) fn start(fleet: &Arc<Fleet>, call: Call<'_>) -> Self {
        let route = match fleet.route(call.target) {
            Ok(route) => route,
            Err(failure) => return Self::unsent(fleet, failure),
        };
        let lane = Arc::clone(&route.lane);
        let timed = Some(TimedCommand {
            timer: fleet.config.metrics.command(call.name()),
            outcome: outcome_of,
        });
        let turn = (call.turn, call.patient);
        if let Some(acks) = &route.acks
            && call.order != Order::Free
        {
            let command = AckCommand::of(&call);
            let lane = Arc::clone(acks.lane_of(&command));
            let sending = send(Arc::clone(fleet), route, command);
            return Self::queued(sending.boxed(), lane, turn, timed);
        }
        let sending = send(Arc::clone(fleet), route, call.encode());
        Self::queued(sending.boxed(), lane, turn, timed)
    }

    /// Starts calls about holds that are at the node of `target`, in one write. When the result says that they were
    /// answered, `replies` has what each came to; none if it must be sent alone. Not where replicas must acknowledge.
    pub(crate) fn start_all(
        fleet: &Fleet,
        target: Target,
        calls: Vec<Encoded>,
        replies: oneshot::Sender<Vec<Option<CommandResult>>>,
    ) -> Self {
        let lane = match fleet.route(target) {
            Ok(route) => route.lane,
            Err(failure) => return Self::unsent(fleet, failure),
        };
        let on = Arc::clone(&lane);
        let timed = Some(TimedCommand {
            timer: fleet.config.metrics.command("batch"),
            outcome: |result| result.as_ref().map_or("unanswered", |_| "answered"),
        });
        let sending = async move {
            let sent_at = on.now();
            let answers = Box::pin(all_once(&on, calls)).await?;
            // If nobody waits for them any more, the holds are asked for again.
            let _ = replies.send(answers);
            Ok(TimedReply {
                reply: Reply::Other,
                sent_at,
                server_age: None,
                value: None,
            })
        };
        Self::queued(sending.boxed(), lane, (Turn::Hold, false), timed)
    }

    fn unsent(fleet: &Fleet, failure: Failure) -> Self {
        Self::of(ready(Err(failure)).boxed(), Arc::clone(fleet.home()))
    }
}

pub(crate) struct Fleet {
    home: LaneRoute,
    runtime: Handle,
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// By the number of the node; none once the fleet is closed.
    routes: RwLock<Option<Vec<(u32, LaneRoute)>>>,
}

impl Fleet {
    /// A fleet on `runtime`, not connected yet.
    pub(crate) fn open(config: LaneConfig, cluster: Arc<Cluster>, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            home: LaneRoute::open(config.clone(), runtime),
            runtime: runtime.clone(),
            config,
            cluster,
            routes: RwLock::new(Some(Vec::new())),
        })
    }

    fn route(&self, target: Target) -> Result<LaneRoute, Failure> {
        if !self.cluster.is_joined() {
            return Ok(self.home.clone());
        }
        let node = match target {
            Target::Slot(slot) => self.cluster.node_of(slot),
            Target::Any => self.cluster.nodes().into_iter().next(),
            Target::None => return Err(Failure::cross_slot()),
        };
        let Some(node) = node else {
            self.cluster.doubt();
            return Err(Failure::no_node());
        };
        Ok(self.route_to(&node))
    }

    fn route_to(&self, node: &Arc<ClusterNode>) -> LaneRoute {
        let find = |routes: &[(u32, LaneRoute)]| {
            let mut known = routes.iter();
            let known = known
                .find(|(number, route)| *number == node.number && route.lane.end_of_it().is_none());
            known.map(|(_, route)| route.clone())
        };
        if let Some(route) = self.routes.read().as_deref().and_then(find) {
            return route;
        }
        let mut routes = self.routes.write();
        let Some(routes) = routes.as_mut() else {
            return self.home.clone();
        };
        // Another thread may have been quicker.
        if let Some(route) = find(routes) {
            return route;
        }
        self.home.lane.rest();
        routes.retain(|(_, route)| route.lane.end_of_it().is_none());
        let route = LaneRoute::open(self.config.to(node), &self.runtime);
        routes.push((node.number, route.clone()));
        route
    }

    /// In a cluster, closes the lane home.
    pub(crate) fn settle(&self) {
        if self.cluster.is_joined() {
            self.home.lane.rest();
        }
    }

    /// The lane to the one server, or to the address of a cluster that was given.
    pub(crate) fn home(&self) -> &Arc<Lane> {
        &self.home.lane
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        if !self.cluster.is_joined() {
            return vec![Arc::clone(self.home())];
        }
        let routes = self.routes.read();
        let routes = routes.iter().flatten();
        routes.map(|(_, route)| Arc::clone(&route.lane)).collect()
    }

    pub(crate) fn is_connected(&self) -> bool {
        let mut connected = self.lanes().into_iter().filter_map(|lane| lane.connected());
        connected.any(|connected| !connected.connection.has_ended())
    }

    /// The numbers of the nodes that have a lane.
    pub(crate) fn reached(&self) -> BTreeSet<u32> {
        let routes = self.routes.read();
        routes.iter().flatten().map(|(number, _)| *number).collect()
    }

    pub(crate) fn is_silent_for(&self, span: Duration) -> bool {
        self.lanes().iter().all(|lane| lane.is_silent_for(span))
    }

    /// Ends the lanes to nodes that are not among `nodes` any more.
    fn prune(&self, nodes: &[Arc<ClusterNode>]) {
        let left: Vec<_> = {
            let mut routes = self.routes.write();
            let left = routes.iter_mut().flat_map(|routes| {
                routes.extract_if(.., |(number, _)| {
                    nodes.iter().all(|node| node.number != *number)
                })
            });
            left.collect()
        };
        for (_, route) in left {
            route.lane.end(&Failure::no_node());
        }
    }

    /// Whether its runtime has ended, or it is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.home.lane.end_of_it().is_some()
    }

    pub(crate) fn close(&self) {
        self.home.lane.end(&Failure::closed());
        let routes = self.routes.write().take();
        for (_, route) in routes.into_iter().flatten() {
            route.lane.end(&Failure::closed());
        }
    }
}

type Fleets = Vec<(Id, Arc<Fleet>)>;

/// The fleets of one client, and the map of its cluster.
pub(crate) struct Backend {
    pub(crate) config: LaneConfig,
    pub(crate) cluster: Arc<Cluster>,
    /// The keeper's own lanes.
    pub(crate) keepers: Arc<Fleet>,
    /// One for each runtime of callers: a few at most. None once the client is closed.
    fleets: Mutex<Option<Fleets>>,
}

impl Backend {
    pub(crate) fn new(config: LaneConfig, cluster: Arc<Cluster>, keepers: Arc<Fleet>) -> Self {
        Self {
            config,
            cluster,
            keepers,
            fleets: Mutex::new(Some(Vec::new())),
        }
    }

    /// Asks the nodes for all slots, updates the map, and ends the lanes to nodes that left the cluster. Returns whether a
    /// node answered. `spare` is kept from one question to the next.
    pub(crate) async fn ask_for_slots(&self, spare: &mut Option<SpareConnection>) -> bool {
        let fleets = self.open_fleets();
        let lanes: Vec<_> = fleets.iter().flat_map(|fleet| fleet.lanes()).collect();
        let nodes = self.cluster.nodes();
        let Some(ranges) = ask_for_slots(&self.config, &lanes, &nodes, spare).await else {
            return false;
        };
        self.cluster.learn(ranges);
        let nodes = self.cluster.nodes();
        for fleet in self.open_fleets() {
            fleet.prune(&nodes);
        }
        true
    }

    pub(crate) fn timers(&self) -> &Timers {
        &self.config.timers
    }

    /// The fleet of the current runtime, opened at first use. Fails if there is no runtime that can drive connections, and
    /// if the client is closed.
    pub(crate) fn callers_fleet(&self) -> Result<Arc<Fleet>, Error> {
        let runtime = Handle::try_current().map_err(|_| ConfigError::NoRuntime)?;
        let known = |fleets: &[(Id, Arc<Fleet>)]| {
            let is_live = |(id, fleet): &&(Id, Arc<Fleet>)| *id == runtime.id() && !fleet.is_over();
            let live = fleets.iter().find(is_live);
            live.map(|(_, fleet)| Arc::clone(fleet))
        };
        let fleet = self.fleets.lock().as_deref().map(known);
        if let Some(fleet) = fleet.ok_or(Error::Closed)? {
            return Ok(fleet);
        }
        if !drives_connections(runtime.id()) {
            return Err(ConfigError::NoRuntime.into());
        }
        let mut fleets = self.fleets.lock();
        let fleets = fleets.as_mut().ok_or(Error::Closed)?;
        // Another thread may have been quicker.
        if let Some(fleet) = known(fleets) {
            return Ok(fleet);
        }
        fleets.retain(|(_, fleet)| !fleet.is_over());
        let fleet = Fleet::open(self.config.clone(), Arc::clone(&self.cluster), &runtime);
        if fleet.is_over() {
            // The runtime is shutting down, and accepts no tasks.
            return Err(ConfigError::NoRuntime.into());
        }
        fleets.push((runtime.id(), Arc::clone(&fleet)));
        Ok(fleet)
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.open_fleets().iter().any(|fleet| fleet.is_connected())
    }

    /// Asks over each connection to the one server whether that is still a master.
    pub(crate) async fn check_roles(&self) {
        let fleets = self.open_fleets();
        let demoted = join_all(fleets.iter().map(|fleet| fleet.home().is_demoted())).await;
        if demoted.contains(&true) {
            log(|| tracing::warn!("the server is a replica now; looking for the master"));
        }
    }

    /// Another server is the master now: all connections to the old one are given up.
    pub(crate) fn switch(&self) {
        for fleet in self.open_fleets() {
            fleet.home().switch();
        }
    }

    /// The fleets of all runtimes. What is done to them may wake callers, which may run any code, so the lock is free.
    fn open_fleets(&self) -> Vec<Arc<Fleet>> {
        let fleets = self.fleets.lock();
        let callers = fleets.iter().flatten().map(|(_, fleet)| fleet);
        callers.chain([&self.keepers]).cloned().collect()
    }

    /// Ends all lanes for good. Called before the keeper's runtime ends, and the timers with it.
    pub(crate) fn close(&self) {
        self.config.timers.stop();
        let fleets = self.fleets.lock().take();
        for (_, fleet) in fleets.into_iter().flatten() {
            fleet.close();
        }
        self.keepers.close();
    }
}

/// Runtimes without timers or I/O. Tokio never uses an id twice.
static UNFIT: Mutex<Vec<Id>> = Mutex::new(Vec::new());

/// Whether the current runtime has timers and I/O. The only way to find out is to use them: tokio panics without them. So
/// each runtime is asked once. Connections on a thread of our own would need no question, but would add two changes of
/// threads to each command.
fn drives_connections(id: Id) -> bool {
    if UNFIT.lock().contains(&id) {
        return false;
    }
    let using = || {
        drop(tokio::time::sleep(Duration::ZERO));
        // Only a missing driver panics; other failures, such as too many open files, are errors.
        #[cfg(unix)]
        drop(tokio::net::UnixDatagram::unbound());
    };
    // Connections of a simulated world need no I/O.
    let is_fit = is_simulated() || catch_unwind(using).is_ok();
    if !is_fit {
        UNFIT.lock().push(id);
    }
    is_fit
}
