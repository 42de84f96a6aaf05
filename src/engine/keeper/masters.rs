//! Following a fail-over: one task for each sentinel listens for a new master.
//!
//! 1. The keeper listens to every sentinel, so it depends on no single one. A sentinel may announce a switch while the
//!    keeper is not subscribed. So the keeper also asks for the master as soon as it is subscribed, and once more after
//!    a connect time-out, because a connection that was being made meanwhile may have reached the old master.
//! 2. Each new connection asks the sentinels, too, and may be the first to reach the new master.
//! 3. After a switch, all connections to the old master are replaced, and every hold is verified at the new one.
//! 4. The tasks end with the keeper. Attempts to connect are paced.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubSink};
use tokio::task::JoinSet;

use super::Keeper;
use crate::backend::{AttemptPace, Class, Failure, Sentinels};
use crate::host::own;
use crate::log::log;

/// The longest pause between two attempts to listen to a sentinel.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// How often a quiet sentinel is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

/// Starts the tasks, if sentinels are configured.
pub(super) fn watch(keeper: &Arc<Keeper>, tasks: &mut JoinSet<()>) {
    let sentinels = keeper.core.backend.config.dialer.sentinels();
    for index in 0..sentinels.map_or(0, Sentinels::len) {
        tasks.spawn(own(listen(Arc::clone(keeper), index)));
    }
    if sentinels.is_some() {
        tasks.spawn(own(follow_connections(Arc::clone(keeper))));
    }
}

/// Switches when a new connection reached another master. New connections are paced, so this cannot happen too often.
async fn follow_connections(keeper: Arc<Keeper>) {
    loop {
        keeper.core.backend.config.dialer.found_elsewhere().await;
        switched(&keeper);
    }
}

async fn listen(keeper: Arc<Keeper>, index: usize) {
    let config = &keeper.core.backend.config;
    let Some(sentinels) = config.dialer.sentinels() else {
        return;
    };
    let mut pace = AttemptPace::new(
        keeper.core.config.backoff.at_most(LISTEN_AGAIN),
        index as u64,
    );
    let mut warned = false;
    loop {
        tokio::time::sleep(pace.wait(keeper.core.now())).await;
        pace.attempt(keeper.core.now());
        let connecting = tokio::time::timeout(config.connect_timeout, sentinels.listen(index));
        match connecting.await {
            Ok(Ok(messages)) => follow_messages(&keeper, messages).await,
            Ok(Err(failure)) => warn_of_denial(&failure, &mut warned),
            Err(_) => {}
        }
    }
}

/// Reads the messages of one sentinel until its connection ends.
async fn follow_messages(keeper: &Keeper, messages: PubSub) {
    let dialer = &keeper.core.backend.config.dialer;
    let (sink, mut messages) = messages.split();
    let silence = silence(sink, keeper.core.config.command_timeout);
    let mut silence = std::pin::pin!(silence);
    let mut asking = std::pin::pin!(ask_twice(keeper).fuse());
    loop {
        let message = tokio::select! {
            biased;
            () = &mut asking => continue,
            () = &mut silence => None,
            message = messages.next() => message,
        };
        let Some(message) = message else { return };
        let place = dialer
            .sentinels()
            .and_then(|sentinels| sentinels.switched_to(&message));
        if place.is_some_and(|place| dialer.switch_to(&place)) {
            switched(keeper);
        }
    }
}

async fn ask_twice(keeper: &Keeper) {
    let config = &keeper.core.backend.config;
    let limit = config.connect_timeout;
    // By the second question no attempt goes on by what the sentinels said before the first one.
    for pause in [Duration::ZERO, config.dialer.limit(limit)] {
        tokio::time::sleep(pause).await;
        if config.dialer.look_for_switch(&config.timers, limit).await {
            switched(keeper);
        }
    }
}

/// Returns when the sentinel does not answer a ping any more.
async fn silence(mut sink: PubSubSink, timeout: Duration) {
    loop {
        tokio::time::sleep(PING).await;
        let pong = tokio::time::timeout(timeout, sink.ping::<redis::Value>()).await;
        let answered = match pong {
            Ok(Ok(_)) => true,
            // A denial is an answer, too.
            Ok(Err(error)) => Failure::from(error).class == Class::Denied,
            Err(_) => false,
        };
        if !answered {
            return;
        }
    }
}

fn warn_of_denial(failure: &Failure, warned: &mut bool) {
    if failure.class == Class::Denied && !std::mem::replace(warned, true) {
        let cause = failure.clone();
        log(move || {
            tracing::warn!(
                %cause,
                "a sentinel denies the subscription to fail-overs: allow SUBSCRIBE and the channel in its ACL"
            );
        });
    }
}

/// Leaves the old master: replaces all connections, and verifies every hold.
fn switched(keeper: &Keeper) {
    keeper.core.backend.switch();
    keeper.hub.close();
    keeper.watchdog.verify_at(&BTreeSet::from([0]));
    keeper.core.look.notify_one();
}
