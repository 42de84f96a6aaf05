//! Holding: one client keeps very many locks alive, and nothing else runs.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::{JoinSet, spawn_blocking};

use super::wait_for_go;
use crate::Result;
use crate::locks::{Held, LockUnderTest};
use crate::server::Counters;
use crate::usage::{process_cpu_ns, resident_bytes, thread_cpu_ns};

/// How many holds are taken at once.
const TOGETHER: usize = 64;
/// Nothing is counted for so long: at the first renewal of each lock, connections are opened and scripts are sent.
const FIRST_PERIOD: Duration = Duration::from_secs(10);
/// How many keys each look at the TTLs reads.
const SAMPLE: usize = 50;

/// The cost of keeping locks, from their second renewal on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Holding {
    pub(crate) holds: usize,
    /// Share of one core, client process, without the looks at the keys.
    pub(crate) client_core: f64,
    /// Share of one core, server.
    pub(crate) server_core: f64,
    pub(crate) client_bytes: f64,
    pub(crate) server_bytes: f64,
    /// Scripts the server ran for the renewals.
    pub(crate) scripts_per_second: f64,
    /// The shortest TTL seen: a renewal on time keeps it above two thirds of the lease.
    pub(crate) min_ttl_ms: i64,
    /// Keys that were gone.
    pub(crate) gone: usize,
}

/// `None` when the entrant does not renew.
pub(crate) async fn run<L: LockUnderTest>(
    lock: &L,
    url: &str,
    holds: usize,
    window: Duration,
) -> Result<Option<Holding>> {
    if lock.hold("bench:hold:warm").await?.is_none() {
        wait_for_go();
        return Ok(None);
    }
    wait_for_go();
    let (memory, server) = (resident_bytes(), Counters::read(url)?);
    let held = take(lock, holds).await?;
    let client_bytes = resident_bytes().saturating_sub(memory) as f64 / holds as f64;
    let server_bytes = Counters::read(url)?.since(&server).memory_bytes as f64 / holds as f64;

    tokio::time::sleep(FIRST_PERIOD).await;
    let (start, cpu, server) = (Instant::now(), process_cpu_ns(), Counters::read(url)?);
    let watched = url.to_owned();
    let watching = spawn_blocking(move || watch(&watched, holds, window));
    let Watched {
        min_ttl_ms,
        gone,
        cpu_ns,
    } = watching.await??;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = (process_cpu_ns() - cpu - cpu_ns) as f64 / 1e9;
    let server = Counters::read(url)?.since(&server);
    std::mem::forget(held); // the server goes away with the measurement
    Ok(Some(Holding {
        holds,
        client_core: cpu_seconds / seconds,
        server_core: server.cpu_seconds / seconds,
        client_bytes,
        server_bytes,
        scripts_per_second: server.calls_of(&["evalsha", "eval"]) as f64 / seconds,
        min_ttl_ms,
        gone,
    }))
}

pub(super) fn name(number: usize) -> String {
    format!("bench:hold:{number}")
}

pub(super) async fn take<L: LockUnderTest>(lock: &L, holds: usize) -> Result<Vec<Held>> {
    let mut tasks = JoinSet::new();
    for first in 0..TOGETHER.min(holds) {
        let lock = lock.clone();
        tasks.spawn(async move {
            let mut held = Vec::new();
            for number in (first..holds).step_by(TOGETHER) {
                held.extend(lock.hold(&name(number)).await?);
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

pub(super) struct Watched {
    pub(super) min_ttl_ms: i64,
    pub(super) gone: usize,
    /// CPU time of the looks themselves.
    pub(super) cpu_ns: u64,
}

/// Looks at the TTLs of a few keys again and again, on the calling thread.
pub(super) fn watch(url: &str, holds: usize, window: Duration) -> Result<Watched> {
    let cpu = thread_cpu_ns();
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let end = Instant::now() + window;
    let (mut min_ttl_ms, mut gone) = (i64::MAX, 0);
    while Instant::now() < end {
        let mut pipe = redis::pipe();
        for _ in 0..SAMPLE.min(holds) {
            pipe.cmd("PTTL").arg(name(fastrand::usize(..holds)));
        }
        // A node of a cluster answers for its own keys only.
        let ttls: Vec<redis::RedisResult<i64>> = pipe.ignore_errors().query(&mut connection)?;
        let ttls: Vec<_> = ttls.into_iter().flatten().collect();
        gone += ttls.iter().filter(|ttl| **ttl < 0).count();
        let kept = ttls.into_iter().filter(|ttl| *ttl >= 0);
        min_ttl_ms = kept.fold(min_ttl_ms, i64::min);
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Watched {
        min_ttl_ms,
        gone,
        cpu_ns: thread_cpu_ns() - cpu,
    })
}
