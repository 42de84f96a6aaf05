//! The way to one server for subscriptions: one connection, opened for the first of them and closed after the last.
//!
//! A password may be mended later: connecting that was refused is tried again, ever more rarely.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::listener::Listener;
use super::wire::{self, Sink, Stream};
use super::{is_refusal, refusals};
use crate::backend::{AttemptPace, Failure, LaneConfig};
use crate::backend::{Cluster, ClusterNode};
use crate::backoff::Delays;
use crate::clock::Moment;

pub(super) struct Spoke {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    /// None for the one server.
    node: Option<Arc<ClusterNode>>,
    listener: Mutex<Option<Arc<Listener>>>,
    /// Held while a connection is being made, so that there is one.
    connecting: tokio::sync::Mutex<Connecting>,
}

struct Connecting {
    pace: AttemptPace,
    refusals: Delays,
    /// The last attempt was refused; the next one is not made before then.
    refused: Option<(Failure, Moment)>,
}

impl Spoke {
    pub(super) fn new(
        config: &LaneConfig,
        cluster: &Arc<Cluster>,
        node: Option<Arc<ClusterNode>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config: config.clone(),
            cluster: Arc::clone(cluster),
            node,
            listener: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(Connecting {
                pace: AttemptPace::new(config.backoff, fastrand::u64(..)),
                refusals: refusals(),
                refused: None,
            }),
        })
    }

    pub(super) fn current(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock().clone();
        listener.filter(|listener| !listener.is_over())
    }

    /// The connection, which is made if there is none.
    pub(super) async fn listener(&self) -> Result<Arc<Listener>, Failure> {
        let mut connecting = self.connecting.lock().await;
        if let Some(listener) = self.current() {
            return Ok(listener);
        }
        let now = self.config.clock.now();
        if let Some((failure, until)) = &connecting.refused
            && now < *until
        {
            return Err(failure.clone());
        }
        tokio::time::sleep(connecting.pace.wait(now)).await;
        connecting.pace.attempt(self.config.clock.now());
        let connected = self.connect().await;
        connecting.heard(self.config.clock.now(), connected.as_ref().err());
        let timeout = self.config.command_timeout;
        let listener = Listener::start(connected?, Arc::clone(&self.cluster), timeout);
        *self.listener.lock() = Some(Arc::clone(&listener));
        Ok(listener)
    }

    async fn connect(&self) -> Result<(Sink, Stream), Failure> {
        let limit = self.config.connect_timeout;
        let Some(node) = &self.node else {
            let pubsub = self.config.dialer.subscribe(limit).await?;
            return Ok(wire::to_server(pubsub));
        };
        let (sender, pushes) = mpsc::unbounded_channel();
        let connection = node.subscribe(limit, sender).await?;
        Ok(wire::to_node(connection, node.publish(), pushes))
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        if let Some(listener) = self.current() {
            listener.end();
        }
    }
}

impl Connecting {
    /// What came of an attempt.
    fn heard(&mut self, now: Moment, failure: Option<&Failure>) {
        match failure {
            Some(failure) if is_refusal(failure) => {
                let until = now + self.refusals.step();
                self.refused = Some((failure.clone(), until));
            }
            Some(_) => self.refused = None,
            None => {
                self.refused = None;
                self.refusals.reset();
            }
        }
    }
}
