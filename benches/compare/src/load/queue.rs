//! Many clients wait for one name, each with one task, and nothing else goes on.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::wait_for_go;
use crate::Result;
use crate::locks::{LockUnderTest, Setup};
use crate::server::Counters;

const NAME: &str = "bench:queue";
/// Until all have their places, and have heard how many they are.
const SETTLE: Duration = Duration::from_secs(8);

/// What waiting costs the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Queue {
    /// Share of one core.
    pub(crate) server_core: f64,
}

pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    setup: Setup,
    clients: usize,
    window: Duration,
) -> Result<Queue> {
    let mut all = Vec::with_capacity(clients);
    for _ in 0..clients {
        all.push(L::connect(url, setup).await?);
    }
    let holder = lock.clone();
    let mut waiting = JoinSet::new();
    let (entered, inside) = tokio::sync::oneshot::channel();
    waiting.spawn(async move {
        let body = async {
            let _ = entered.send(());
            std::future::pending::<()>().await;
        };
        holder.section(NAME, body).await
    });
    inside.await?;
    for client in all {
        waiting.spawn(async move { client.section(NAME, async {}).await });
    }
    sleep(SETTLE).await;
    wait_for_go();
    let (start, before) = (Instant::now(), Counters::read(url)?);
    sleep(window).await;
    let seconds = start.elapsed().as_secs_f64();
    let server = Counters::read(url)?.since(&before);
    waiting.abort_all();
    Ok(Queue {
        server_core: server.cpu_seconds / seconds,
    })
}
