//! (c) One name: how fast the lock changes hands, how fairly, at what cost; and how long another process waits behind a
//! client that never pauses (`behind`).

use std::time::Duration;

use crate::Result;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::contended::{Contended, NAME, Section, Work};
use crate::locks::{Info, PLAIN, Role, Setup};
use crate::redisson::{self, Redisson};
use crate::report::{Chart, Findings, Table, Target, figure};
use crate::roster::{Participant, Roster};
use crate::samples::Samples;
use crate::server::Counters;
use crate::stats;

/// Processes, tasks in each.
type Shape = (usize, usize);

const SHAPES: &[Shape] = &[(1, 8), (4, 4), (1, 32)];
/// What a section does: nothing, a little, much. When it is much, tasks also do something else.
const WORKS: &[Work] = &[
    Work {
        hold_us: 0,
        pause_us: 0,
    },
    Work {
        hold_us: 50,
        pause_us: 0,
    },
    Work {
        hold_us: 1_000,
        pause_us: 2_000,
    },
];
/// The one that the charts show.
const SHOWN: Work = WORKS[1];
const ROUNDS: usize = 3;

/// A run and what it cost the server.
struct Run {
    seen: Contended,
    commands: f64,
}

impl Run {
    fn new(seen: Contended, counters: &Counters, commands: &[impl AsRef<str>]) -> Self {
        let calls = counters.calls_of(commands) as f64;
        let commands = calls / seen.sections.max(1) as f64;
        Self { seen, commands }
    }
}

pub(crate) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let mut samples = Samples::new();
    let mut round_trips = Vec::new();
    let shapes = bench.plan.some(SHAPES, 2);
    let works = bench.plan.some(WORKS, 2);
    for round in 0..bench.plan.rounds(ROUNDS) {
        round_trips.extend(bench.floor_round_trip_us("contended"));
        for (&shape, &work) in pairs(shapes, works) {
            let mut all = bench.roster.those(|info| info.waits);
            let shift = round % all.len();
            all.rotate_left(shift);
            for who in all {
                one(bench, &mut samples, who, round, (shape, work));
            }
            if let Some(java) = java.filter(|_| shape.0 == 1) {
                let outcome = java_run(bench, java, &mut samples, round, (shape, work));
                bench.or_note(redisson::NAME, outcome);
            }
        }
    }
    for (&shape, &work) in pairs(shapes, works) {
        let table = table(&bench.roster, &samples, shape, work);
        findings.tables.push(table);
    }
    let floor = stats::median(&round_trips);
    targets(&bench.roster, &samples, floor, findings);
    findings.charts.extend(charts(&bench.roster, &samples));
}

fn pairs<'a>(
    shapes: &'a [Shape],
    works: &'a [Work],
) -> impl Iterator<Item = (&'a Shape, &'a Work)> {
    let each = move |work| shapes.iter().map(move |shape| (shape, work));
    works.iter().flat_map(each)
}

fn window(bench: &Bench) -> Duration {
    bench.plan.window(500, 200)
}

fn shape_of((processes, tasks): Shape) -> String {
    match processes {
        1 => format!("{tasks} tasks"),
        _ => format!("{processes} processes of {tasks} tasks"),
    }
}

fn config(shape: Shape, work: Work) -> String {
    format!("{}, sections of {} µs", shape_of(shape), work.hold_us)
}

fn one(
    bench: &Bench,
    samples: &mut Samples<Run>,
    who: &Participant,
    round: usize,
    (shape, work): (Shape, Work),
) {
    let (processes, tasks) = shape;
    let window = window(bench);
    let job = |process| {
        let load = Load::Contended {
            tasks,
            process,
            work,
        };
        bench.job(who, load, window)
    };
    let jobs: Vec<_> = (0..processes).map(job).collect();
    let config = config(shape, work);
    let case = format!("contended, {config}");
    let measured = bench.measure::<Vec<Section>>(&case, who, &jobs);
    if let Some(measured) = measured {
        let seen = Contended::of(measured.answers.concat(), window);
        let run = Run::new(seen, &measured.counters, &who.info.commands);
        samples.add(&who.info.name, &config, round, run);
    }
}

fn java_run(
    bench: &Bench,
    java: &Redisson,
    samples: &mut Samples<Run>,
    round: usize,
    (shape, work): (Shape, Work),
) -> Result<()> {
    let config = config(shape, work);
    bench.progress(&format!("contended, {config}: {}", redisson::NAME));
    bench.clear()?;
    let before = Counters::read(bench.url())?;
    let seen = java.contended(PLAIN, NAME, shape.1, work, window(bench))?;
    let counters = Counters::read(bench.url())?.since(&before);
    let run = Run::new(seen, &counters, redisson::COMMANDS);
    samples.add(redisson::NAME, &config, round, run);
    Ok(())
}

fn rows(roster: &Roster) -> Vec<&str> {
    let mut rows = roster.names(|info| info.waits);
    rows.push(redisson::NAME);
    rows
}

