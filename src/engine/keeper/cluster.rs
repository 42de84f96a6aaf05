//! Following a cluster: which node has which slot, and what a move means for holds and subscriptions.
//!
//! The keeper asks for all slots when something casts doubt on the map (a redirect, a broken connection, a subscription
//! that its node ended), and from time to time while anybody holds or waits for anything. It asks one question at a
//! time, with a pause between two. Nobody waits for the answer.

use std::sync::Arc;
use std::time::Duration;

use super::shared::Keeper;
use crate::backend::AttemptPace;

/// The longest time between two questions while there is no doubt.
const PERIOD: Duration = Duration::from_secs(10);

/// Follows the cluster until the client ends. Idle while there is no cluster.
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
            keeper.watchdog.verify_in(&moved);
            core.look.notify_one();
        }
    }
}
