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
    let java = java.as_ref();
    let plan = &bench.plan;
    if plan.wants("uncontended") {
        uncontended::run(bench, java, &mut findings);
    }
    if plan.wants("reentry") {
        reentry::run(bench, &mut findings);
    }
    if plan.wants("contended") {
        contended::run(bench, java, &mut findings);
    }
    if plan.wants("crowd") {
        crowd::run(bench, &mut findings);
    }
    if plan.wants("holding") {
        holding::run(bench, &mut findings);
    }
    if plan.wants("link") {
        link::run(bench, &mut findings);
    }
    if plan.wants("idle") {
        let outcome = idle::run(bench, &mut findings);
        bench.or_note("idle", outcome);
    }
    findings.failures = bench.failures();
    findings
}

fn redisson(bench: &Bench) -> Option<Redisson> {
    bench.progress("starting Redisson");
    bench.or_note("Redisson does not take part", Redisson::start(bench.url()))
}
