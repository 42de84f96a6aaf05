//! (c) A critical section inside another of the same lock.

use std::time::Duration;

use watchlock::Client;

use crate::Result;
use crate::stage::{Row, Stage, headline, step};

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline('c', "nested sections: the hold count, as Redis has it");
    let client = Client::connect(&stage.url).await?;
    let name = stage.name("accounts");
    let owner = client.new_owner();
    let lock = owner.get_lock(&name);

    let outer = lock.lock().await?;
    let mut counts = vec![count(stage, &name, "the outer section has begun").await?];
    let inner = lock.lock().await?;
    counts.push(count(stage, &name, "the inner section has begun").await?);
    inner.unlock().await?;
    counts.push(count(stage, &name, "the inner section has ended").await?);
    outer.unlock().await?;
    counts.push(count(stage, &name, "the outer section has ended").await?);

    client.shutdown(Duration::from_secs(1)).await;
    let right = counts == [1, 2, 1, 0];
    let seen: Vec<_> = counts.iter().map(u32::to_string).collect();
    Ok(vec![Row::new(
        "hold counts in Redis",
        "1, 2, 1, 0",
        seen.join(", "),
        right,
    )])
}

async fn count(stage: &Stage, name: &str, when: &str) -> Result<u32> {
    let count = stage.holder(name).await?.map_or(0, |(_, count)| count);
    step(format!("{when}: {count}"));
    Ok(count)
}
