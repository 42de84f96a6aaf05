//! What happens to them: kill, freeze, flushed scripts, cut subscribers; in storms, with calms between.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::{Instant, sleep};
use watchlock_support::history::{Record, Scope};
use watchlock_support::now_ns;

use super::{Ground, SLOTS};

const STORM: Duration = Duration::from_secs(4);
const CALM: Duration = Duration::from_secs(2);

/// Faults until the time is over, none of them on the connection `spared`; how many of each kind.
pub(super) async fn rage(
    ground: &Ground,
    spared: &str,
    seed: u64,
    time: Duration,
) -> BTreeMap<&'static str, u32> {
    let mut rng = Rng::with_seed(seed);
    let mut faults = BTreeMap::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let storm = end.min(Instant::now() + STORM);
        while Instant::now() < storm {
            sleep(Duration::from_millis(rng.u64(20..200))).await;
            let fault = strike(ground, spared, &mut rng).await;
            *faults.entry(fault).or_default() += 1;
        }
        sleep(CALM).await;
    }
    faults
}

async fn strike(ground: &Ground, spared: &str, rng: &mut Rng) -> &'static str {
    let slot = &ground.slots[rng.usize(..SLOTS.len())];
    let time = Duration::from_millis(rng.u64(20..1_400));
    let from = now_ns();
    let (kind, scope) = match rng.u32(..16) {
        0 => {
            let scope = Scope::Client(slot.process().client);
            slot.replace().await;
            ("kill -9", scope)
        }
        1..5 => {
            let process = slot.process();
            process.worker.freeze();
            sleep(time).await;
            process.worker.resume();
            let (until, client) = (now_ns(), process.client);
            ground.recorder.push(Record::Frozen {
                from,
                until,
                client,
            });
            return "freeze";
        }
        5..11 => {
            ground.server.cmd(&["SCRIPT", "FLUSH"]).await;
            ("flush scripts", Scope::All)
        }
        _ => {
            cut_subscribers(ground, spared).await;
            ("cut subscribers", Scope::All)
        }
    };
    ground.recorder.push(Record::Fault {
        from,
        until: now_ns(),
        kind: kind.to_owned(),
        scope,
    });
    kind
}

/// All but the listener to expiries, which has to miss nothing.
async fn cut_subscribers(ground: &Ground, spared: &str) {
    for client in ground.server.clients().await {
        let subscribed = client.get("sub").is_some_and(|channels| channels != "0");
        if subscribed && client["id"] != spared {
            let _ = ground
                .server
                .try_cmd(&["CLIENT", "KILL", "ID", &client["id"]])
                .await;
        }
    }
}
