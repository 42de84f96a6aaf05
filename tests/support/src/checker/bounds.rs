//! I6: bounded tries and releases return in time, and a try is answered busy only if the lock is.

use super::model::{Model, Op};
use super::report::{Breach, Invariant, Report, ms};
use super::wakeups::Busy;
use super::{Settings, ns};
use crate::history::{Call, Outcome};

pub(super) fn check(model: &Model, report: &mut Report) {
    let busy = Busy::of(model);
    for op in &model.ops {
        let Some(outcome) = op.outcome else {
            continue;
        };
        if let Some(bound) = bound(op, &model.settings) {
            report.looked(Invariant::I6);
            let took = op.span.len() - model.stopped(op.client, op.span);
            if took > bound {
                report.add(Breach::Slow { took, bound }, op.name, op.evidence());
            }
        }
        if *outcome == Outcome::Busy && !model.excuses(op).hits(op.span) {
            report.looked(Invariant::I6);
            if !busy.wanted_by_others(op, model) {
                report.add(Breach::BusyWhileFree, op.name, op.evidence());
            }
        }
    }
}

/// How long an operation may take, including 50 ms of its own and the machine's blur.
fn bound(op: &Op, settings: &Settings) -> Option<u64> {
    let wait = match op.call {
        Call::Acquire { wait_ms, .. } => ms((*wait_ms)?),
        Call::Release => 0,
        Call::Drop => return None,
    };
    let bound = wait.max(ns(settings.command_timeout));
    Some(bound.saturating_add(ms(50) + ns(settings.scheduling)))
}
