//! The connection to one server for subscriptions: opened for the first subscription, closed after the last one.
//!
//! If the server refuses the connection, the password may be corrected later. So the hub tries again, with growing
//! pauses.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::PushInfo;
use tokio::sync::mpsc;

use super::listener::{Listener, Sink};
use crate::backend::{AttemptPace, Class, Cluster, Failure, LaneConfig};
use crate::backoff::{Backoff, Delays};
use crate::clock::Moment;
use crate::config::Publish;

/// The pauses before a refused connection or subscription is tried again.
pub(crate) fn refusals() -> Delays {
    let backoff = Backoff::new().base(Duration::from_secs(1));
    backoff
        .cap(Duration::from_secs(30))
        .delays(fastrand::u64(..))
}

/// Whether a failure is a refusal, which may last longer than an outage.
pub(crate) fn is_refusal(failure: &Failure) -> bool {
    matches!(failure.class, Class::Denied | Class::Rejected)
}

pub(super) struct HubConnection {
    config: LaneConfig,
    cluster: Arc<Cluster>,
    listener: Mutex<Option<Arc<Listener>>>,
    /// Held while a connection is being made, so that only one is.
    connecting: tokio::sync::Mutex<Connecting>,
}

struct Connecting {
    pace: AttemptPace,
    refusals: Delays,
    /// Why the last attempt failed, and until when: whoever came before waits for no other attempt. The server may be gone
    /// for good, with thousands who want to listen to it.
    failed: Option<(Failure, Moment)>,
}

impl HubConnection {
    pub(super) fn new(config: LaneConfig, cluster: &Arc<Cluster>) -> Arc<Self> {
        Arc::new(Self {
            cluster: Arc::clone(cluster),
            listener: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(Connecting {
                pace: AttemptPace::new(config.backoff, fastrand::u64(..)),
                refusals: refusals(),
                failed: None,
            }),
            config,
        })
    }

    /// The listener of the open connection, if there is one.
    pub(super) fn current(&self) -> Option<Arc<Listener>> {
        let listener = self.listener.lock().clone();
        listener.filter(|listener| !listener.is_closed())
    }

    /// The listener of the connection. Connects if there is none.
    pub(super) async fn listener(&self) -> Result<Arc<Listener>, Failure> {
        let came = self.config.clock.now();
        let mut connecting = self.connecting.lock().await;
        if let Some(listener) = self.current() {
            return Ok(listener);
        }
        if let Some((failure, until)) = &connecting.failed
            && came < *until
        {
            return Err(failure.clone());
        }
        let now = self.config.clock.now();
        tokio::time::sleep(connecting.pace.wait(now)).await;
        connecting.pace.attempt(self.config.clock.now());
        let connected = self.connect().await;
        let connected = self.config.metrics.connected("messages", connected);
        connecting.record(self.config.clock.now(), connected.as_ref().err());
        let timeout = self.config.command_timeout;
        let listener = Listener::start(connected?, Arc::clone(&self.cluster), timeout);
        *self.listener.lock() = Some(Arc::clone(&listener));
        Ok(listener)
    }

    async fn connect(&self) -> Result<(Sink, mpsc::UnboundedReceiver<PushInfo>), Failure> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = &self.config;
        let subscribing = config
            .dialer
            .subscribe(&config.timers, config.connect_timeout, sender);
        let mut connection = subscribing.await?;
        config.greet(&mut connection).await?;
        let node = config.node.as_ref();
        let sink = Sink {
            connection,
            publish: node.map_or(Publish::Classic, |node| node.publish()),
        };
        Ok((sink, pushes))
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        if let Some(listener) = self.current() {
            listener.end();
        }
    }
}

impl Connecting {
    /// Records the result of an attempt. A refusal is not repeated for a while.
    fn record(&mut self, now: Moment, failure: Option<&Failure>) {
        self.failed = failure.map(|failure| {
            let pause = if is_refusal(failure) {
                self.refusals.step()
            } else {
                Duration::ZERO
            };
            (failure.clone(), now + pause)
        });
        if failure.is_none() {
            self.refusals.reset();
        }
    }
}
