//! The cases: which loads are measured, and what is read off them.

mod contended;
mod crowd;
mod holding;
mod idle;
mod link;
mod reentry;
mod uncontended;

use crate::bench::Bench;
use crate::redisson::Redisson;
use crate::report::Findings;

/// Runs all cases.
pub(crate) fn run(bench: &Bench) -> Findings {
    let mut findings = Findings::default();
    let java = if bench.plan.peers {
        redisson(bench)
    } else {
        None
    };
    uncontended::run(bench, java.as_ref(), &mut findings);
    reentry::run(bench, &mut findings);
    contended::run(bench, java.as_ref(), &mut findings);
    drop(java);
    crowd::run(bench, &mut findings);
    holding::run(bench, &mut findings);
    link::run(bench, &mut findings);
    let idle = idle::run(bench, &mut findings);
    bench.or_note("idle", idle);
    findings.failures = bench.failures();
    findings
}

fn redisson(bench: &Bench) -> Option<Redisson> {
    bench.progress("starting Redisson");
    bench.or_note("Redisson does not take part", Redisson::start(bench.url()))
}
