//! A node of a cluster, and how it is greeted on each new connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::PushInfo;
use tokio::sync::mpsc::UnboundedSender;

use super::address::Endpoint;
use super::connection::Connection;
use super::dial::Dialer;
use super::hello::Hello;
use crate::backend::failure::Failure;
use crate::config::Publish;

/// The first Redis version with sharded channels.
const SHARDED_SINCE: (u64, u64) = (7, 0);

/// A node of a cluster.
pub(crate) struct ClusterNode {
    /// Larger than 0 and unique.
    number: u32,
    endpoint: Endpoint,
    dialer: Arc<Dialer>,
    /// How to publish, if the application set it.
    set: Option<Publish>,
    /// Whether it has sharded channels, by its last greeting.
    sharded: AtomicBool,
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
            dialer: Arc::new(dialer),
            set,
            sharded: AtomicBool::new(false),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(crate) fn dialer(&self) -> &Arc<Dialer> {
        &self.dialer
    }

    pub(crate) fn host(&self) -> &str {
        &self.endpoint.host
    }

    /// How releases are published there.
    pub(crate) fn publish(&self) -> Publish {
        // Relaxed: a connection is handed out after its greeting.
        let known = if self.sharded.load(Ordering::Relaxed) {
            Publish::Sharded
        } else {
            Publish::Classic
        };
        self.set.unwrap_or(known)
    }

    /// A greeted connection for subscriptions. Messages go to `pushes`.
    pub(crate) async fn subscribe(
        &self,
        limit: Duration,
        pushes: UnboundedSender<PushInfo>,
    ) -> Result<Connection, Failure> {
        let mut connection = self.dialer.subscribe_to_slots(limit, pushes).await?;
        self.greet(&mut connection, limit).await?;
        Ok(connection)
    }

    /// Greets the node on a new connection: its version may have changed.
    pub(crate) async fn greet(
        &self,
        connection: &mut Connection,
        limit: Duration,
    ) -> Result<(), Failure> {
        let greeting = tokio::time::timeout(limit, Hello::of(connection)).await;
        let hello = greeting.unwrap_or_else(|_| Err(Failure::slow_connect()));
        let hello = hello.map_err(Failure::greeting)?;
        if !hello.is_in_cluster() {
            // Another server has its address now, and would accept any key.
            return Err(Failure::no_node());
        }
        let sharded = !hello.is_older_than(SHARDED_SINCE);
        self.sharded.store(sharded, Ordering::Relaxed);
        Ok(())
    }
}
