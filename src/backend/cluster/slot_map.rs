//! Which node of a cluster has which slot.
//!
//! 1. A command is sent by the map as it is and never waits for a newer one. If the map is wrong, the node redirects the
//!    command, which did not run: the map is corrected and the command sent again.
//! 2. The keeper asks for all slots when the map is in doubt, and from time to time.
//! 3. A slot that moved is remembered until the keeper has checked the holds and subscriptions in it: the new node may
//!    lack data of the old one.
//! 4. A slot that no node claims stays with its last node, which can redirect.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, SetOnce};

use crate::backend::connect::{ClusterNode, Dialer, Endpoint, Range, Redirect};
use crate::backend::failure::application;
use crate::config::Publish;
use crate::slot::{SLOTS, Slot};

/// Maps the host and port that a node announces to those where it can be reached.
pub(crate) type NodeAddress = Arc<dyn Fn(&str, u16) -> (String, u16) + Send + Sync>;

/// The slots and nodes of a cluster, once it is known that there is one.
pub(crate) struct Cluster {
    template: Arc<Dialer>,
    addresses: Option<NodeAddress>,
    publish: Option<Publish>,
    joined: SetOnce<()>,
    map: RwLock<Map>,
    moved: Mutex<BTreeSet<Slot>>,
    doubted: Notify,
    numbers: AtomicU32,
}

#[derive(Default)]
struct Map {
    /// One entry for each slot, or none at all.
    slots: Vec<Option<Arc<ClusterNode>>>,
    nodes: Vec<Arc<ClusterNode>>,
}

