//! (e) A holder that is frozen past its lease: when it wakes up it must not believe that it still holds.

use std::time::Duration;

use watchlock_support::{eventually, now_ns};

use crate::Result;
use crate::stage::{LEASE, Row, Stage, headline, step};

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'e',
        "a holder is frozen past its lease, as by a long pause of its machine",
    );
    let name = stage.name("frozen");
    let (frozen, other) = (stage.worker().await?, stage.worker().await?);
    frozen.lock("a", &name, None).await?;
    frozen.freeze();
    step("frozen; another process waits for the lock");
    let patience = 3 * LEASE;
    let entered = other.try_lock("b", &name, patience, None).await?;
    let holder = stage.holder(&name).await?;
    step(format!(
        "its lease ran out, the other is in: {}",
        entered.is_some()
    ));

    let resumed = now_ns();
    frozen.resume();
    eventually("the signal", 2 * LEASE, async || !frozen.lost().is_empty()).await;
    let lost = &frozen.lost()[0];
    let after = Duration::from_nanos(lost.t.saturating_sub(resumed));
    step(format!(
        "awake again, and the loss is reported {after:.2?} later: {}",
        lost.reason
    ));
    let late = match frozen.unlock("a", &name).await {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.kind,
    };
    step(format!("its late unlock is answered: {late}"));

    let unharmed = stage.holder(&name).await? == holder && holder.is_some();
    let given_back = other.unlock("b", &name).await;
    step(format!("the other still holds it: {unharmed}"));
    Ok(vec![
        Row::new(
            "others in after its lease",
            "1",
            u32::from(entered.is_some()),
            entered.is_some(),
        ),
        Row::new(
            "`lost` signals to the frozen one",
            "1",
            frozen.lost().len(),
            frozen.lost().len() == 1,
        ),
        Row::new("its late unlock", "lost", &late, late == "lost"),
        Row::new(
            "the other's hold and unlock",
            "unharmed",
            verdict(unharmed),
            unharmed && given_back == Ok(0),
        ),
    ])
}

fn verdict(unharmed: bool) -> &'static str {
    if unharmed { "unharmed" } else { "gone" }
}
