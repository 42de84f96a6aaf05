//! (b) Entering a held lock again: one round trip, no more than the floor's.

use crate::bench::Bench;
use crate::load::Load;
use crate::load::reentry::Reentry;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::samples::Samples;
use crate::stats;

const CONFIG: &str = "re-entry";
const ROUNDS: usize = 9;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let mut samples = Samples::new();
    let mut ratios = Vec::new();
    for round in 0..bench.plan.rounds(ROUNDS) {
        let floor = bench.floor_round_trip_us(CONFIG);
        for who in bench.roster.those(|info| info.reenters) {
            let job = bench.job(who, Load::Reentry, bench.plan.window(140, 60));
            let measured = bench.measure::<Option<Reentry>>(CONFIG, who, &[job]);
            let answers = measured.into_iter().flat_map(|measured| measured.answers);
            for took in answers.flatten() {
                if who.info.role == Role::Ours {
                    ratios.extend(floor.map(|floor| took.p50_us / floor));
                }
                samples.add(&who.info.name, CONFIG, round, took);
            }
        }
    }
    let mut table = Table::new(
        "Re-entry: µs to enter a held lock again",
        "One task. The floor sends the script raw.",
    );
    table.columns(["p50", "p99"].map(str::to_owned));
    for name in bench.roster.names(|info| info.reenters) {
        let p50 = samples.median(name, CONFIG, |took| took.p50_us);
        let p99 = samples.median(name, CONFIG, |took| took.p99_us);
        table.row(name, [p50.map(figure), p99.map(figure)]);
    }
    findings.tables.push(table);
    let what = "re-entry: p50, of one round trip of the floor";
    let target = Target::at_most(what, 1.0, stats::median(&ratios));
    findings.targets.push(target);
}
