//! What only readers and writers do: a read lock that this client already holds, and a writer among readers.

use super::java_name;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::pairs::Pairs;
use crate::locks::{READ_HELD, Role};
use crate::redisson::Redisson;
use crate::report::{Findings, Table, Target, figure};
use crate::samples::Samples;

const READ: &str = "read";
const TASKS: usize = 64;
const ROUNDS: usize = 5;

/// Processes, readers in each.
const PROCESSES: usize = 4;
const READERS: usize = 8;

pub(super) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    held(bench, java, findings);
    writer(bench, findings);
}

/// Reads a lock that this client already reads.
fn held(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let mut samples = Samples::new();
    let window = bench.plan.window(200, 60);
    let config = format!("{TASKS} tasks");
    for round in 0..bench.plan.rounds(ROUNDS) {
        for who in bench.roster.of_kind(READ_HELD) {
            let job = bench.job(who, Load::Pairs { tasks: TASKS }, window);
            let measured = bench.measure::<Pairs>("kinds, held", who, &[job]);
            for pairs in measured.into_iter().flat_map(|measured| measured.answers) {
                samples.add(READ_HELD, &config, round, pairs);
            }
        }
        if let Some(java) = java {
            let pairs = java.pairs(READ, TASKS, window);
            if let Some(pairs) = bench.or_note(&java_name(READ), pairs) {
                samples.add(&java_name(READ), &config, round, pairs);
            }
        }
    }
    let per_second = |pairs: &Pairs| pairs.per_second;
    let mut table = Table::new(
        "A read lock that this client holds already: pairs per second",
        "Redisson: each thread its own name, as above.",
    );
    table.columns([config.clone()]);
    for row in [READ_HELD, &java_name(READ)] {
        let cell = samples.median(row, &config, per_second).map(figure);
        table.row(row, [cell]);
    }
    findings.tables.push(table);
    findings.targets.push(Target::at_least(
        "a read lock that is held, 64 tasks: throughput, of Redisson's read lock",
        20.0,
        samples.ratio(READ_HELD, &java_name(READ), &config, per_second),
    ));
}

/// A writer that waits among readers of several processes.
fn writer(bench: &Bench, findings: &mut Findings) {
    let window = bench.plan.window(3000, 300);
    let all = bench.roster.of_kind(READ).into_iter();
    let Some(who) = all.into_iter().find(|who| who.info.role == Role::Ours) else {
        return;
    };
    let tasks = READERS;
    let job = |process| bench.job(who, Load::Readers { tasks, process }, window);
    let jobs: Vec<_> = (0..PROCESSES).map(job).collect();
    let measured = bench.measure::<Vec<f64>>("kinds, a writer", who, &jobs);
    let waits = measured.map(|measured| measured.answers.concat());
    let worst = waits.and_then(|waits| waits.into_iter().max_by(f64::total_cmp));
    findings.targets.push(Target::at_most(
        &format!(
            "a writer among {} readers of {PROCESSES} processes: longest wait, ms",
            PROCESSES * READERS
        ),
        250.0,
        worst,
    ));
}
