//! Going over to another master: a watch at each sentinel.
//!
//! 1. Each sentinel tells for itself, so that none of them is needed. What it told while nobody listened is made good
//!    by asking, as soon as somebody listens again; and once more a moment later, for those who connected meanwhile.
//! 2. Each new connection asks, too, and may be the first that is sent to the new master.
//! 3. When the master changed, nothing leads to the old one any more, and each hold is asked for at the new one.
//! 4. A watch ends with the keeper, whose task it is; from one attempt to connect to the next at least a delay passes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSub, PubSubSink};
use tokio::task::JoinSet;

use super::{Keeper, renewals};
use crate::backend::Sentinels;
use crate::backend::{AttemptPace, Class, Failure};

/// The longest pause between two attempts to listen to a sentinel.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// Longer than anybody asks the sentinels for a connection.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How often a quiet sentinel is asked whether it is still there.
const PING: Duration = Duration::from_secs(5);

/// Begins to watch, where sentinels say which server is the master.
pub(super) fn watch(keeper: &Arc<Keeper>, chores: &mut JoinSet<()>) {
    let sentinels = keeper.core.backend.config().dialer.sentinels();
    for index in 0..sentinels.map_or(0, Sentinels::len) {
        chores.spawn(listen(Arc::clone(keeper), index));
    }
    if sentinels.is_some() {
        chores.spawn(follow(Arc::clone(keeper)));
    }
}

/// Moves everything over when a new connection was sent to another master. That cannot happen more often than
/// connections are made, which is paced.
async fn follow(keeper: Arc<Keeper>) {
    loop {
        keeper.core.backend.config().dialer.found_elsewhere().await;
        switched(&keeper);
    }
}

async fn listen(keeper: Arc<Keeper>, index: usize) {
    let config = keeper.core.backend.config();
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
            Ok(Ok(told)) => {
                if config.dialer.look_for_switch().await {
                    switched(&keeper);
                }
                hear(&keeper, told).await;
            }
            Ok(Err(failure)) => warn_of_denial(&failure, &mut warned),
            Err(_) => {}
        }
    }
}

/// Hears one sentinel until its connection ends.
async fn hear(keeper: &Keeper, told: PubSub) {
    let dialer = &keeper.core.backend.config().dialer;
    let (sink, mut messages) = told.split();
    let silence = silence(sink, keeper.core.config.command_timeout);
    let mut silence = std::pin::pin!(silence);
    let mut once_more = std::pin::pin!(look_once_more(keeper).fuse());
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = &mut silence => None,
            () = &mut once_more => continue,
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

async fn look_once_more(keeper: &Keeper) {
    tokio::time::sleep(LOOK_AGAIN).await;
    if keeper.core.backend.config().dialer.look_for_switch().await {
        switched(keeper);
    }
}

/// Ends when the sentinel answers no more.
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
        tracing::warn!(
            cause = %failure,
            "a sentinel denies to tell of fail-overs: allow SUBSCRIBE and the channel in its ACL"
        );
    }
}

fn switched(keeper: &Keeper) {
    keeper.core.backend.switch();
    keeper.core.keeper_fleet.home().switch();
    keeper.hub.close();
    renewals::verify_at(keeper, &BTreeSet::from([0]));
    keeper.core.look.notify_one();
}
