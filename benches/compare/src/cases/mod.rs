//! The cases: which loads are measured, and what the figures show.

mod acknowledged;
mod behind;
mod cluster;
mod contended;
mod crowd;
mod field;
mod holding;
mod idle;
mod kinds;
mod link;
mod outage;
mod permits;
mod quorum;
mod reentry;
mod several;
mod uncontended;

use crate::bench::Bench;
use crate::redisson::Redisson;
use crate::report::Findings;

/// Runs all cases.
pub(crate) fn run(bench: &Bench) -> Findings {
    let mut findings = Findings::default();
    let plan = &bench.plan;
    with_redisson(bench, &mut findings);
    if plan.wants("reentry") {
        reentry::run(bench, &mut findings);
    }
    if plan.wants("several") {
        several::run(bench, &mut findings);
    }
    if plan.wants("quorum") {
        quorum::run(bench, &mut findings);
    }
    if plan.wants("crowd") {
        crowd::run(bench, &mut findings);
    }
    if plan.wants("holding") {
        holding::run(bench, &mut findings);
    }
    if plan.wants("outage") {
        outage::run(bench, &mut findings);
    }
    if plan.wants("cluster") {
        cluster::run(bench, &mut findings);
    }
    if plan.wants("acknowledged") {
        acknowledged::run(bench, &mut findings);
    }
    if plan.wants("link") {
        link::run(bench, &mut findings);
    }
    if plan.wants("field") {
        field::run(bench, &mut findings);
    }
    if plan.wants("idle") {
        let outcome = idle::run(bench, &mut findings);
        bench.or_note("idle", outcome);
    }
    findings.failures = bench.failures();
    findings
}

/// The cases in which Redisson takes part.
const WITH_REDISSON: [&str; 5] = ["uncontended", "contended", "behind", "kinds", "permits"];

/// They run first; its JVM has ended when the others are measured.
fn with_redisson(bench: &Bench, findings: &mut Findings) {
    let plan = &bench.plan;
    let mut java = None;
    if plan.peers && WITH_REDISSON.iter().any(|case| plan.wants(case)) {
        bench.progress("starting Redisson");
        java = bench.or_note("Redisson does not take part", Redisson::start(bench.url()));
    }
    if plan.wants("uncontended") {
        uncontended::run(bench, java.as_ref(), findings);
    }
    if plan.wants("contended") {
        contended::run(bench, java.as_ref(), findings);
    }
    if plan.wants("behind") {
        behind::run(bench, java.as_ref(), findings);
    }
    if plan.wants("kinds") {
        kinds::run(bench, java.as_ref(), findings);
    }
    if plan.wants("permits") {
        permits::run(bench, java.as_ref(), findings);
    }
}
