//! (d) A holder that is killed with -9 cannot give anything back: its lease does.

use std::time::Duration;

use serde_json::json;
use watchlock_support::now_ns;

use crate::Result;
use crate::stage::{Row, Stage, headline, step};

/// What a busy machine may add; 50 ms is what the library allows itself.
const SLACK: Duration = Duration::from_millis(250);
/// Redis says the time that is left in whole milliseconds.
const EARLY: Duration = Duration::from_millis(2);

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'd',
        "a holder is killed with -9: the next one is in when its lease is over",
    );
    let name = stage.name("killed");
    let (holder, waiter) = (stage.worker().await?, stage.worker().await?);
    holder.lock("a", &name, None).await?;
    let fields = json!({"owner": "b", "kind": "lock", "name": name});
    let waiting = waiter.request("lock", fields);
    stage.waiter_of(&name).await?;

    holder.kill();
    let killed = now_ns();
    let left = Duration::from_millis(u64::try_from(stage.pttl(&name).await?).unwrap_or(0));
    step(format!(
        "killed; Redis keeps the lock for another {left:.2?}"
    ));
    let entered = waiting.await;
    entered.outcome?;
    waiter.unlock("b", &name).await?;
    let took = Duration::from_nanos(entered.t_ret.saturating_sub(killed));
    step(format!("the next one is in {took:.2?} after the kill"));
    Ok(vec![Row::new(
        "in after a kill, of a lease of 2 s",
        &format!("{left:.2?} to {:.2?}", left + SLACK),
        format!("{took:.2?}"),
        took + EARLY >= left && took <= left + SLACK,
    )])
}
