//! (m) What only semaphores do: several at once in one client, and a crowd of waiters, compared with Redisson.

use super::kinds::java_name;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::contended::{Contended, NAME, Section, Work};
use crate::load::pairs::Pairs;
use crate::locks::{OF_SEMAPHORE, PERMITS, Role};
use crate::redisson::Redisson;
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::samples::Samples;

/// Each task with a semaphore of its own, and how often its throughput must be Redisson's. As many tasks as there are permits
/// show what those who share one can reach at most.
const ALONE: [(usize, Option<f64>); 4] = [
    (1, Some(1.0)),
    (PERMITS as usize, None),
    (16, Some(2.5)),
    (64, Some(2.5)),
];
/// Tasks of one client that want permits of one semaphore.
const TOGETHER: usize = 8;
const CROWD: usize = 10_000;
const ROUNDS: usize = 7;
/// They give each permit back at once.
const WORK: Work = Work {
    hold_us: 0,
    pause_us: 0,
};

/// Pairs a second, and commands for each.
#[derive(Clone, Copy)]
struct Passed {
    per_second: f64,
    commands: f64,
}

pub(crate) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let all = bench.roster.of_kind(OF_SEMAPHORE);
    let Some(ours) = all.iter().find(|who| who.info.role == Role::Ours) else {
        return;
    };
    let crowd = if bench.plan.quick { 200 } else { CROWD };
    let mut samples = Samples::new();
    for round in 0..bench.plan.rounds(ROUNDS) {
        for (tasks, _) in ALONE {
            if let Some(passed) = alone(bench, ours, tasks) {
                samples.add(OF_SEMAPHORE, &of_own(tasks), round, passed);
            }
            let window = bench.plan.window(90, 60);
            let pairs = java.map(|java| java.pairs(OF_SEMAPHORE, tasks, window));
            let pairs = pairs.and_then(|pairs| bench.or_note(&java_name(OF_SEMAPHORE), pairs));
            if let Some(pairs) = pairs {
                let (per_second, commands) = (pairs.per_second, 0.0);
                let passed = Passed {
                    per_second,
                    commands,
                };
                samples.add(&java_name(OF_SEMAPHORE), &of_own(tasks), round, passed);
            }
        }
        for tasks in [TOGETHER, crowd] {
            if let Some(passed) = together(bench, ours, tasks) {
                samples.add(OF_SEMAPHORE, &of_one(tasks), round, passed);
            }
        }
        let window = bench.plan.window(1000, 200);
        let seen = java.map(|java| java.contended(OF_SEMAPHORE, NAME, TOGETHER, WORK, window));
        let seen = seen.and_then(|seen| bench.or_note(&java_name(OF_SEMAPHORE), seen));
        if let Some(seen) = seen {
            let (per_second, commands) = (seen.per_second, 0.0);
            let passed = Passed {
                per_second,
                commands,
            };
            samples.add(&java_name(OF_SEMAPHORE), &of_one(TOGETHER), round, passed);
        }
    }
    findings.tables.push(table(&samples, crowd));
    targets(&samples, crowd, findings);
}

fn of_own(tasks: usize) -> String {
    format!("{tasks} tasks, own semaphores")
}

fn of_one(tasks: usize) -> String {
    format!("{} tasks for {PERMITS}", figure(tasks as f64))
}

fn alone(bench: &Bench, who: &Participant, tasks: usize) -> Option<Passed> {
    let job = bench.job(who, Load::Pairs { tasks }, bench.plan.window(90, 60));
    let measured = bench.measure::<Pairs>("permits", who, &[job])?;
    let per_second = measured.answers.first()?.per_second;
    let commands = 0.0;
    Some(Passed {
        per_second,
        commands,
    })
}

fn together(bench: &Bench, who: &Participant, tasks: usize) -> Option<Passed> {
    let window = bench.plan.window(1000, 200);
    let load = Load::Contended {
        tasks,
        process: 0,
        work: WORK,
    };
    let job = bench.job(who, load, window);
    let measured = bench.measure::<Vec<Section>>("permits, together", who, &[job])?;
    let commands = measured.counters.calls_of(&who.info.commands) as f64;
    let seen = Contended::of(measured.answers.concat(), window);
    Some(Passed {
        per_second: seen.per_second,
        commands: commands / seen.sections.max(1) as f64,
    })
}

fn table(samples: &Samples<Passed>, crowd: usize) -> Table {
    let mut table = Table::new(
        "Permits of semaphores: taken and given back, pairs per second",
        &format!(
            "Each task with a semaphore of its own, or all tasks of one client with one of {PERMITS} permits. Commands: of \
             the crowd, for each pair."
        ),
    );
    let configs = ALONE.map(|(tasks, _)| of_own(tasks));
    let mut configs: Vec<_> = configs.into_iter().collect();
    configs.extend([of_one(TOGETHER), of_one(crowd)]);
    table.columns(configs.iter().cloned().chain(["commands".to_owned()]));
    for row in [OF_SEMAPHORE, &java_name(OF_SEMAPHORE)] {
        let cells = configs.iter().map(|config| {
            let median = samples.median(row, config, |passed| passed.per_second);
            median.map(figure)
        });
        let mut cells: Vec<_> = cells.collect();
        let commands = samples.median(row, &of_one(crowd), |passed| passed.commands);
        cells.push(commands.map(|commands| format!("{commands:.2}")));
        if cells.iter().any(Option::is_some) {
            table.row(row, cells);
        }
    }
    table
}

fn targets(samples: &Samples<Passed>, crowd: usize, findings: &mut Findings) {
    let per_second = |passed: &Passed| passed.per_second;
    let java = java_name(OF_SEMAPHORE);
    let of_java = |config: &str| samples.ratio(OF_SEMAPHORE, &java, config, per_second);
    for (tasks, wanted) in ALONE {
        let Some(wanted) = wanted else { continue };
        let config = of_own(tasks);
        let what = format!("permits, {config}: throughput, of Redisson's semaphore");
        let target = Target::at_least(&what, wanted, of_java(&config));
        findings.targets.push(target);
    }
    let config = of_one(TOGETHER);
    let what = format!("permits, {config}: throughput, of Redisson's semaphore");
    let target = Target::at_least(&what, 3.0, of_java(&config));
    findings.targets.push(target);
    let (most, _) = ALONE[ALONE.len() - 1];
    let alone = samples.median(OF_SEMAPHORE, &of_own(most), per_second);
    let crowded = samples.median(OF_SEMAPHORE, &of_one(crowd), per_second);
    let what = format!(
        "permits, {}: throughput, of {}",
        of_one(crowd),
        of_own(most)
    );
    let share = crowded.zip(alone).map(|(crowded, alone)| crowded / alone);
    findings.targets.push(Target::at_least(&what, 0.5, share));
    let commands = samples.median(OF_SEMAPHORE, &of_one(crowd), |passed| passed.commands);
    let what = format!("permits, {}: commands a pair", of_one(crowd));
    findings.targets.push(Target::at_most(&what, 2.1, commands));
}
