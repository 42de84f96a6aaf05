//! A smaller plan that fails in the same way: fewer sections, faults, processes, owners and names.
//!
//! Each run is a deterministic one of an overridden plan. A smaller plan draws other sections, so what it shows need not be
//! the same history, only a violation of the same kind.

use crate::plan::Plan;
use crate::run::{Outcome, Traced, run};

/// A plan that fails, and what came out of it.
struct Shrinking {
    plan: Plan,
    outcome: Outcome,
    kinds: Vec<String>,
    runs_left: usize,
}

/// Makes a plan that failed smaller, in at most so many runs.
#[must_use]
pub fn shrink(plan: Plan, outcome: Outcome, runs: usize) -> (Plan, Outcome) {
    let kinds = outcome.violations.iter().map(|text| kind(text)).collect();
    let mut shrinking = Shrinking {
        plan,
        outcome,
        kinds,
        runs_left: runs,
    };
    shrinking.sections();
    shrinking.faults();
    shrinking.counts();
    shrinking.sections();
    (shrinking.plan, shrinking.outcome)
}

/// What a violation says, without its numbers, names and evidence.
fn kind(violation: &str) -> String {
    let said = violation.split(['{', '"', '\n']).next().unwrap_or("");
    said.chars().filter(|char| !char.is_ascii_digit()).collect()
}

impl Shrinking {
    /// Keeps a smaller plan if it fails in the same way.
    fn keeps(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let mut plan = self.plan.clone();
        change(&mut plan);
        let outcome = run(&plan, Traced::Sum);
        let mut found = outcome.violations.iter().map(|text| kind(text));
        let fails = found.any(|found| self.kinds.contains(&found));
        if fails {
            (self.plan, self.outcome) = (plan, outcome);
        }
        fails
    }

    fn sections(&mut self) {
        let mut less = self.plan.sections / 2;
        while less > 0 {
            let wanted = self.plan.sections - less;
            if wanted == 0 || !self.keeps(|plan| plan.sections = wanted) {
                less /= 2;
            } else {
                less = less.min(self.plan.sections / 2);
            }
        }
    }

    /// Leaves out halves of the faults, then quarters, and so on.
    fn faults(&mut self) {
        let mut size = self.outcome.faults.div_ceil(2);
        while size > 0 && self.runs_left > 0 {
            let mut from = 0;
            while from < self.outcome.faults {
                let skipped = &self.plan.skipped;
                let more = from..(from + size).min(self.outcome.faults);
                let more: Vec<_> = more.filter(|fault| !skipped.contains(fault)).collect();
                if !more.is_empty() {
                    self.keeps(|plan| plan.skipped.extend(more));
                }
                from += size;
            }
            size /= 2;
        }
        let faults = self.outcome.faults;
        self.plan.skipped.retain(|fault| *fault < faults);
        self.plan.skipped.sort_unstable();
    }

    fn counts(&mut self) {
        self.count(|plan| &mut plan.owners);
        self.count(|plan| &mut plan.processes);
        self.count(|plan| &mut plan.names);
    }

    fn count(&mut self, count: impl Fn(&mut Plan) -> &mut usize) {
        loop {
            let now = *count(&mut self.plan);
            let fewer = |to: usize| (to > 0 && to < now).then_some(to);
            let kept = [fewer(now / 2), fewer(now - 1)];
            let mut kept = kept.into_iter().flatten();
            if !kept.any(|to| self.keeps(|plan| *count(plan) = to)) {
                return;
            }
        }
    }
}
