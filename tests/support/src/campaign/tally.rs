//! What a campaign did and found, in figures.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ground::Ground;
use super::soak::Look;
use crate::checker::{Breach, Report, Violation};
use crate::history::Record;

/// The answers that owners may get while everything breaks.
const EXPECTED: [&str; 8] = [
    "ok",
    "busy",
    "lost",
    "not_owner",
    "unavailable",
    "refused",
    "quorum",
    "not_replicated",
];

/// The sums over all rounds.
#[derive(Debug, Default)]
pub struct Tally {
    /// Rounds so far.
    pub rounds: u32,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Answers to the owners by request and kind.
    pub answers: BTreeMap<String, u64>,
    /// Operations asked for.
    pub operations: u64,
    /// Holds that were reported to their owners as lost.
    pub lost: u64,
    /// How often the server was slow to answer, through a fault or by itself.
    pub stalls: u64,
    /// Violations, and how many chances there were.
    pub report: Report,
    /// How often there were two holders after a fail-over that lost what nobody had acknowledged; not counted above.
    pub lost_writes: Vec<Violation>,
    /// The longest wait of an owner without competitors while nothing was wrong with masters and replicas.
    pub waited: Option<Duration>,
    /// What is Redisson's of the violations, by the reason why it is, and is not counted above.
    pub redissons: BTreeMap<&'static str, Vec<Violation>>,
    /// What the workers took of the machine after each round.
    pub looks: Vec<Look>,
}

impl Tally {
    pub(super) fn add(&mut self, ground: &Ground, records: &[Record], report: Report) {
        self.faults = ground.faults.lock().clone();
        self.stalls = ground.stalls.load(Ordering::Relaxed);
        self.note_answers(ground);
        for record in records {
            match record {
                Record::Invoke { .. } => self.operations += 1,
                Record::Lost { .. } => self.lost += 1,
                _ => {}
            }
        }
        self.report.merge(report);
    }

    pub(super) fn excuse(&mut self, redissons: Vec<(&'static str, Violation)>) {
        for (why, violation) in redissons {
            self.redissons.entry(why).or_default().push(violation);
        }
    }

    pub(super) fn failed_over(&mut self, waited: Duration, both: Vec<Violation>) {
        self.waited = self.waited.max(Some(waited));
        self.lost_writes.extend(both);
    }

    /// How often two held a lock after a fail-over that lost the first one's grant.
    #[must_use]
    pub fn two_holders(&self) -> usize {
        let both = |violation: &&Violation| matches!(violation.breach, Breach::Overlap { .. });
        self.lost_writes.iter().filter(both).count()
    }

    pub(super) fn note_answers(&mut self, ground: &Ground) {
        self.answers = ground.answers.lock().clone();
    }

    /// Answers that no fault explains.
    #[must_use]
    pub fn unexpected(&self) -> Vec<&str> {
        let explained = |answer: &str| {
            let kind = answer.rsplit(": ").next().unwrap_or_default();
            EXPECTED.contains(&kind) || answer.starts_with("Redisson's ")
        };
        let answers = self.answers.keys().map(String::as_str);
        answers.filter(|answer| !explained(answer)).collect()
    }

    /// All faults.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }

    /// The sums so far in a line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "round {}: {} faults, {} holds, {} lost, {} violations",
            self.rounds,
            self.fault_count(),
            self.report.holds,
            self.lost,
            self.report.violations.len(),
        )
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = |f: &mut fmt::Formatter<'_>, head: &str, rows: &BTreeMap<String, u64>| {
            writeln!(f, "{head:<24} {:>10}", "count")?;
            for (kind, count) in rows {
                writeln!(f, "{kind:<24} {count:>10}")?;
            }
            writeln!(f, "{:<24} {:>10}\n", "all", rows.values().sum::<u64>())
        };
        table(f, "fault", &self.faults)?;
        table(f, "answer", &self.answers)?;
        writeln!(f, "{:<24} {:>10}", "operations", self.operations)?;
        writeln!(f, "{:<24} {:>10}", "holds", self.report.holds)?;
        writeln!(f, "{:<24} {:>10}", "holds lost", self.lost)?;
        writeln!(f, "{:<24} {:>10}\n", "stalls", self.stalls)?;
        write!(f, "{}", self.report)?;
        if let Some(waited) = self.waited {
            let both = self.two_holders();
            writeln!(f, "two holders after a fail-over that lost writes: {both}")?;
            writeln!(
                f,
                "longest wait of one alone, fail-overs left out: {waited:?}"
            )?;
        }
        for (why, violations) in &self.redissons {
            let (count, first) = (violations.len(), &violations[0]);
            writeln!(f, "Redisson: {why}: {count}; the first:\n{first}")?;
        }
        Ok(())
    }
}