fn table(roster: &Roster, samples: &Samples<Run>, shape: Shape, work: Work) -> Table {
    let config = config(shape, work);
    let mut table = Table::new(
        &format!(
            "Contended: one name, {config}, pauses of {} µs",
            work.pause_us
        ),
        "A section computes for that long; nobody sleeps in it. Hand-off: from just before the unlock to the return of the next lock, when somebody was waiting. \
         Commands: sent by the clients, from the server's counters. Overlaps must be 0.",
    );
    let columns = [
        "sections/s",
        "hand-off p50 µs",
        "p99 µs",
        "to others",
        "worst wait ms",
        "commands/section",
        "gave up",
        "overlaps",
    ];
    table.columns(columns.map(str::to_owned));
    for row in rows(roster) {
        if !samples.has(row, &config) {
            continue;
        }
        let of = |value: fn(&Run) -> f64| samples.median(row, &config, value);
        let handed = |value| of(value).filter(|us| *us > 0.0).map(figure);
        let worst = |value: fn(&Run) -> f64| samples.worst(row, &config, value);
        table.row(
            row,
            [
                of(|run| run.seen.per_second).map(figure),
                handed(|run| run.seen.handoff_p50_us),
                handed(|run| run.seen.handoff_p99_us),
                of(|run| run.seen.cross * 100.0).map(|share| format!("{share:.0} %")),
                worst(|run| run.seen.worst_wait_ms).map(figure),
                of(|run| run.commands).map(|commands| format!("{commands:.2}")),
                worst(|run| run.seen.gave_up as f64).map(figure),
                worst(|run| run.seen.overlaps as f64).map(figure),
            ],
        );
    }
    table
}

fn targets(roster: &Roster, samples: &Samples<Run>, floor: Option<f64>, findings: &mut Findings) {
    let ours = roster.name_of(Role::Ours);
    for (&shape, &work) in pairs(SHAPES, WORKS) {
        let config = config(shape, work);
        let of = |value: fn(&Run) -> f64| samples.median(ours, &config, value);
        let (p50, p99) = (
            of(|run| run.seen.handoff_p50_us),
            of(|run| run.seen.handoff_p99_us),
        );
        let tasks = (shape.0 * shape.1) as f64;
        let what = format!("{config}: hand-off p99 over the floor's round trip, µs");
        let over = p99.zip(floor).map(|(us, floor)| us - floor);
        // After a row the lock stays free for a millisecond.
        findings.targets.push(Target::at_most(&what, 4_000.0, over));
        let cycle = work.hold() + work.pause();
        let cycle_ms = cycle.as_secs_f64() * 1e3 + p50.unwrap_or(0.0) / 1e3;
        let worst = samples.worst(ours, &config, |run| run.seen.worst_wait_ms);
        // Each process may have a row of its own before.
        let rows_ms = 15.0 * shape.0 as f64;
        let what = format!("{config}: worst wait, ms");
        let longest = 1.5 * tasks * cycle_ms + rows_ms;
        findings
            .targets
            .push(Target::at_most(&what, longest, worst));
        let overlaps = samples.worst(ours, &config, |run| run.seen.overlaps as f64);
        let what = format!("{config}: overlapping sections");
        findings.targets.push(Target::at_most(&what, 0.0, overlaps));
        if shape.0 == 1 {
            let what = format!("{config}: hand-off p50, µs");
            findings.targets.push(Target::at_most(&what, 60.0, p50));
        }
        against_others(roster, samples, (shape, work), findings);
    }
    let commands = samples.median(ours, &config((1, 8), SHOWN), |run| run.commands);
    let what = format!("{}: commands per section", config((1, 8), SHOWN));
    findings.targets.push(Target::at_most(&what, 0.3, commands));
}

fn against_others(
    roster: &Roster,
    samples: &Samples<Run>,
    (shape, work): (Shape, Work),
    findings: &mut Findings,
) {
    let ours = roster.name_of(Role::Ours);
    let config = config(shape, work);
    let p50 = |run: &Run| run.seen.handoff_p50_us;
    let speed = |run: &Run| run.seen.per_second;
    let default = |peer: &Info| peer.role == Role::Peer && peer.setup == Setup::Default;
    for peer in roster.names(default) {
        let what = format!("{config}: sections per second, of {peer}");
        let ratio = samples.ratio(ours, peer, &config, speed);
        findings.targets.push(Target::at_least(&what, 1.5, ratio));
    }
    if shape.0 > 1 {
        // The Java peer is one process.
        for peer in roster.names(|info| info.name == "rslock tuned") {
            let what = format!("{config}: hand-off p50, of {peer}");
            let ratio = samples.ratio(ours, peer, &config, p50);
            findings.targets.push(Target::at_most(&what, 1.0, ratio));
        }
        return;
    }
    let what = format!("{config}: hand-off p50, of {}", redisson::NAME);
    let ratio = samples.ratio(ours, redisson::NAME, &config, p50);
    findings.targets.push(Target::at_most(&what, 0.2, ratio));
    if work.pause_us == 0 && shape == (1, 8) {
        let what = format!("{config}: sections per second, of {}", redisson::NAME);
        let ratio = samples.ratio(ours, redisson::NAME, &config, speed);
        findings.targets.push(Target::at_least(&what, 20.0, ratio));
    }
}

fn charts(roster: &Roster, samples: &Samples<Run>) -> [Chart; 3] {
    let chart = |file: &str, title: &str, unit: &str, value: fn(&Run) -> f64, worst: bool| {
        let mut chart = Chart::new(file, title, unit);
        chart.groups = SHAPES.iter().map(|shape| shape_of(*shape)).collect();
        for row in rows(roster) {
            let values = SHAPES.iter().map(|shape| {
                let config = config(*shape, SHOWN);
                if worst {
                    samples.worst(row, &config, value)
                } else {
                    samples.median(row, &config, value)
                }
            });
            chart.series(row, values.collect());
        }
        chart
    };
    let title = |what: &str| format!("One lock, sections of {} µs: {what}", SHOWN.hold_us);
    let throughput = |run: &Run| run.seen.per_second;
    let wait = |run: &Run| run.seen.worst_wait_ms;
    let handoff = |run: &Run| run.seen.handoff_p50_us;
    [
        chart(
            "contended",
            &title("sections per second"),
            "sections per second",
            throughput,
            false,
        ),
        chart("worst-wait", &title("worst wait"), "ms", wait, true),
        chart("handoff", &title("hand-off, p50"), "µs", handoff, false),
    ]
}
