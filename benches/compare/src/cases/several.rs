//! (h) Several locks as one: the cost of eight at once, compared with one.

use crate::bench::Bench;
use crate::load::Load;
use crate::load::several::Several;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::samples::Samples;
use crate::stats;

const CONFIG: &str = "several";
const ROUNDS: usize = 9;
const NAMES: usize = 8;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let mut samples = Samples::new();
    let mut ratios = Vec::new();
    for round in 0..bench.plan.rounds(ROUNDS) {
        for who in bench.roster.those(|info| info.role == Role::Ours) {
            let load = Load::Several { names: NAMES };
            let job = bench.job(who, load, bench.plan.window(200, 80));
            let measured = bench.measure::<Option<Several>>(CONFIG, who, &[job]);
            let answers = measured.into_iter().flat_map(|measured| measured.answers);
            for took in answers.flatten() {
                ratios.push(took.all_p50_us / took.one_p50_us);
                samples.add(&who.info.name, CONFIG, round, took);
            }
        }
    }
    let mut table = Table::new(
        "Several locks as one: µs to lock and unlock",
        "One task, on one server: a lock, and a multi-lock of eight names, in turn. Eight are eight scripts each \
         way; the first goes alone, the rest side by side, and all are given back side by side.",
    );
    table.columns(["one, p50", "eight, p50", "eight, p99"].map(str::to_owned));
    for name in bench.roster.names(|info| info.role == Role::Ours) {
        let one = samples.median(name, CONFIG, |took| took.one_p50_us);
        let all = samples.median(name, CONFIG, |took| took.all_p50_us);
        let p99 = samples.median(name, CONFIG, |took| took.all_p99_us);
        table.row(name, [one.map(figure), all.map(figure), p99.map(figure)]);
    }
    findings.tables.push(table);
    let what = "multi-lock of 8 names: p50, of one lock";
    findings
        .targets
        .push(Target::at_most(what, 2.5, stats::median(&ratios)));
}
