//! (h) A semaphore: more workers than permits, and one of those that have a permit is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use watchlock::{Client, Error, Lease, Semaphore};
use watchlock_support::now_ns;

use crate::Result;
use crate::stage::{LEASE, Row, Stage, headline, step};

const PERMITS: u32 = 3;
const WORKERS: u32 = 12;
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(500);

pub(crate) async fn scene(stage: &Stage) -> Result<Vec<Row>> {
    headline(
        'h',
        "a semaphore: three of twelve at a time, and a killed one's permit comes back",
    );
    let name = stage.name("imports");
    let client = Client::connect(&stage.url).await?;
    let imports = client.get_semaphore(&name).with_permits(PERMITS);
    let inside = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        workers.spawn(import(imports.clone(), Arc::clone(&inside)));
    }
    let mut most = 0;
    while let Some(there) = workers.join_next().await {
        most = most.max(there??);
    }
    step(format!("{WORKERS} were in, {most} at a time"));

    let killed = stage.worker().await?;
    let fields = json!({"kind": "semaphore", "name": name, "permits": PERMITS});
    killed.call("acquire", fields).await?;
    killed.kill();
    let since = now_ns();
    step(format!("killed, with all {PERMITS} permits"));
    let all = imports.try_acquire_many(PERMITS, LEASE * 5, Lease::Watchdog);
    let all = all.await?.ok_or("the permits did not come back")?;
    let took = Duration::from_nanos(now_ns() - since);
    step(format!("the next one has them {took:.2?} after the kill"));
    all.release().await?;
    let free = imports.available_permits().await?;
    Ok(vec![
        Row::new("at a time, of 3 permits", "3", most, most == PERMITS),
        Row::new(
            "permits back after a kill, of a lease of 2 s",
            &format!("{:.2?} at most", LEASE + SLACK),
            format!("{took:.2?}"),
            took <= LEASE + SLACK,
        ),
        Row::new(
            "permits free at the end",
            "3",
            free,
            free == i64::from(PERMITS),
        ),
    ])
}

/// Returns how many were in, itself included.
async fn import(imports: Semaphore, inside: Arc<AtomicU32>) -> std::result::Result<u32, Error> {
    let permit = imports.acquire().await?;
    let there = 1 + inside.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(20)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    permit.release().await?;
    Ok(there)
}
