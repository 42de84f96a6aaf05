//! An outage: the server ends while one client holds very many locks; when are their holders notified?

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use super::holding::name;
use super::wait_for_go;
use crate::Result;
use crate::locks::{LockUnderTest, OUTAGE_LEASE, Watched};
use crate::stats::percentile;
use crate::usage::resident_bytes;

/// How many holds are taken at once.
const TOGETHER: usize = 64;
/// From the first hold to the end of the server: each was renewed at least once.
const HELD: Duration = Duration::from_secs(4);

/// What the holders of locks notice of an outage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outage {
    /// How long after the end of its validity a holder was notified, in ms; before it, when negative.
    pub(crate) notified: Lateness,
    /// How late as many tasks woke that only slept until the same moments.
    pub(crate) slept: Lateness,
    /// Memory of the process before the server ended, and the most until all were notified.
    pub(crate) before_bytes: u64,
    pub(crate) most_bytes: u64,
    /// Holders that were not notified.
    pub(crate) unnotified: usize,
}

/// In ms.
#[expect(clippy::struct_field_names, reason = "the unit")]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Lateness {
    pub(crate) least_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) most_ms: f64,
}

/// `None` when the entrant does not report losses.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    holds: usize,
    each: usize,
) -> Result<Option<Outage>> {
    let short = lock.with_short_lease(url).await?;
    wait_for_go();
    let Some(lock) = short else {
        return Ok(None);
    };
    let start = Instant::now();
    let held = take(&lock, holds).await?;
    sleep(HELD.saturating_sub(start.elapsed())).await;

    let before_bytes = resident_bytes();
    end_server(url)?;
    let mut ends = Vec::with_capacity(holds);
    let mut holders = JoinSet::new();
    for hold in held.iter().step_by(each) {
        let end = Instant::now() + hold.valid_for();
        ends.push(end);
        let hold = Arc::clone(hold);
        holders.spawn(async move {
            hold.lost().await;
            since(end, Instant::now())
        });
    }
    let mut most_bytes = before_bytes;
    let mut notified = Vec::new();
    let _ = timeout(2 * OUTAGE_LEASE, async {
        loop {
            tokio::select! {
                one = holders.join_next() => match one {
                    Some(late) => notified.extend(late),
                    None => break,
                },
                () = sleep(Duration::from_millis(50)) => {}
            }
            if notified.len() % 100 == 0 {
                most_bytes = most_bytes.max(resident_bytes());
            }
        }
    })
    .await;
    Ok(Some(Outage {
        unnotified: ends.len() - notified.len(),
        notified: Lateness::of(&notified),
        slept: sleepers(&ends).await,
        before_bytes,
        most_bytes,
    }))
}

/// `moment` after `end`, in ms.
fn since(end: Instant, moment: Instant) -> f64 {
    let after = moment.saturating_duration_since(end).as_secs_f64();
    let before = end.saturating_duration_since(moment).as_secs_f64();
    (after - before) * 1e3
}

async fn take<L: LockUnderTest>(lock: &L, holds: usize) -> Result<Vec<Arc<dyn Watched>>> {
    let mut tasks = JoinSet::new();
    for first in 0..TOGETHER.min(holds) {
        let lock = lock.clone();
        tasks.spawn(async move {
            let mut held: Vec<Arc<dyn Watched>> = Vec::new();
            for number in (first..holds).step_by(TOGETHER) {
                held.push(Arc::from(lock.watched(&name(number)).await?));
            }
            Result::Ok(held)
        });
    }
    let mut all = Vec::with_capacity(holds);
    for held in tasks.join_all().await {
        all.append(&mut held?);
    }
    Ok(all)
}

/// Ends the server; its answer is that the connection is gone.
fn end_server(url: &str) -> Result<()> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let _ = redis::cmd("SHUTDOWN").arg("NOSAVE").exec(&mut connection);
    Ok(())
}

/// Tasks that sleep for as long as the holders waited, equally far apart.
async fn sleepers(ends: &[Instant]) -> Lateness {
    let (Some(first), now) = (ends.iter().min(), Instant::now()) else {
        return Lateness::of(&[]);
    };
    let mut tasks = JoinSet::new();
    for end in ends {
        let end = now + Duration::from_secs(1) + (*end - *first);
        tasks.spawn(async move {
            sleep_until(end.into()).await;
            since(end, Instant::now())
        });
    }
    Lateness::of(&tasks.join_all().await)
}

impl Lateness {
    fn of(late: &[f64]) -> Self {
        let at = |q| percentile(late, q).unwrap_or(f64::NAN);
        Self {
            least_ms: at(0.0),
            p50_ms: at(0.5),
            most_ms: at(1.0),
        }
    }
}
