//! The cost of a lock: watchlock compared with the floor and with other crates that users could choose.
//!
//! One command, one private redis-server, interleaved rounds, so that noise of the machine hits everybody alike;
//! medians, and ratios taken round by round within the run. Run it with `cargo run --release -p watchlock-compare`. The
//! tables go to the terminal and, after a whole run, to `benches/results-raw.md`; `benches/RESULTS.md` sums them up, with
//! charts in `benches/charts/`.
//!
//! | variable | meaning |
//! |---|---|
//! | `BENCH_SECONDS` | how long it measures, default 300 |
//! | `BENCH_QUICK=1` | only see that everything runs |
//! | `BENCH_PEERS=0` | leave other crates and Redisson out |
//! | `BENCH_ONLY` | some of `uncontended,contended,behind,kinds,reentry,several,quorum,crowd,holding,outage,cluster,acknowledged,link,field,idle` |
//!
//! - `locks`: the entrants, a small file each; those of other crates are in `benches/peers`, a workspace of its
//!   own, which the bench builds and runs
//! - `load`: what a child process does with one of them
//! - `cases`: which loads are measured, and what the figures show
//! - `report`: terminal, Markdown, charts, targets
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures for people"
)]

mod bench;
mod cases;
mod child;
mod load;
mod locks;
mod plan;
mod redis_benchmark;
mod redisson;
mod report;
mod roster;
mod samples;
mod server;
mod stats;
mod usage;

use std::process::ExitCode;

pub use child::serve;
pub use locks::{Entrant, Held, Info, LockUnderTest, PLAIN, Role, Setup, client_with_nodelay};

/// Any error; a bench that cannot measure prints it and ends.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Failure>;

/// Runs the bench, or, depending on the arguments, one of its own children.
#[must_use]
pub fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        return serve(&locks::own());
    }
    exit_code(run())
}

fn run() -> Result<()> {
    let bench = bench::Bench::start(plan::Plan::from_env())?;
    let findings = cases::run(&bench);
    bench.progress_end();
    report::write(&bench, &findings)
}

fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}
