//! Keeping up with a cluster: which node has which slot, and what follows for holds and subscriptions.
//!
//! All slots are asked for when there is a reason to doubt what is known (a redirect, a connection that broke, a
//! subscription that was ended by its node), and now and then while anything is held or waited for. One question is
//! under way at a time, and a pause lies between two. Nobody waits for the answer.

use std::sync::Arc;
use std::time::Duration;

use super::{Keeper, renewals};
use crate::backend::AttemptPace;

/// How often all slots are asked for without a reason, at the longest.
const PERIOD: Duration = Duration::from_secs(10);

/// The task of a client, from when there is a cluster to the end.
pub(super) async fn keep(keeper: Arc<Keeper>) {
    let core = &keeper.core;
    let cluster = core.backend.cluster();
    cluster.joined().await;
    let mut pace = AttemptPace::new(core.backend.config().backoff, fastrand::u64(..));
    loop {
        let period = PERIOD.mul_f64(0.8 + 0.2 * fastrand::f64());
        tokio::select! {
            () = cluster.doubted() => {}
            () = tokio::time::sleep(period) => {
                if !core.is_busy() {
                    continue;
                }
            }
        }
        tokio::time::sleep(pace.wait(core.now())).await;
        pace.attempt(core.now());
        if !core.backend.ask_for_slots(&core.keeper_fleet).await && core.is_busy() {
            cluster.doubt();
        }
        let moved = cluster.take_moved();
        if !moved.is_empty() {
            keeper.hub.moved();
            renewals::verify_in(&keeper, &moved);
            core.look.notify_one();
        }
    }
}
