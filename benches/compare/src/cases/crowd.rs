//! (d) 10 000 tasks wait for one name.

use std::time::Duration;

use crate::bench::Bench;
use crate::load::Load;
use crate::load::crowd::Crowd;
use crate::locks::{DEADLINES, Info, PLAIN, Role, SCOPES, Setup};
use crate::report::{Chart, Findings, Table, Target, figure};

const TASKS: usize = 10_000;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let tasks = if bench.plan.quick { 200 } else { TASKS };
    // `RESULTS.md` names it.
    let window = Duration::from_millis(if bench.plan.quick { 60 } else { 8_000 });
    let mut table = Table::new(
        &format!(
            "A crowd: {} tasks wait for one name, then pass one by one",
            figure(tasks as f64)
        ),
        &format!(
            "Memory of the client per waiting task, the task included. Passed: within {:.1} s of the holder's \
             leaving, each holding the lock for no time. Commands: from the leaving to the end.",
            window.as_secs_f64()
        ),
    );
    let columns = [
        "bytes a waiter",
        "passed",
        "passed/s",
        "CPU µs each",
        "commands each",
    ];
    table.columns(columns.map(str::to_owned));
    let title = format!(
        "{} tasks wait for one name, then pass one by one",
        figure(tasks as f64)
    );
    let mut chart = Chart::new("crowd", &title, "tasks a second");
    chart.groups = vec!["passed".to_owned()];
    let mut all = bench
        .roster
        .those(|info| info.waits && info.setup == Setup::Default);
    // The same crowd, each with a deadline, and each for an owner of its own.
    all.extend(bench.roster.of_kind(DEADLINES));
    all.extend(bench.roster.of_kind(SCOPES));
    for who in all {
        let job = bench.job(who, Load::Crowd { tasks }, window);
        let Some(measured) = bench.measure::<Crowd>("crowd", who, &[job]) else {
            continue;
        };
        let commands = measured.counters.calls_of(&who.info.commands) as f64;
        for crowd in &measured.answers {
            let passed = crowd.passed as f64;
            table.row(
                &who.info.name,
                [
                    Some(figure(crowd.bytes_per_waiter)),
                    Some(figure(passed)),
                    Some(figure(passed / crowd.seconds)),
                    Some(figure(crowd.cpu_us)),
                    Some(format!("{:.1}", commands / passed.max(1.0))),
                ],
            );
            if who.info.kind == PLAIN {
                chart.series(&who.info.name, vec![Some(passed / crowd.seconds)]);
            }
            if who.info.role == Role::Ours {
                targets(&who.info, crowd, tasks, findings);
            }
        }
    }
    findings.tables.push(table);
    findings.charts.push(chart);
}

fn targets(info: &Info, crowd: &Crowd, tasks: usize, findings: &mut Findings) {
    if info.kind == PLAIN {
        let bytes = Some(crowd.bytes_per_waiter);
        let target = Target::at_most("bytes a waiter", 1024.0, bytes);
        findings.targets.push(target);
    }
    findings.targets.push(Target::at_least(
        &format!("{}: share of the crowd that passed", info.name),
        1.0,
        Some(crowd.passed as f64 / tasks as f64),
    ));
}
