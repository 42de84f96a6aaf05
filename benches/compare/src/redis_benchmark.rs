//! `redis-benchmark` on the same two scripts: the limit of the server itself.

use std::process::Command;

use crate::Result;
use crate::bench::Bench;
use crate::locks::{LEASE_MS, Scripts, channel};

/// So many requests in each round.
const REQUESTS: usize = 5_000;
/// Keys that the releases find: so many times more than requests that hardly any is released twice.
const HELD: usize = 10;
/// Fresh names of the acquires: drawn from so many that hardly any comes twice.
const NAMES: &str = "1000000000000";

/// Pairs per second over one connection with `tasks` commands in flight, as `tasks` tasks on a
/// multiplexed connection have.
pub(crate) fn pairs_per_second(bench: &Bench, tasks: usize) -> Result<f64> {
    let scripts = Scripts::load(bench.url())?;
    let requests = if bench.plan.quick { 2_000 } else { REQUESTS };
    bench.clear()?;
    let lease = LEASE_MS.to_string();
    let acquire = ["bench:__rand_int__", "x:1", &lease];
    let acquires = run(bench, tasks, requests, NAMES, &scripts.acquire, &acquire)?;

    bench.clear()?;
    let held = requests * HELD;
    hold(bench, held)?;
    let release = ["bench:__rand_int__", "x:1", "0", &channel("bench")];
    let names = held.to_string();
    let releases = run(bench, tasks, requests, &names, &scripts.release, &release)?;
    Ok(1.0 / (1.0 / acquires + 1.0 / releases))
}

fn run(
    bench: &Bench,
    tasks: usize,
    requests: usize,
    names: &str,
    sha: &str,
    args: &[&str],
) -> Result<f64> {
    let output = Command::new("redis-benchmark")
        .args(["-p", &bench.server.port().to_string(), "-c", "1", "--csv"])
        .args(["-n", &requests.to_string(), "-P", &tasks.to_string()])
        .args(["-r", names, "EVALSHA", sha, "1"])
        .args(args)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().rfind(|line| line.contains("EVALSHA"));
    let rate = figures.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    rate.ok_or_else(|| format!("redis-benchmark said: {text}").into())
}

/// Writes holds under the names that `redis-benchmark` will draw.
fn hold(bench: &Bench, count: usize) -> Result<()> {
    let mut connection = redis::Client::open(bench.url())?.get_connection()?;
    for first in (0..count).step_by(10_000) {
        let mut pipe = redis::pipe();
        for number in first..count.min(first + 10_000) {
            let name = format!("bench:{number:012}");
            pipe.cmd("HSET").arg(name).arg("x:1").arg(1).ignore();
        }
        let () = pipe.query(&mut connection)?;
    }
    Ok(())
}
