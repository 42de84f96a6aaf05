//! The lanes of one runtime: to the one server that there is, or to each node of a cluster.
//!
//! 1. The lane to a node is opened when something is to be sent there, and ends when the node leaves the cluster. What
//!    waits for its connection then was not sent.
//! 2. Until it is known that there is a cluster, everything goes by the lane *home*. It rests from then on.
//! 3. A closed fleet opens no lane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::runtime::Handle;

use super::cluster::{Cluster, Node};
use super::failure::Failure;
use super::lane::{Lane, LaneConfig};
use crate::slot::Target;

pub(crate) struct Fleet {
    home: Arc<Lane>,
    runtime: Handle,
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// By the number of the node; none once it is closed.
    lanes: RwLock<Option<Lanes>>,
}

type Lanes = Vec<(u32, Arc<Lane>)>;

impl Fleet {
    /// One on `runtime`, not connected yet.
    pub(crate) fn open(config: LaneConfig, cluster: Arc<Cluster>, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            home: Lane::open(config.clone(), runtime),
            runtime: runtime.clone(),
            config,
            cluster,
            lanes: RwLock::new(Some(Vec::new())),
        })
    }

    /// The lane for a command.
    pub(crate) fn lane(&self, target: Target) -> Result<Arc<Lane>, Failure> {
        if !self.cluster.is_joined() {
            return Ok(Arc::clone(&self.home));
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
        Ok(self.lane_to(&node))
    }

    /// The lane to a node.
    pub(super) fn lane_to(&self, node: &Arc<Node>) -> Arc<Lane> {
        let find = |lanes: &[(u32, Arc<Lane>)]| {
            let mut known = lanes.iter();
            let known = known.find(|(number, lane)| *number == node.number && !lane.is_over());
            known.map(|(_, lane)| Arc::clone(lane))
        };
        if let Some(lane) = self.lanes.read().as_deref().and_then(find) {
            return lane;
        }
        let mut lanes = self.lanes.write();
        let Some(lanes) = lanes.as_mut() else {
            return Arc::clone(&self.home);
        };
        // Another thread may have been quicker.
        if let Some(lane) = find(lanes) {
            return lane;
        }
        self.home.rest();
        lanes.retain(|(_, lane)| !lane.is_over());
        let lane = Lane::open(self.config.to(node), &self.runtime);
        lanes.push((node.number, Arc::clone(&lane)));
        lane
    }

    /// Gives up the connection home if there is a cluster.
    pub(crate) fn settle(&self) {
        if self.cluster.is_joined() {
            self.home.rest();
        }
    }

    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// The lane to the one server, or to whichever address was given.
    pub(crate) fn home(&self) -> &Arc<Lane> {
        &self.home
    }

    /// For how long an answer may wait for replicas.
    pub(crate) fn acknowledged_within(&self) -> Duration {
        self.config.acks.map_or(Duration::ZERO, |acks| acks.within)
    }

    /// All that are in use.
    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        if !self.cluster.is_joined() {
            return vec![Arc::clone(&self.home)];
        }
        let lanes = self.lanes.read();
        let lanes = lanes.iter().flatten();
        lanes.map(|(_, lane)| Arc::clone(lane)).collect()
    }

    /// The nodes of a cluster, by their numbers, that a lane leads to.
    pub(crate) fn reached(&self) -> BTreeSet<u32> {
        let lanes = self.lanes.read();
        lanes.iter().flatten().map(|(number, _)| *number).collect()
    }

    /// Those on which nothing was heard for `span`.
    pub(crate) fn quiet(&self, span: Duration) -> Vec<Arc<Lane>> {
        let quiet = |lane: &&Arc<Lane>| lane.is_silent_for(span);
        if !self.cluster.is_joined() {
            return Some(&self.home)
                .filter(quiet)
                .cloned()
                .into_iter()
                .collect();
        }
        let lanes = self.lanes.read();
        let lanes = lanes.iter().flatten().map(|(_, lane)| lane);
        lanes.filter(quiet).cloned().collect()
    }

    /// Ends the lanes to nodes that left.
    pub(super) fn prune(&self, nodes: &[Arc<Node>]) {
        let mut lanes = self.lanes.write();
        let left = lanes.iter_mut().flat_map(|lanes| {
            lanes.extract_if(.., |(number, _)| {
                nodes.iter().all(|node| node.number != *number)
            })
        });
        for (_, lane) in left {
            lane.retire();
        }
    }

    /// Whether its runtime has ended, or it is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.home.is_over()
    }

    /// Ends all of them.
    pub(crate) fn close(&self) {
        self.home.close();
        let lanes = self.lanes.write().take();
        for (_, lane) in lanes.into_iter().flatten() {
            lane.close();
        }
    }
}
