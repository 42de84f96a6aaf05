//! (c) One name, hold 1 ms, pause 2 ms: how fast the lock changes hands, how fairly, at what cost.

use std::time::Duration;

use crate::Result;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::contended::{Contended, HOLD, PAUSE, Section};
use crate::locks::{Info, PLAIN, Role, Setup};
use crate::redisson::{self, Redisson};
use crate::report::{Chart, Findings, Table, Target, figure};
use crate::roster::{Participant, Roster};
use crate::samples::Samples;
use crate::server::Counters;
use crate::stats;

/// Processes, tasks in each.
const SHAPES: &[(usize, usize)] = &[(1, 8), (4, 4), (1, 32)];
const ROUNDS: usize = 2;

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
    for round in 0..bench.plan.rounds(ROUNDS) {
        round_trips.extend(bench.floor_round_trip_us("contended"));
        for &shape in shapes {
            for who in bench.roster.those(|info| info.waits) {
                one(bench, &mut samples, who, round, shape);
            }
            if let Some(java) = java.filter(|_| shape.0 == 1) {
                let outcome = java_run(bench, java, &mut samples, round, shape);
                bench.or_note(redisson::NAME, outcome);
            }
        }
    }
    for &shape in shapes {
        findings.tables.push(table(&bench.roster, &samples, shape));
    }
    let floor = stats::median(&round_trips);
    targets(&bench.roster, &samples, floor, findings);
    findings.charts.push(chart(&bench.roster, &samples));
}

fn window(bench: &Bench) -> Duration {
    bench.plan.window(1500, 200)
}

fn config((processes, tasks): (usize, usize)) -> String {
    match processes {
        1 => format!("{tasks} tasks"),
        _ => format!("{processes} processes of {tasks} tasks"),
    }
}

fn one(
    bench: &Bench,
    samples: &mut Samples<Run>,
    who: &Participant,
    round: usize,
    shape: (usize, usize),
) {
    let (processes, tasks) = shape;
    let window = window(bench);
    let job = |process| bench.job(who, Load::Contended { tasks, process }, window);
    let jobs: Vec<_> = (0..processes).map(job).collect();
    let config = config(shape);
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
    shape: (usize, usize),
) -> Result<()> {
    let config = config(shape);
    bench.progress(&format!("contended, {config}: {}", redisson::NAME));
    let before = Counters::read(bench.url())?;
    let seen = java.contended(PLAIN, shape.1, window(bench))?;
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

fn table(roster: &Roster, samples: &Samples<Run>, shape: (usize, usize)) -> Table {
    let config = config(shape);
    let mut table = Table::new(
        &format!("Contended: one name, hold 1 ms, pause 2 ms, {config}"),
        "Hand-off: from just before the unlock to the return of the next lock, when somebody was waiting. \
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
                of(|run| run.commands).map(|commands| format!("{commands:.1}")),
                worst(|run| run.seen.gave_up as f64).map(figure),
                worst(|run| run.seen.overlaps as f64).map(figure),
            ],
        );
    }
    table
}

fn targets(roster: &Roster, samples: &Samples<Run>, floor: Option<f64>, findings: &mut Findings) {
    let ours = roster.name_of(Role::Ours);
    for &shape in SHAPES {
        let config = config(shape);
        let of = |value: fn(&Run) -> f64| samples.median(ours, &config, value);
        let p50 = of(|run| run.seen.handoff_p50_us);
        let p99 = of(|run| run.seen.handoff_p99_us);
        let tasks = (shape.0 * shape.1) as f64;
        let cycle_ms = (HOLD + PAUSE).as_secs_f64() * 1e3 + p50.unwrap_or(0.0) / 1e3;
        let worst = samples.worst(ours, &config, |run| run.seen.worst_wait_ms);
        let over = |what: &str| format!("{config}: {what} over the floor's round trip, µs");
        findings.targets.extend([
            Target::at_most(
                &over("hand-off p50"),
                200.0,
                p50.zip(floor).map(|(us, floor)| us - floor),
            ),
            Target::at_most(
                &over("hand-off p99"),
                2000.0,
                p99.zip(floor).map(|(us, floor)| us - floor),
            ),
            Target::at_most(
                &format!("{config}: worst wait, ms"),
                1.5 * tasks * cycle_ms,
                worst,
            ),
            Target::at_most(
                &format!("{config}: overlapping sections"),
                0.0,
                samples.worst(ours, &config, |run| run.seen.overlaps as f64),
            ),
        ]);
        against_others(roster, samples, &config, findings);
    }
    let commands = |shape| samples.median(ours, &config(shape), |run| run.commands);
    let ratio = commands((1, 32)).zip(commands((1, 8)));
    let ratio = ratio.map(|(many, few)| many / few);
    let what = "commands per section, 32 tasks over 8 tasks";
    findings.targets.push(Target::at_most(what, 1.10, ratio));
}

fn against_others(roster: &Roster, samples: &Samples<Run>, config: &str, findings: &mut Findings) {
    let ours = roster.name_of(Role::Ours);
    let default = |peer: &Info| peer.role == Role::Peer && peer.setup == Setup::Default;
    for peer in roster.names(default) {
        let what = format!("{config}: sections per second, of {peer}");
        let ratio = samples.ratio(ours, peer, config, |run| run.seen.per_second);
        findings.targets.push(Target::at_least(&what, 1.5, ratio));
    }
    if config.contains("processes") {
        return; // the Java peer is one process
    }
    let what = format!("{config}: hand-off p50, of {}", redisson::NAME);
    let ratio = samples.ratio(ours, redisson::NAME, config, |run| run.seen.handoff_p50_us);
    findings.targets.push(Target::at_most(&what, 0.6, ratio));
}

fn chart(roster: &Roster, samples: &Samples<Run>) -> Chart {
    let mut chart = Chart::new("handoff", "Contended hand-off, p50", "µs");
    chart.logarithmic = true;
    chart.groups = SHAPES.iter().map(|shape| config(*shape)).collect();
    for row in rows(roster) {
        let configs = SHAPES.iter().map(|shape| config(*shape));
        let p50 = configs.map(|config| samples.median(row, &config, |run| run.seen.handoff_p50_us));
        chart.series(row, p50.collect());
    }
    chart
}
