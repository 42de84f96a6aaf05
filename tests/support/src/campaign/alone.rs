//! Owners that nobody competes with: they wait only for a fail-over, and for us.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::actor::Actor;
use super::ground::Ground;
use super::plan::{Level, Plan};
use super::weather::Watch;
use crate::checker::{Breach, Report, Violation, ns};
use crate::history::{Call, LockKind, Nanos, Record};

/// The numbers of these owners in each worker, beyond those of plans and scenes. Their names are mostly on different
/// masters.
pub(super) const OWNERS: Range<u32> = 5_000..5_004;

const NAMES: &str = "alone:";
/// How soon after a fail-over a caller must have its answer.
const GOES_ON: Duration = Duration::from_secs(1);

/// Takes a lock of its own and gives it back, all the time.
pub(super) async fn run(ground: Arc<Ground>, slot: usize, owner: u32, weather: Watch) {
    let plan = Plan {
        name: format!("{NAMES}{slot}:{owner}"),
        wait_ms: None,
        levels: vec![Level {
            kind: LockKind::Lock,
            lease_ms: None,
        }],
        downgrades: false,
        hold: Duration::ZERO,
        pause: Duration::from_millis(5),
    };
    while !weather.is_home() {
        let process = ground.slots[slot].worker();
        let _ = Actor::new(&ground, process, owner, &plan).section().await;
        tokio::time::sleep(plan.pause).await;
    }
}

/// The longest wait of any of them while nothing was wrong with the servers, and a violation for each that waited too
/// long. `faults` are the times in which something was wrong.
pub(super) fn check(
    records: &[Record],
    faults: &[(Nanos, Nanos)],
    blur: Duration,
    report: &mut Report,
) -> Nanos {
    let mut asked: HashMap<u64, &Record> = HashMap::new();
    let (mut longest, bound) = (0, ns(GOES_ON + blur));
    for record in records {
        match record {
            Record::Invoke { op, name, call, .. }
                if name.starts_with(NAMES) && matches!(call, Call::Acquire { .. }) =>
            {
                asked.insert(*op, record);
            }
            Record::Return { op, t, .. } => {
                let Some(invoke) = asked.remove(op) else {
                    continue;
                };
                let free_for = waited(invoke, *t, faults);
                longest = longest.max(free_for);
                if free_for > bound {
                    let breach = Breach::MissedWakeUp {
                        free_for,
                        bound,
                        clean: false,
                    };
                    report.violations.push(Violation {
                        breach,
                        name: NAMES.to_owned(),
                        evidence: vec![invoke.clone(), record.clone()],
                    });
                }
            }
            _ => {}
        }
    }
    longest
}

/// How long after the end of the last fault an answer at `t` came.
fn waited(invoke: &Record, t: Nanos, faults: &[(Nanos, Nanos)]) -> Nanos {
    let Record::Invoke { t: from, .. } = invoke else {
        return 0;
    };
    if faults
        .iter()
        .any(|(from, over)| (*from..=*over).contains(&t))
    {
        return 0;
    }
    let ends = faults.iter().map(|(_, over)| *over);
    let last = ends.filter(|over| *over < t).max().unwrap_or(0);
    t.saturating_sub(last.max(*from))
}
