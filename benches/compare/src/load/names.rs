//! Very many tasks at once, each with a name of its own, maybe while the server does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::wait_for_go;
use crate::Result;
use crate::locks::LockUnderTest;
use crate::server::Counters;
use crate::usage::resident_bytes;

/// How long the server does not answer.
const FREEZE: Duration = Duration::from_secs(10);

/// What it took until each task had locked and unlocked its name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Names {
    /// From the start, or from the end of the freeze, until the last task was done.
    pub(crate) seconds: f64,
    /// Calls of scripts for each name.
    pub(crate) scripts: f64,
    /// Connections that were opened meanwhile.
    pub(crate) connections: u64,
    /// Memory for each task while the server did not answer; 0 without a freeze.
    pub(crate) bytes_a_task: f64,
    /// Tasks that got an error.
    pub(crate) failed: usize,
}

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    tasks: usize,
    freeze: bool,
) -> Result<Names> {
    lock.section("bench:warm", async {}).await?;
    wait_for_go();
    let before = Counters::read(url)?;
    let memory = resident_bytes();
    let start_together = Arc::new(Barrier::new(tasks + 1));
    let mut running = JoinSet::new();
    for number in 0..tasks {
        let (lock, together) = (lock.clone(), Arc::clone(&start_together));
        running.spawn(async move {
            let name = format!("bench:names:{number}");
            together.wait().await;
            lock.section(&name, async {}).await
        });
    }
    if freeze {
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(FREEZE.as_millis() as u64).arg("ALL");
        pause.exec(&mut connection)?;
    }
    start_together.wait().await;
    let mut start = Instant::now();
    let mut bytes = 0;
    if freeze {
        sleep(FREEZE / 4).await;
        bytes = resident_bytes().saturating_sub(memory);
        sleep(FREEZE.saturating_sub(start.elapsed())).await;
        start = Instant::now();
    }
    let done = running.join_all().await;
    let seconds = start.elapsed().as_secs_f64();
    let during = Counters::read(url)?.since(&before);
    Ok(Names {
        seconds,
        scripts: during.calls_of(&["evalsha", "eval"]) as f64 / tasks as f64,
        // The counters are read over a connection of their own, and so is the pause sent.
        connections: during.connections - 1 - u64::from(freeze),
        bytes_a_task: bytes as f64 / tasks as f64,
        failed: done.iter().filter(|result| result.is_err()).count(),
    })
}
