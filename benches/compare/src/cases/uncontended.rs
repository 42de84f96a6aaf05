//! (a) Lock and unlock, each task its own name: throughput and latency against the floor.

use crate::Result;
use crate::bench::Bench;
use crate::load::pairs::Pairs;
use crate::load::{Flavor, Load};
use crate::locks::{PLAIN, Role, Setup};
use crate::redis_benchmark;
use crate::redisson::{self, Redisson};
use crate::report::{Chart, Findings, Table, Target, figure};
use crate::roster::{Participant, Roster};
use crate::samples::Samples;
use crate::server::Counters;

const TASKS: &[usize] = &[1, 16, 64, 256];
const ROUNDS: usize = 15;
/// The row of the server's own limit.
const LIMIT: &str = "redis-benchmark";

pub(crate) fn run(bench: &Bench, java: Option<&Redisson>, findings: &mut Findings) {
    let mut samples = Samples::new();
    warm_up(bench, java);
    for round in 0..bench.plan.rounds(ROUNDS) {
        for &tasks in bench.plan.some(TASKS, 2) {
            multi_thread(bench, java, &mut samples, round, tasks);
            current_thread(bench, &mut samples, round, tasks);
            limit(bench, &mut samples, round, tasks);
        }
    }
    tables(&bench.roster, &samples, findings);
    targets(&bench.roster, &samples, findings);
    charts(&bench.roster, &samples, findings);
}

/// What the server itself can do, measured between the others.
fn limit(bench: &Bench, samples: &mut Samples<Pairs>, round: usize, tasks: usize) {
    let what = format!("uncontended, {tasks} tasks: {LIMIT}");
    bench.progress(&what);
    let limit = redis_benchmark::pairs_per_second(bench, tasks);
    if let Some(per_second) = bench.or_note(&what, limit) {
        let config = config(Flavor::MultiThread, tasks);
        samples.add(LIMIT, &config, round, only(per_second));
    }
}

fn only(per_second: f64) -> Pairs {
    Pairs {
        per_second,
        p50_us: 0.0,
        p99_us: 0.0,
        cpu_us: 0.0,
        server_us: 0.0,
    }
}

/// Java's compiler needs some thousand pairs.
fn warm_up(bench: &Bench, java: Option<&Redisson>) {
    if let Some(java) = java {
        let window = bench.plan.window(3000, 300);
        bench.or_note("warming Redisson up", java.pairs(PLAIN, 16, window));
    }
}

fn multi_thread(
    bench: &Bench,
    java: Option<&Redisson>,
    samples: &mut Samples<Pairs>,
    round: usize,
    tasks: usize,
) {
    let config = config(Flavor::MultiThread, tasks);
    let mut who = bench.roster.those(|_| true);
    let shift = round % who.len();
    who.rotate_left(shift);
    for entrant in who {
        one(bench, samples, entrant, round, Flavor::MultiThread, tasks);
    }
    if let Some(java) = java {
        bench.progress(&format!("uncontended, {config}: {}", redisson::NAME));
        let pairs = java_pairs(bench, java, tasks);
        if let Some(pairs) = bench.or_note(&config, pairs) {
            samples.add(redisson::NAME, &config, round, pairs);
        }
    }
}

fn java_pairs(bench: &Bench, java: &Redisson, tasks: usize) -> Result<Pairs> {
    let window = bench.plan.window(90, 60);
    let before = Counters::read(bench.url())?;
    let pairs = java.pairs(PLAIN, tasks, window)?;
    let spent = Counters::read(bench.url())?.since(&before);
    Ok(pairs.with_server(spent.cpu_seconds, window))
}

fn current_thread(bench: &Bench, samples: &mut Samples<Pairs>, round: usize, tasks: usize) {
    let mut who = bench.roster.those(|info| info.role != Role::Peer);
    if round % 2 == 1 {
        who.reverse();
    }
    for entrant in who {
        one(bench, samples, entrant, round, Flavor::CurrentThread, tasks);
    }
}

fn one(
    bench: &Bench,
    samples: &mut Samples<Pairs>,
    who: &Participant,
    round: usize,
    flavor: Flavor,
    tasks: usize,
) {
    let window = bench.plan.window(90, 60);
    let mut job = bench.job(who, Load::Pairs { tasks }, window);
    job.flavor = flavor;
    let config = config(flavor, tasks);
    let measured = bench.measure::<Pairs>(&format!("uncontended, {config}"), who, &[job]);
    let Some(measured) = measured else { return };
    for pairs in measured.answers {
        let pairs = pairs.with_server(measured.counters.cpu_seconds, window);
        samples.add(&who.info.name, &config, round, pairs);
    }
}

fn config(flavor: Flavor, tasks: usize) -> String {
    let runtime = match flavor {
        Flavor::MultiThread => "",
        Flavor::CurrentThread => ", current-thread",
    };
    format!("{}{runtime}", count(tasks))
}

fn count(tasks: usize) -> String {
    format!("{tasks} task{}", if tasks == 1 { "" } else { "s" })
}

fn rows(roster: &Roster) -> Vec<&str> {
    let mut rows = vec![LIMIT];
    rows.extend(roster.names(|_| true));
    rows.push(redisson::NAME);
    rows
}

