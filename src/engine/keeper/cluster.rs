//! Following a cluster: which node has which slot, and what a move means for holds and subscriptions.
//!
//! The keeper asks for all slots when something casts doubt on the map (a redirect, a broken connection, a subscription
//! that its node ended), and from time to time while anybody holds or waits for anything. It asks one question at a
//! time, with a pause between two: at first a short one, and about a second while the doubt lasts, as when a master is
//! down. Nobody waits for the answer.

use std::sync::Arc;
use std::time::Duration;

use super::Keeper;
use crate::backoff::Backoff;
use crate::clock::Moment;

/// The longest time between two questions while there is no doubt.
const PERIOD: Duration = Duration::from_secs(10);

/// The longest pause between two questions while there is doubt. With jitter the pauses are a second on average.
const PAUSE: Duration = Duration::from_millis(1_333);

/// After so long without a doubt the pauses begin again with the first.
const CALM: Duration = Duration::from_secs(5);

/// Follows the cluster until the client ends. Idle while there is no cluster.
pub(super) async fn keep(keeper: Arc<Keeper>) {
    let core = &keeper.core;
    let cluster = &core.backend.cluster;
    cluster.joined().await;
    // Who listens already does so where releases of a cluster are not published.
    keeper.hub.moved();
    core.look.notify_one();
    let mut pauses = Backoff::new().cap(PAUSE).delays(fastrand::u64(..));
    let (mut last, mut next) = (Moment::default(), Moment::default());
    let mut spare = None;
    loop {
        let period = PERIOD.mul_f64(0.8 + 0.2 * fastrand::f64());
        tokio::select! {
            biased;
            () = cluster.doubted() => {}
            () = tokio::time::sleep(period) => {
                spare = None;
                if !core.is_busy() {
                    continue;
                }
            }
        }
        tokio::time::sleep(core.now().until(next)).await;
        if last.until(core.now()) > CALM {
            pauses.reset();
        }
        let answered = core.backend.ask_for_slots(&mut spare).await;
        if !answered && core.is_busy() {
            cluster.doubt();
        }
        last = core.now();
        next = last + pauses.step();
        let moved = cluster.take_moved();
        if !moved.is_empty() {
            keeper.hub.moved();
            keeper.watchdog.verify_in(&moved);
            core.look.notify_one();
        }
    }
}
