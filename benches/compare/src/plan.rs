//! How long everything takes.

use std::env;
use std::time::Duration;

/// The measured time of the default plan.
const DEFAULT_SECONDS: f64 = 300.0;

/// Rounds and windows, from `BENCH_SECONDS` (default 300), `BENCH_QUICK`,
/// `BENCH_PEERS` and `BENCH_ONLY`.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Only check that everything runs; the figures do not matter.
    pub(crate) quick: bool,
    /// Whether other crates and Redisson take part.
    pub(crate) peers: bool,
    /// The cases to run; empty: all.
    only: Vec<String>,
    scale: f64,
}

impl Plan {
    /// Reads the environment.
    pub(crate) fn from_env() -> Self {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let seconds = set("BENCH_SECONDS").and_then(|value| value.parse::<f64>().ok());
        let seconds = seconds.filter(|seconds| seconds.is_finite());
        Self {
            quick: set("BENCH_QUICK").is_some_and(|value| value != "0"),
            peers: set("BENCH_PEERS").is_none_or(|value| value != "0"),
            only: set("BENCH_ONLY").map_or_else(Vec::new, |list| {
                list.split(',').map(|name| name.trim().to_owned()).collect()
            }),
            scale: seconds.unwrap_or(DEFAULT_SECONDS).clamp(10.0, 36_000.0) / DEFAULT_SECONDS,
        }
    }

    /// Whether to run a case.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == case)
    }

    /// Whether other crates take part in any case that is run.
    pub(crate) fn wants_crates(&self) -> bool {
        let alone = |only: &String| ["kinds", "permits"].contains(&only.as_str());
        self.peers && (self.only.is_empty() || !self.only.iter().all(alone))
    }

    /// Whether the run is complete.
    pub(crate) fn is_whole(&self) -> bool {
        !self.quick && self.peers && self.only.is_empty()
    }

    /// Rounds of a case whose default is `rounds`.
    pub(crate) fn rounds(&self, rounds: usize) -> usize {
        if self.quick { 1 } else { rounds }
    }

    /// The window of one measurement whose default is `millis`; `least` is the shortest that gives a meaningful figure.
    pub(crate) fn window(&self, millis: u64, least: u64) -> Duration {
        if self.quick {
            return Duration::from_millis(least.min(60));
        }
        let scaled = Duration::from_millis(millis).mul_f64(self.scale);
        scaled.max(Duration::from_millis(least))
    }

    /// The parts of a case: all of them, or the first one to check that it runs.
    pub(crate) fn some<'a, T>(&self, all: &'a [T], quick: usize) -> &'a [T] {
        if self.quick {
            &all[..quick.min(all.len())]
        } else {
            all
        }
    }
}
