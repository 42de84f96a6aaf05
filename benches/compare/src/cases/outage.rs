//! (k) An outage: the server ends while one client holds very many locks.

use std::time::Duration;

use watchlock_support::server::RedisServer;

use crate::bench::Bench;
use crate::load::outage::{Lateness, Outage};
use crate::load::{Job, Load};
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};

const HOLDS: usize = 20_000;
/// A task for each hold, or for one in a hundred.
const EACH: [usize; 2] = [1, 100];

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let holds = if bench.plan.quick { 200 } else { HOLDS };
    let mut table = Table::new(
        &format!(
            "An outage: the server ends while one client holds {} locks",
            figure(holds as f64)
        ),
        "Lease 9 s, renewed until the server ends. When a task that awaits the loss of a hold is notified: ms after \
         the end of the hold's validity, which leaves the drift (1 % and 2 ms) before anybody else can have the \
         lock. Slept: the same number of tasks that only sleep until those moments. Memory of the process: before the \
         server ended, and the most until all were notified, their tasks included.",
    );
    let columns = [
        "first notified",
        "p50",
        "last notified",
        "slept, p50",
        "slept, last",
        "MiB before",
        "MiB at most",
        "not notified",
    ];
    table.columns(columns.map(str::to_owned));
    for who in bench.roster.those(|info| info.role == Role::Ours) {
        for &each in bench.plan.some(&EACH, 1) {
            let server = RedisServer::start();
            let job = Job {
                url: server.url(),
                ..bench.job(who, Load::Outage { holds, each }, Duration::from_secs(30))
            };
            let measured = bench.measure::<Option<Outage>>("outage", who, &[job]);
            let answers = measured.into_iter().flat_map(|measured| measured.answers);
            for outage in answers.flatten() {
                let tasks = figure(holds.div_ceil(each) as f64);
                table.row(&format!("{}, {tasks} tasks", who.info.name), cells(&outage));
                if each > 1 {
                    targets(&outage, findings);
                }
            }
        }
    }
    findings.tables.push(table);
}

fn cells(outage: &Outage) -> [Option<String>; 8] {
    let Lateness {
        least_ms,
        p50_ms,
        most_ms,
    } = outage.notified;
    let ms = |ms: f64| Some(format!("{ms:.1}"));
    let mib = |bytes: u64| Some(format!("{:.0}", bytes as f64 / f64::from(1 << 20)));
    [
        ms(least_ms),
        ms(p50_ms),
        ms(most_ms),
        ms(outage.slept.p50_ms),
        ms(outage.slept.most_ms),
        mib(outage.before_bytes),
        mib(outage.most_bytes),
        Some(outage.unnotified.to_string()),
    ]
}

fn targets(outage: &Outage, findings: &mut Findings) {
    findings.targets.extend([
        Target::at_most(
            "an outage with 20 000 holds: last of 200 tasks notified, ms after the validity",
            5.0,
            Some(outage.notified.most_ms),
        ),
        Target::at_most(
            "an outage with 20 000 holds: memory at most, of before",
            2.0,
            Some(outage.most_bytes as f64 / outage.before_bytes as f64),
        ),
    ]);
}
