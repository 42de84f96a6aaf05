//! How long another process waits behind a client whose tasks never pause: one that listens, one that polls, and Java.

use std::time::Duration;

use crate::Result;
use crate::bench::Bench;
use crate::child;
use crate::load::Load;
use crate::load::contended::{Contended, NAME, Section, Work};
use crate::locks::{PLAIN, Role};
use crate::redisson::{self, Redisson};
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::samples::Samples;
use crate::stats::percentile;

const TASKS: usize = 8;
const ROUNDS: usize = 3;
/// What the client that never pauses does.
const WORK: Work = Work {
    hold_us: 50,
    pause_us: 0,
};
/// What the other process does.
const OTHER: Work = Work {
    hold_us: 0,
    pause_us: 20_000,
};
/// The longest that it should wait.
const LONGEST_MS: f64 = 25.0;

/// What the other process saw.
struct Waits {
    sections: f64,
    p50_ms: Option<f64>,
    worst_ms: f64,
}

impl Waits {
    fn of(sections: &[Section]) -> Self {
        let ms = |section: &Section| {
            let until = section.entered.unwrap_or(section.left);
            until.saturating_sub(section.asked) as f64 / 1e6
        };
        let waits: Vec<f64> = sections.iter().map(ms).collect();
        Self {
            sections: sections.len() as f64,
            p50_ms: percentile(&waits, 0.5),
            worst_ms: waits.iter().copied().fold(0.0, f64::max),
        }
    }
}

pub(crate) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let Some(ours) = bench.roster.those(|info| info.role == Role::Ours).pop() else {
        return;
    };
    let spins = bench.roster.of_kind("spin");
    let spins = spins.into_iter().filter(|who| who.info.role == Role::Ours);
    let others: Vec<_> = [ours].into_iter().chain(spins).collect();
    let mut samples = Samples::new();
    for round in 0..bench.plan.rounds(ROUNDS) {
        for who in &others {
            bench.progress(&format!("behind a busy client: {}", who.info.name));
            let waits = behind(bench, ours, who);
            if let Some(waits) = bench.or_note(&who.info.name, waits) {
                samples.add(&who.info.name, "", round, waits);
            }
        }
        if let Some(java) = java {
            bench.progress(&format!("behind a busy client: {}", redisson::NAME));
            for kind in [PLAIN, "spin"] {
                let waits = java_behind(bench, ours, java, kind);
                if let Some(waits) = bench.or_note(redisson::NAME, waits) {
                    samples.add(&java_name(kind), "", round, waits);
                }
            }
        }
    }
    let rows = others.iter().map(|who| who.info.name.clone());
    let rows: Vec<_> = rows.chain([PLAIN, "spin"].map(java_name)).collect();
    report(&samples, &rows, findings);
}

fn java_name(kind: &str) -> String {
    if kind == PLAIN {
        redisson::NAME.to_owned()
    } else {
        format!("{} {kind}", redisson::NAME)
    }
}

fn window(bench: &Bench) -> Duration {
    bench.plan.window(1500, 400)
}

fn busy(bench: &Bench, ours: &Participant, process: usize) -> crate::load::Job {
    let load = Load::Contended {
        tasks: TASKS,
        process,
        work: WORK,
    };
    // It starts before the other one comes, and stays until that has gone.
    bench.job(ours, load, window(bench))
}

fn behind(bench: &Bench, ours: &Participant, who: &Participant) -> Result<Waits> {
    bench.clear()?;
    let load = Load::Contended {
        tasks: 1,
        process: TASKS,
        work: OTHER,
    };
    let jobs = [busy(bench, ours, 0), bench.job(who, load, window(bench))];
    let measured = child::measure::<Vec<Section>>(bench.url(), &ours.program, &jobs)?;
    Ok(Waits::of(&measured.answers[1]))
}

fn java_behind(bench: &Bench, ours: &Participant, java: &Redisson, kind: &str) -> Result<Waits> {
    bench.clear()?;
    let (url, program) = (bench.url().to_owned(), ours.program.clone());
    let jobs = [busy(bench, ours, 0)];
    let rust =
        std::thread::spawn(move || child::measure::<Vec<Section>>(&url, &program, &jobs).map(drop));
    let seen = java.contended(kind, NAME, 1, OTHER, window(bench));
    rust.join().map_err(|_| "the busy client panicked")??;
    let Contended {
        sections,
        worst_wait_ms,
        ..
    } = seen?;
    Ok(Waits {
        sections: sections as f64,
        p50_ms: None,
        worst_ms: worst_wait_ms,
    })
}

fn report(samples: &Samples<Waits>, rows: &[String], findings: &mut Findings) {
    let mut table = Table::new(
        "Another process behind a client that never pauses",
        "Eight tasks of one watchlock client take the lock in turn, with sections of 50 µs and no pause. One task of \
         another process wants it every 20 ms. A spin lock listens to nothing. Redisson's backs off, up to \
         128 ms, and meets the millisecond in which the lock is left free by luck; ours does not while the lock changes \
         hands.",
    );
    table.columns(["sections", "wait p50 ms", "worst wait ms"].map(str::to_owned));
    for row in rows {
        if !samples.has(row, "") {
            continue;
        }
        let worst = samples.worst(row, "", |waits| waits.worst_ms);
        let p50 = samples.median(row, "", |waits| waits.p50_ms.unwrap_or(0.0));
        table.row(
            row,
            [
                samples.median(row, "", |waits| waits.sections).map(figure),
                p50.filter(|ms| *ms > 0.0).map(figure),
                worst.map(figure),
            ],
        );
        let what = format!("behind a client that never pauses: worst wait of {row}, ms");
        findings
            .targets
            .push(Target::at_most(&what, LONGEST_MS, worst));
    }
    findings.tables.push(table);
}
