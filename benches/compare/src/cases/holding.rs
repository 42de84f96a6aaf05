//! (e) Very many locks held and kept alive at the defaults.

use std::time::Duration;

use crate::bench::Bench;
use crate::load::Load;
use crate::load::holding::Holding;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};

/// The number of holds, and how long they are watched: a little more than one or two periods of 10 s.
const SIZES: &[(usize, u64)] = &[(1_000, 11_000), (10_000, 11_000), (100_000, 21_000)];
/// A TTL below two thirds of our lease, less this, was renewed late.
const LATE_MS: i64 = 1_000;
const WATCHDOG_MS: i64 = 30_000;
/// A crate with a task per lock and a period of 1 s would measure nothing but itself.
const MOST_FOR_PEERS: usize = 10_000;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "Holding: locks kept alive, and nothing else going on",
        "Shares of one core, after the first 10 s, in which each lock is renewed once. Shortest TTL: of keys drawn at \
         random, several times a second.",
    );
    let columns = [
        "client core",
        "server core",
        "client bytes a hold",
        "server bytes a hold",
        "script calls/s",
        "shortest TTL ms",
        "gone",
    ];
    table.columns(columns.map(str::to_owned));
    for &(holds, millis) in bench.plan.some(SIZES, 1) {
        for who in bench.roster.those(|info| info.renews) {
            let is_ours = who.info.role == Role::Ours;
            if !is_ours && holds > MOST_FOR_PEERS {
                continue;
            }
            let window = bench.plan.window(millis, millis);
            let window = window.min(Duration::from_millis(3 * millis));
            let job = bench.job(who, Load::Holding { holds }, window);
            let case = format!("holding {holds}");
            let measured = bench.measure::<Option<Holding>>(&case, who, &[job]);
            let answers = measured.into_iter().flat_map(|measured| measured.answers);
            for held in answers.flatten() {
                table.row(
                    &format!("{}, {}", who.info.name, figure(holds as f64)),
                    cells(&held),
                );
                if is_ours && holds == 100_000 {
                    targets(&held, findings);
                }
            }
        }
    }
    findings.tables.push(table);
}

fn cells(held: &Holding) -> [Option<String>; 7] {
    [
        Some(format!("{:.2} %", held.client_core * 100.0)),
        Some(format!("{:.2} %", held.server_core * 100.0)),
        Some(figure(held.client_bytes)),
        Some(figure(held.server_bytes)),
        Some(figure(held.scripts_per_second)),
        Some(figure(held.min_ttl_ms as f64)),
        Some(held.gone.to_string()),
    ]
}

fn targets(held: &Holding, findings: &mut Findings) {
    let late = WATCHDOG_MS * 2 / 3 - held.min_ttl_ms;
    findings.targets.extend([
        Target::at_most(
            "100 000 holds: client core, %",
            3.0,
            Some(held.client_core * 100.0),
        ),
        Target::at_most(
            "100 000 holds: server core, %",
            6.0,
            Some(held.server_core * 100.0),
        ),
        Target::at_most(
            "100 000 holds: client bytes a hold",
            1024.0,
            Some(held.client_bytes),
        ),
        Target::at_most("100 000 holds: holds gone", 0.0, Some(held.gone as f64)),
        Target::at_most(
            "100 000 holds: latest renewal, ms after two thirds of the lease",
            LATE_MS as f64,
            Some(late as f64),
        ),
    ]);
}
