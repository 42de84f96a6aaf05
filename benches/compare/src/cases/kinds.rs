//! (h) The other kinds of lock: compared with their own commands sent raw, and with Redisson's of the same kind.

mod readers;

use std::time::Duration;

use crate::bench::Bench;
use crate::load::Load;
use crate::load::contended::{Contended, NAME, Section, Work};
use crate::load::pairs::Pairs;
use crate::locks::{OF_SEMAPHORE, PLAIN, Role};
use crate::redisson::Redisson;
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::samples::Samples;

/// A kind, and whether its pairs have targets.
const KINDS: [(&str, bool); 7] = [
    ("fenced", true),
    ("simple", true),
    ("spin", false),
    ("fair", false),
    ("read", true),
    ("write", true),
    (OF_SEMAPHORE, true),
];
/// Not shared with Redisson.
const OURS_ALONE: &str = "simple";
const TASKS: &[usize] = &[1, 64];
const ROUNDS: usize = 11;

pub(crate) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    pairs(bench, java, findings);
    hand_overs(bench, java, findings);
    readers::run(bench, java, findings);
}

/// The name of Redisson's rows.
pub(super) fn java_name(kind: &str) -> String {
    format!("Redisson {kind}")
}

fn pairs(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let mut samples = Samples::new();
    let window = bench.plan.window(90, 60);
    let java_kinds = KINDS.iter().filter(|(kind, _)| *kind != OURS_ALONE);
    for (kind, _) in java_kinds.clone() {
        if let Some(java) = java {
            let warm = java.pairs(kind, 16, bench.plan.window(1500, 200));
            bench.or_note("warming Redisson up", warm);
        }
    }
    for round in 0..bench.plan.rounds(ROUNDS) {
        for &tasks in TASKS {
            let config = config(tasks);
            for (kind, _) in KINDS {
                let mut who = bench.roster.of_kind(kind);
                if round % 2 == 1 {
                    who.reverse();
                }
                for who in who {
                    let job = bench.job(who, Load::Pairs { tasks }, window);
                    let case = format!("kinds, {config}");
                    let measured = bench.measure::<Pairs>(&case, who, &[job]);
                    for pairs in measured.into_iter().flat_map(|measured| measured.answers) {
                        samples.add(&who.info.name, &config, round, pairs);
                    }
                }
            }
            for (kind, _) in java_kinds.clone() {
                let Some(java) = java else { continue };
                let pairs = java.pairs(kind, tasks, window);
                if let Some(pairs) = bench.or_note(&java_name(kind), pairs) {
                    samples.add(&java_name(kind), &config, round, pairs);
                }
            }
        }
    }
    findings.tables.push(pairs_table(bench, &samples));
    for (kind, wanted) in KINDS {
        if wanted {
            pairs_targets(bench, &samples, kind, findings);
        }
    }
}

fn config(tasks: usize) -> String {
    format!("{tasks} task{}", if tasks == 1 { "" } else { "s" })
}

/// For a kind: ours, and its commands sent raw.
fn names<'a>(bench: &'a Bench, kind: &str) -> (&'a str, &'a str) {
    let who = bench.roster.of_kind(kind);
    let name = |role: Role| {
        let of_role = who.iter().find(|who| who.info.role == role);
        of_role.map_or("", |who| who.info.name.as_str())
    };
    (name(Role::Ours), name(Role::Floor))
}

fn pairs_table(bench: &Bench, samples: &Samples<Pairs>) -> Table {
    let mut table = Table::new(
        "Kinds of lock, uncontended: pairs per second (share of its own commands sent raw), p50 µs",
        "Lock and unlock, each task its own name. Raw: the kind's scripts on one multiplexed connection, no \
         library.",
    );
    table.columns(TASKS.iter().map(|tasks| config(*tasks)));
    for (kind, _) in KINDS {
        let (ours, raw) = names(bench, kind);
        for row in [raw, ours, &java_name(kind)] {
            let cells = TASKS.iter().map(|tasks| {
                let config = config(*tasks);
                let per_second = samples.median(row, &config, |pair| pair.per_second)?;
                let share = samples.ratio(row, raw, &config, |pair| pair.per_second)?;
                let p50 = samples.median(row, &config, |pair| pair.p50_us)?;
                Some(format!(
                    "{} ({share:.2}), {}",
                    figure(per_second),
                    figure(p50)
                ))
            });
            let cells: Vec<_> = cells.collect();
            if cells.iter().any(Option::is_some) {
                table.row(row, cells);
            }
        }
    }
    table
}

