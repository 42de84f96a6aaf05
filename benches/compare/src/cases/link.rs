//! (f) Lock and unlock over a link with delay: where pipelining and nodelay show.

use std::time::Duration;

use watchlock_support::proxy::Proxy;

use crate::bench::Bench;
use crate::load::Load;
use crate::load::pairs::Pairs;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::samples::Samples;

const ROUND_TRIPS: &[Duration] = &[
    Duration::from_micros(500),
    Duration::from_millis(2),
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// Others than ours and the floor take part up to this distance.
const NEAR: Duration = Duration::from_millis(2);
/// From this distance on the time of a pair is that of its round trips.
const FAR: Duration = Duration::from_millis(20);
const TASKS: &[usize] = &[1, 64];
const ROUNDS: usize = 2;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let mut samples = Samples::new();
    let proxy = Proxy::to(&bench.server);
    for round in 0..bench.plan.rounds(ROUNDS) {
        for &delay in bench.plan.some(ROUND_TRIPS, 1) {
            proxy.latency(delay);
            for &tasks in TASKS {
                for who in bench
                    .roster
                    .those(|info| delay <= NEAR || info.role != Role::Peer)
                {
                    let config = config(delay, tasks);
                    let pairs = one(bench, who, &proxy, (&config, delay), tasks);
                    for pairs in pairs {
                        samples.add(&who.info.name, &config, round, pairs);
                    }
                }
            }
        }
    }
    findings.tables.push(table(bench, &samples));
    let ours = bench.roster.name_of(Role::Ours);
    for &delay in ROUND_TRIPS.iter().filter(|delay| **delay >= FAR) {
        let p50_us = samples.median(ours, &config(delay, 1), |pair| pair.p50_us);
        let round_trips = p50_us.map(|p50_us| p50_us / (delay.as_secs_f64() * 1e6));
        let what = format!("{} ms away: round trips of a pair, p50", delay.as_millis());
        let target = Target::at_most(&what, 2.1, round_trips);
        findings.targets.push(target);
    }
}

fn one(
    bench: &Bench,
    who: &Participant,
    proxy: &Proxy,
    (config, delay): (&str, Duration),
    tasks: usize,
) -> Vec<Pairs> {
    let window = bench.plan.window(300, 60).max(4 * delay);
    let mut job = bench.job(who, Load::Pairs { tasks }, window);
    job.url = proxy.url();
    let measured = bench.measure(&format!("link, {config}"), who, &[job]);
    measured
        .map(|measured| measured.answers)
        .unwrap_or_default()
}

fn config(delay: Duration, tasks: usize) -> String {
    format!("{} ms, {tasks} tasks", delay.as_secs_f64() * 1e3)
}

fn table(bench: &Bench, samples: &Samples<Pairs>) -> Table {
    let mut table = Table::new(
        "Over a link: pairs per second (share of the floor), p50 in ms",
        "The round trip of the link is added by a proxy in the bench's process. A pair cannot take less than two \
         round trips; tasks share a connection, so their commands travel together.",
    );
    let configs = ROUND_TRIPS
        .iter()
        .flat_map(|delay| TASKS.iter().map(|tasks| config(*delay, *tasks)));
    let configs: Vec<String> = configs.collect();
    table.columns(configs.iter().cloned());
    let floor = bench.roster.name_of(Role::Floor);
    for row in bench.roster.names(|_| true) {
        let cell = |config: &String| {
            let per_second = samples.median(row, config, |pair| pair.per_second)?;
            let ratio = samples.ratio(row, floor, config, |pair| pair.per_second)?;
            let p50_ms = samples.median(row, config, |pair| pair.p50_us)? / 1e3;
            Some(format!("{} ({ratio:.2}), {p50_ms:.1}", figure(per_second)))
        };
        table.row(row, configs.iter().map(cell));
    }
    table
}
