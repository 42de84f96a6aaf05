//! A node of a cluster, and how it is greeted on each new connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::address::Endpoint;
use super::connection::Connection;
use super::dial::Dialer;
use super::hello::Hello;
use crate::backend::failure::{Class, Failure};
use crate::config::Publish;

/// The first Redis version with sharded channels.
const SHARDED_SINCE: (u64, u64) = (7, 0);

pub(crate) struct ClusterNode {
    /// Larger than 0 and unique.
    pub(crate) number: u32,
    pub(crate) endpoint: Endpoint,
    /// Its id in the cluster, once a slot map named it.
    id: OnceLock<Box<str>>,
    pub(crate) dialer: Arc<Dialer>,
    /// How to publish, if the application set it.
    set: Option<Publish>,
    /// Whether it has sharded channels, by its last greeting.
    sharded: AtomicBool,
    /// It said that it cannot serve now. Perhaps it was cut off from its peers, and knows only old slots.
    cut_off: AtomicBool,
    /// Each command that another node sent here has a clone while it is under way.
    visits: Arc<()>,
}

impl ClusterNode {
    pub(crate) fn new(
        number: u32,
        endpoint: Endpoint,
        dialer: Dialer,
        set: Option<Publish>,
    ) -> Self {
        Self {
            number,
            endpoint,
            id: OnceLock::new(),
            dialer: Arc::new(dialer),
            set,
            sharded: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            visits: Arc::default(),
        }
    }

    /// Relaxed, also below: nothing is ordered by it.
    pub(crate) fn set_cut_off(&self, is_cut_off: bool) {
        self.cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    pub(crate) fn visit(&self) -> Arc<()> {
        Arc::clone(&self.visits)
    }

    pub(crate) fn is_visited(&self) -> bool {
        Arc::strong_count(&self.visits) > 1
    }

    /// Takes the id that a slot map gives it. False if it has another one.
    pub(crate) fn takes_id(&self, id: Option<&str>) -> bool {
        id.is_none_or(|id| **self.id.get_or_init(|| id.into()) == *id)
    }

    pub(crate) fn publish(&self) -> Publish {
        // Relaxed: a connection is handed out after its greeting.
        let known = if self.sharded.load(Ordering::Relaxed) {
            Publish::Sharded
        } else {
            Publish::Classic
        };
        self.set.unwrap_or(known)
    }

    /// Greets the node on a new connection: its version may have changed, or its address may belong to another server.
    pub(crate) async fn greet(&self, connection: &mut Connection) -> Result<(), Failure> {
        let greeted = Hello::with_id(connection).await;
        let (hello, id) = greeted.map_err(Failure::greeting)?;
        let known = self.id.get().zip(id);
        if !hello.is_in_cluster() || known.is_some_and(|(known, id)| **known != *id) {
            // It would accept keys that are not its own. Nothing was sent to it but the greeting.
            let text = "the address of the cluster node belongs to another server now";
            return Err(Failure::of(Class::Unreached, text));
        }
        let sharded = !hello.is_older_than(SHARDED_SINCE);
        self.sharded.store(sharded, Ordering::Relaxed);
        Ok(())
    }
}
