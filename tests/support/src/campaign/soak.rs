//! What a process takes of the machine, measured between the rounds, while it has nothing to do.
//!
//! In a long campaign it must stay flat: whatever grows with the number of holds is a leak.

use std::fs;

use super::ground::Ground;

/// The rounds in which caches and pools fill.
const WARM_UP: u32 = 2;
const MEMORY_SLACK_KIB: u64 = 4 * 1024;
const FILE_SLACK: u64 = 2;

/// What one process takes after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The round.
    pub round: u32,
    /// The process.
    pub pid: u32,
    /// Resident memory, KiB.
    pub memory_kib: u64,
    /// Open files, connections included.
    pub files: u64,
    /// Threads.
    pub threads: u64,
}

impl Look {
    /// A look at each worker.
    pub(super) fn at_all(ground: &Ground, round: u32) -> Vec<Self> {
        let pids = ground.slots.iter().map(|slot| slot.worker().worker.pid());
        pids.filter_map(|pid| Self::at(pid, round)).collect()
    }

    /// A look at a process; `None` when it is gone.
    #[must_use]
    pub fn at(pid: u32, round: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
        Some(Self {
            round,
            pid,
            memory_kib: field("VmRSS:")?,
            files: files as u64,
            threads: field("Threads:")?,
        })
    }
}

/// Reports for each process what grew between the rounds after the warm-up and the last one.
#[must_use]
pub fn growth(looks: &[Look]) -> Vec<String> {
    let last = looks.iter().map(|look| look.round).max().unwrap_or(0);
    let mut grown = Vec::new();
    for late in looks.iter().filter(|look| look.round == last) {
        let early = |look: &&Look| {
            let early = look.round > WARM_UP && look.round <= WARM_UP.max(last / 2);
            look.pid == late.pid && early
        };
        let early = || looks.iter().filter(early);
        let most = |what: fn(&Look) -> u64| early().map(what).max();
        let mut held = |what: &str, of: fn(&Look) -> u64, slack: u64| {
            if let Some(before) = most(of)
                && of(late) > before + slack
            {
                let now = of(late);
                grown.push(format!(
                    "process {}: {what} grew from {before} to {now}",
                    late.pid
                ));
            }
        };
        let tenth = most(|look| look.memory_kib).unwrap_or(0) / 10;
        held(
            "memory (KiB)",
            |look| look.memory_kib,
            MEMORY_SLACK_KIB + tenth,
        );
        held("open files", |look| look.files, FILE_SLACK);
        held("threads", |look| look.threads, 0);
    }
    grown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(round: u32, memory_kib: u64, files: u64) -> Look {
        Look {
            round,
            pid: 1,
            memory_kib,
            files,
            threads: 4,
        }
    }

    #[test]
    fn what_grows_is_named() {
        let flat: Vec<_> = (1..=10)
            .map(|round| look(round, 20_000 + u64::from(round), 12))
            .collect();
        assert!(growth(&flat).is_empty());
        let leak: Vec<_> = (1..=10)
            .map(|round| look(round, 20_000, 12 + u64::from(round)))
            .collect();
        assert_eq!(growth(&leak), ["process 1: open files grew from 17 to 22"]);
        let leak: Vec<_> = (1..=10)
            .map(|round| look(round, 20_000 * u64::from(round), 12))
            .collect();
        assert_eq!(growth(&leak).len(), 1);
    }
}