fn pairs_targets(bench: &Bench, samples: &Samples<Pairs>, kind: &str, findings: &mut Findings) {
    let (ours, raw) = names(bench, kind);
    for &tasks in TASKS {
        let config = config(tasks);
        let ratio = samples.ratio(ours, raw, &config, |pair| pair.per_second);
        let what = format!("{kind}, {config}: throughput, of its commands sent raw");
        findings.targets.push(Target::at_least(&what, 0.95, ratio));
        let ratio = samples.ratio(ours, raw, &config, |pair| pair.p50_us);
        let what = format!("{kind}, {config}: p50, of its commands sent raw");
        findings.targets.push(Target::at_most(&what, 1.10, ratio));
    }
}

/// The work under a contended fair lock.
const WORK: Work = Work {
    hold_us: 1_000,
    pause_us: 2_000,
};
/// Processes of one task each: inside a process the plain lock would be passed on without a command.
const PROCESSES: usize = 4;
const HAND_OVER_ROUNDS: usize = 9;
const FAIR: &str = "fair";
const HAND_OVER: &str = "hand-over";

/// How a lock goes from process to process: the fair one compared with the plain one.
fn hand_overs(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let mut samples = Samples::new();
    let window = bench.plan.window(1000, 200);
    let ours = |kind| {
        let all = bench.roster.of_kind(kind).into_iter();
        all.filter(|who| who.info.role == Role::Ours)
    };
    for round in 0..bench.plan.rounds(HAND_OVER_ROUNDS) {
        for who in ours(PLAIN).chain(ours(FAIR)) {
            if let Some(seen) = hand_over(bench, who, window) {
                samples.add(&who.info.name, HAND_OVER, round, seen);
            }
        }
        if let Some(java) = java {
            let seen = java.contended(FAIR, NAME, PROCESSES, WORK, window);
            if let Some(seen) = bench.or_note(&java_name(FAIR), seen) {
                samples.add(&java_name(FAIR), HAND_OVER, round, seen);
            }
        }
    }
    let (plain, fair) = (names(bench, PLAIN).0, names(bench, FAIR).0);
    let java = java_name(FAIR);
    findings
        .tables
        .push(hand_over_table(&samples, [plain, fair, &java]));
    let p50 = |seen: &Contended| seen.handoff_p50_us;
    findings.targets.extend([
        Target::at_most(
            "fair, between processes: hand-over p50, of the plain lock's",
            1.3,
            samples.ratio(fair, plain, HAND_OVER, p50),
        ),
        Target::at_most(
            "fair: hand-over p50, of Redisson's fair lock's",
            0.6,
            samples.ratio(fair, &java, HAND_OVER, p50),
        ),
        Target::at_most(
            "fair, between processes: overlapping sections",
            0.0,
            samples.worst(fair, HAND_OVER, |seen| seen.overlaps as f64),
        ),
    ]);
}

fn hand_over(bench: &Bench, who: &Participant, window: Duration) -> Option<Contended> {
    let job = |process| {
        let work = WORK;
        bench.job(
            who,
            Load::Contended {
                tasks: 1,
                process,
                work,
            },
            window,
        )
    };
    let jobs: Vec<_> = (0..PROCESSES).map(job).collect();
    let measured = bench.measure::<Vec<Section>>("kinds, hand-over", who, &jobs)?;
    Some(Contended::of(measured.answers.concat(), window))
}

fn hand_over_table(samples: &Samples<Contended>, rows: [&str; 3]) -> Table {
    let mut table = Table::new(
        &format!(
            "Hand-over of the fair lock: one name, hold 1 ms, pause 2 ms, {PROCESSES} processes of one task"
        ),
        "From just before the unlock to the return of the next lock, when somebody was waiting: always from one \
         process to another. Redisson: as many threads of one process.",
    );
    let columns = ["sections/s", "hand-over p50 µs", "p99 µs", "worst wait ms"];
    table.columns(columns.map(str::to_owned));
    for row in rows {
        if !samples.has(row, HAND_OVER) {
            continue;
        }
        let of = |value: fn(&Contended) -> f64| samples.median(row, HAND_OVER, value);
        let cells = [
            of(|seen| seen.per_second),
            of(|seen| seen.handoff_p50_us),
            of(|seen| seen.handoff_p99_us),
            samples.worst(row, HAND_OVER, |seen| seen.worst_wait_ms),
        ];
        table.row(row, cells.map(|cell| cell.map(figure)));
    }
    table
}