fn tables(roster: &Roster, samples: &Samples<Pairs>, findings: &mut Findings) {
    let floor = roster.name_of(Role::Floor);
    for flavor in [Flavor::MultiThread, Flavor::CurrentThread] {
        let on = match flavor {
            Flavor::MultiThread => "multi-thread runtime",
            Flavor::CurrentThread => "current-thread runtime",
        };
        findings.tables.push(table(roster, samples, flavor, Table::new(
            &format!("Uncontended, {on}: pairs per second (share of the floor)"),
            "Lock and unlock, each task its own name. redis-benchmark: the same two scripts over one \
             connection with as many commands in flight, the server's own limit.",
        ), |row, config| {
            let per_second = samples.median(row, config, |pair| pair.per_second)?;
            let ratio = samples.ratio(row, floor, config, |pair| pair.per_second)?;
            Some(format!("{} ({ratio:.2})", figure(per_second)))
        }));
        findings.tables.push(table(
            roster,
            samples,
            flavor,
            Table::new(
                &format!("Uncontended, {on}: µs per pair, p50 / p99, and CPU"),
                "CPU per pair: of the whole client process + of the server, where the time goes when many \
                 tasks share it. A SET NX costs the server less than a script.",
            ),
            |row, config| {
                let p50 = samples
                    .median(row, config, |pair| pair.p50_us)
                    .filter(|us| *us > 0.0)?;
                let p99 = samples.median(row, config, |pair| pair.p99_us)?;
                let client = samples.median(row, config, |pair| pair.cpu_us)?;
                let server = samples.median(row, config, |pair| pair.server_us)?;
                let cpu = if client > 0.0 {
                    format!(", cpu {client:.0} + {server:.0}")
                } else {
                    format!(", cpu ? + {server:.0}")
                };
                Some(format!("{} / {}{cpu}", figure(p50), figure(p99)))
            },
        ));
    }
}

fn table(
    roster: &Roster,
    samples: &Samples<Pairs>,
    flavor: Flavor,
    mut table: Table,
    cell: impl Fn(&str, &str) -> Option<String>,
) -> Table {
    table.columns(TASKS.iter().map(|tasks| count(*tasks)));
    for row in rows(roster) {
        let configs = TASKS.iter().map(|tasks| config(flavor, *tasks));
        let configs: Vec<String> = configs.collect();
        if configs.iter().any(|config| samples.has(row, config)) {
            table.row(row, configs.iter().map(|config| cell(row, config)));
        }
    }
    table
}

fn targets(roster: &Roster, samples: &Samples<Pairs>, findings: &mut Findings) {
    let (ours, floor) = (roster.name_of(Role::Ours), roster.name_of(Role::Floor));
    let speed = |pair: &Pairs| pair.per_second;
    for flavor in [Flavor::MultiThread, Flavor::CurrentThread] {
        for &tasks in TASKS {
            let config = config(flavor, tasks);
            let what = format!("{config}: throughput, of the floor");
            let ratio = samples.ratio(ours, floor, &config, speed);
            findings.targets.push(Target::at_least(&what, 0.95, ratio));
            let what = format!("{config}: p50, of the floor");
            let ratio = samples.ratio(ours, floor, &config, |pair| pair.p50_us);
            findings.targets.push(Target::at_most(&what, 1.10, ratio));
        }
    }
    for &tasks in TASKS {
        let config = config(Flavor::MultiThread, tasks);
        let (peers, java) = if tasks == 1 { (1.0, 2.0) } else { (0.75, 3.0) };
        for peer in roster.names(|info| info.role == Role::Peer) {
            let what = format!("{config}: throughput, of {peer}");
            let ratio = samples.ratio(ours, peer, &config, speed);
            findings.targets.push(Target::at_least(&what, peers, ratio));
        }
        let what = format!("{config}: throughput, of {}", redisson::NAME);
        let ratio = samples.ratio(ours, redisson::NAME, &config, speed);
        findings.targets.push(Target::at_least(&what, java, ratio));
    }
}

fn charts(roster: &Roster, samples: &Samples<Pairs>, findings: &mut Findings) {
    let mut rows = roster.names(|info| info.setup == Setup::Default);
    rows.push(redisson::NAME);
    let mut throughput = Chart::new(
        "uncontended",
        "Uncontended lock + unlock",
        "pairs per second",
    );
    let mut latency = Chart::new("latency", "Uncontended lock + unlock, p50", "µs per pair");
    for chart in [&mut throughput, &mut latency] {
        chart.groups = TASKS.iter().map(|tasks| count(*tasks)).collect();
    }
    for row in rows {
        let of = |value: fn(&Pairs) -> f64| -> Vec<Option<f64>> {
            let configs = TASKS
                .iter()
                .map(|tasks| config(Flavor::MultiThread, *tasks));
            configs
                .map(|config| samples.median(row, &config, value))
                .collect()
        };
        throughput.series(row, of(|pair| pair.per_second));
        latency.series(row, of(|pair| pair.p50_us));
    }
    findings.charts.extend([throughput, latency]);
}
