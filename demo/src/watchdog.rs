//! (b) A job that takes three times its lease, and another process that waits for it.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::Result;
use crate::stage::{LEASE, Row, Stage, headline, step};

/// How soon after the release the next one must be in, on a busy machine; a fraction of a millisecond is usual.
const SOON: Duration = Duration::from_millis(250);

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'b',
        "a job of three leases' length is kept alive by the watchdog, another process waits",
    );
    let name = stage.name("report");
    let (holder, waiter) = (stage.worker().await?, stage.worker().await?);
    holder.lock("job", &name, None).await?;
    let begun = Instant::now();
    let fields = json!({"owner": "next", "kind": "lock", "name": name});
    let waiting = waiter.request("lock", fields.clone());
    stage.waiter_of(&name).await?;

    let mut shortest = i64::MAX;
    while begun.elapsed() < 3 * LEASE {
        let left = stage.pttl(&name).await?;
        shortest = shortest.min(left);
        step(format!(
            "{:3.1} s: the job works, Redis would keep its lock for another {left} ms",
            begun.elapsed().as_secs_f64(),
        ));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let held = begun.elapsed();

    let job = json!({"owner": "job", "kind": "lock", "name": name});
    let released = holder.request("unlock", job).await;
    released.outcome?;
    let entered = waiting.await;
    entered.outcome?;
    waiter.unlock("next", &name).await?;
    let early = entered.t_ret < released.t_inv;
    let gap = Duration::from_nanos(entered.t_ret.saturating_sub(released.t_inv));
    step(format!(
        "{:3.1} s: done, and the next one is in {gap:.2?} after",
        held.as_secs_f64()
    ));
    Ok(vec![
        Row::new(
            "held by a watchdog lease of 2 s",
            "6 s or more",
            format!("{held:.1?}"),
            held >= 3 * LEASE && shortest > 0,
        ),
        Row::new(
            "the next one in after the release",
            "0 to 250 ms",
            format!("{gap:.2?}"),
            !early && gap < SOON,
        ),
        Row::new(
            "times the job lost its lock",
            "0",
            holder.lost().len(),
            holder.lost().is_empty(),
        ),
    ])
}