impl Cluster {
    /// Not joined yet. Connections to nodes are made as `template` makes them.
    pub(crate) fn new(
        template: Arc<Dialer>,
        addresses: Option<NodeAddress>,
        publish: Option<Publish>,
    ) -> Self {
        Self {
            template,
            addresses,
            publish,
            joined: SetOnce::new(),
            map: RwLock::default(),
            moved: Mutex::default(),
            doubted: Notify::new(),
            numbers: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_joined(&self) -> bool {
        self.joined.initialized()
    }

    pub(crate) async fn joined(&self) {
        self.joined.wait().await;
    }

    pub(crate) fn node_of(&self, slot: Slot) -> Option<Arc<ClusterNode>> {
        self.map.read().slots.get(slot.index())?.clone()
    }

    /// The number of the node that has `slot`. Cheaper, for callers with very many slots.
    pub(crate) fn number_of(&self, slot: Slot) -> Option<u32> {
        let map = self.map.read();
        let node = map.slots.get(slot.index())?.as_ref();
        node.map(|node| node.number)
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<ClusterNode>> {
        self.map.read().nodes.clone()
    }

    /// There is a cluster with these slots.
    pub(crate) fn join(&self, ranges: Vec<Range>) {
        self.learn(ranges);
        // A thread that sees it also sees the first map. A later greeting finds it set.
        let _ = self.joined.set(());
    }

    /// Replaces the map by the answer of a node.
    pub(crate) fn learn(&self, ranges: Vec<Range>) {
        let mapped = ranges
            .into_iter()
            .map(|range| (self.address(&range.endpoint), range));
        // Before the lock: the application's code maps addresses.
        let ranges: Vec<_> = mapped.collect();
        let mut map = self.map.write();
        let mut nodes: Vec<Arc<ClusterNode>> = Vec::new();
        let mut slots = vec![None; SLOTS.into()];
        for (endpoint, range) in ranges {
            let Range { first, last, .. } = range;
            let id = range.id.as_deref();
            let node = find(&nodes, &endpoint, id).or_else(|| find(&map.nodes, &endpoint, id));
            let node = node.unwrap_or_else(|| self.new_node(endpoint, &range.endpoint.host));
            node.takes_id(id);
            slots[first.index()..=last.index()].fill(Some(Arc::clone(&node)));
            add(&mut nodes, node);
        }
        let mut moved = self.moved.lock();
        for (number, (before, now)) in (0..).zip(map.slots.iter().zip(&mut slots)) {
            match (before, &now) {
                (Some(before), Some(now)) if before.number != now.number => {
                    moved.extend(Slot::new(number));
                }
                (Some(before), None) => {
                    *now = Some(Arc::clone(before));
                    add(&mut nodes, Arc::clone(before));
                }
                _ => {}
            }
        }
        // While a slot migrates, commands go to a node that may have none yet.
        for node in map.nodes.iter().filter(|node| node.is_visited()) {
            add(&mut nodes, Arc::clone(node));
        }
        *map = Map { slots, nodes };
    }

    /// The node that a redirect leads to. A `MOVED` corrects the map.
    pub(crate) fn redirected(&self, redirect: Redirect) -> Arc<ClusterNode> {
        let Redirect {
            slot,
            endpoint: named,
            asking,
        } = redirect;
        let endpoint = self.address(&named);
        let mut map = self.map.write();
        let node = find(&map.nodes, &endpoint, None).unwrap_or_else(|| {
            let node = self.new_node(endpoint, &named.host);
            map.nodes.push(Arc::clone(&node));
            node
        });
        if !asking && let Some(known) = map.slots.get_mut(slot.index()) {
            let before = known.replace(Arc::clone(&node));
            if before.is_some_and(|before| before.number != node.number) {
                self.moved.lock().insert(slot);
            }
            self.doubt();
        }
        node
    }

    /// The map may be wrong.
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    pub(crate) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    pub(crate) fn take_moved(&self) -> BTreeSet<Slot> {
        std::mem::take(&mut *self.moved.lock())
    }

    fn new_node(&self, endpoint: Endpoint, named: &str) -> Arc<ClusterNode> {
        let dialer = self.template.at(&endpoint, named);
        // Relaxed: the numbers only have to be unique.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(ClusterNode::new(number, endpoint, dialer, self.publish))
    }

    /// Where to connect to a node. The map is code of the application; if it panics, the node's own address is used.
    fn address(&self, named: &Endpoint) -> Endpoint {
        let Some(addresses) = &self.addresses else {
            return named.clone();
        };
        match application::call(|| addresses(&named.host, named.port)) {
            Some((host, port)) => Endpoint::new(&host, port),
            None => named.clone(),
        }
    }
}

/// The node at `endpoint`, unless that belongs to the node with another `id` now.
fn find(
    nodes: &[Arc<ClusterNode>],
    endpoint: &Endpoint,
    id: Option<&str>,
) -> Option<Arc<ClusterNode>> {
    let mut nodes = nodes.iter();
    nodes
        .find(|node| node.endpoint == *endpoint && node.takes_id(id))
        .cloned()
}

fn add(nodes: &mut Vec<Arc<ClusterNode>>, node: Arc<ClusterNode>) {
    if nodes.iter().all(|known| known.number != node.number) {
        nodes.push(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn cluster(addresses: Option<NodeAddress>) -> Cluster {
        let template = Dialer::from_url("redis://127.0.0.1/", None).unwrap();
        Cluster::new(Arc::new(template), addresses, None)
    }

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn endpoint(port: u16) -> Endpoint {
        Endpoint::new("a", port)
    }

    fn range(first: u16, last: u16, port: u16) -> Range {
        Range {
            first: slot(first),
            last: slot(last),
            endpoint: endpoint(port),
            id: None,
        }
    }

    fn redirect(number: u16, port: u16, asking: bool) -> Redirect {
        Redirect {
            slot: slot(number),
            endpoint: endpoint(port),
            asking,
        }
    }

    fn port_of(cluster: &Cluster, number: u16) -> Option<u16> {
        cluster.node_of(slot(number)).map(|node| node.endpoint.port)
    }

    #[test]
    fn slots_are_where_they_were_said_to_be() {
        let cluster = cluster(None);
        assert!(!cluster.is_joined());
        assert_eq!(port_of(&cluster, 0), None);
        cluster.join(vec![
            range(0, 99, 1),
            range(100, 199, 2),
            range(300, 399, 1),
        ]);
        assert!(cluster.is_joined());
        let ports = [0, 99, 100, 199, 200, 300].map(|number| port_of(&cluster, number));
        assert_eq!(ports, [Some(1), Some(1), Some(2), Some(2), None, Some(1)]);
        assert_eq!(cluster.nodes().len(), 2);
        assert!(cluster.take_moved().is_empty(), "nothing was elsewhere");
    }

    #[test]
    fn what_changed_its_node_is_reported_once() {
        let cluster = cluster(None);
        cluster.join(vec![range(0, 99, 1), range(100, 199, 2)]);
        let first = cluster.node_of(slot(0)).unwrap().number;
        cluster.learn(vec![range(0, 97, 1), range(98, 199, 2)]);
        let moved = cluster.take_moved();
        assert_eq!(moved, BTreeSet::from([slot(98), slot(99)]));
        assert!(cluster.take_moved().is_empty());
        assert_eq!(cluster.node_of(slot(0)).unwrap().number, first);
        cluster.learn(vec![range(0, 199, 3)]);
        assert_eq!(cluster.take_moved().len(), 200);
        assert_eq!(cluster.nodes().len(), 1, "the others left");
    }

    #[test]
    fn a_slot_that_nobody_has_stays_where_it_was() {
        let cluster = cluster(None);
        cluster.join(vec![range(0, 99, 1), range(100, 199, 2)]);
        cluster.learn(vec![range(0, 99, 3)]);
        assert_eq!(port_of(&cluster, 150), Some(2));
        assert_eq!(cluster.nodes().len(), 2);
        assert_eq!(cluster.take_moved().len(), 100);
    }

    #[test]
    fn moved_corrects_a_slot_and_ask_does_not() {
        let cluster = cluster(None);
        cluster.join(vec![range(0, 99, 1), range(100, 199, 2)]);
        let asked = cluster.redirected(redirect(7, 9, true));
        assert_eq!((asked.endpoint.port, port_of(&cluster, 7)), (9, Some(1)));
        assert!(cluster.take_moved().is_empty());
        let is_doubted = || cluster.doubted().now_or_never().is_some();
        assert!(!is_doubted());
        let moved = cluster.redirected(redirect(7, 9, false));
        assert!(is_doubted(), "the keeper is notified");
        assert_eq!(moved.number, asked.number, "it is known");
        assert_eq!(
            (port_of(&cluster, 7), port_of(&cluster, 8)),
            (Some(9), Some(1))
        );
        assert_eq!(cluster.take_moved(), BTreeSet::from([slot(7)]));
        cluster.redirected(redirect(7, 9, false));
        assert!(cluster.take_moved().is_empty());
    }

    #[test]
    fn an_address_of_another_node_is_another_node() {
        let cluster = cluster(None);
        let named = |id: &str| Range {
            id: Some(id.into()),
            ..range(0, 99, 1)
        };
        let node = || cluster.node_of(slot(0)).unwrap().number;
        cluster.join(vec![range(0, 99, 1)]);
        let first = node();
        for same in [named("a"), named("a"), range(0, 99, 1)] {
            cluster.learn(vec![same]);
            assert_eq!(node(), first, "it gets its id, and keeps it");
        }
        assert!(cluster.take_moved().is_empty());
        cluster.learn(vec![named("b")]);
        assert_ne!(node(), first);
        assert_eq!(cluster.take_moved().len(), 100, "its holds are verified");
        assert_eq!(cluster.nodes().len(), 1);
    }

    #[test]
    fn announced_addresses_are_mapped_and_a_map_may_panic() {
        let map: NodeAddress = Arc::new(|_, port| {
            assert_ne!(port, 2, "unknown");
            ("b".to_owned(), port + 1000)
        });
        let cluster = cluster(Some(map));
        cluster.join(vec![range(0, 99, 1), range(100, 199, 2)]);
        let node_of = |number| cluster.node_of(slot(number)).unwrap();
        let host_of = |number| node_of(number).endpoint.host.clone();
        assert_eq!((port_of(&cluster, 0), host_of(0)), (Some(1001), "b".into()));
        assert_eq!(
            (port_of(&cluster, 100), host_of(100)),
            (Some(2), "a".into())
        );
        assert_eq!(
            node_of(0).dialer.host(),
            "a",
            "what it says without a host is mapped once"
        );
        assert_eq!(
            cluster.redirected(redirect(7, 4, false)).endpoint.port,
            1004
        );
    }
}
