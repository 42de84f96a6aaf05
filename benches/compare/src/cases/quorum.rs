//! (j) A quorum: the cost of a majority of five, of one server, and of a minority that is away.

use watchlock_support::server::RedisServer;

use crate::bench::Bench;
use crate::load::Load;
use crate::load::quorum::Acquires;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::samples::Samples;
use crate::stats;

const CONFIG: &str = "quorum";
const ROUNDS: usize = 9;
const SERVERS: usize = 5;
const AWAY: usize = 2;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let servers: Vec<_> = (0..SERVERS + AWAY).map(|_| RedisServer::start()).collect();
    let mut urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let away = urls.split_off(SERVERS);
    for server in &servers[SERVERS..] {
        server.kill();
    }
    let some = [&urls[..SERVERS - AWAY], &away].concat();
    let mut samples = Samples::new();
    let (mut of_one, mut of_all) = (Vec::new(), Vec::new());
    for round in 0..bench.plan.rounds(ROUNDS) {
        for who in bench.roster.those(|info| info.role == Role::Ours) {
            let load = Load::Quorum {
                all: urls.clone(),
                some: some.clone(),
            };
            let job = bench.job(who, load, bench.plan.window(200, 80));
            let measured = bench.measure::<Option<Acquires>>(CONFIG, who, &[job]);
            let answers = measured.into_iter().flat_map(|measured| measured.answers);
            for took in answers.flatten() {
                of_one.push(took.all_p50_us / took.one_p50_us);
                of_all.push(took.some_p50_us / took.all_p50_us);
                samples.add(&who.info.name, CONFIG, round, took);
            }
        }
    }
    let mut table = Table::new(
        "A quorum: µs to lock",
        "One task: a lock of one server; the acquire script sent raw to five servers at once, up to the third answer; \
         a lock of a quorum of five, and of one of which two are away and known to be, in turn. Servers and client \
         share the machine, so five commands at once are not only five waits at once: the raw ones show by how much.",
    );
    let columns = [
        "one server, p50",
        "three of five raw, p50",
        "five, p50",
        "five, two away, p50",
        "five, p99",
    ];
    table.columns(columns.map(str::to_owned));
    for name in bench.roster.names(|info| info.role == Role::Ours) {
        let median = |of: fn(&Acquires) -> f64| samples.median(name, CONFIG, of).map(figure);
        let row = [
            median(|took| took.one_p50_us),
            median(|took| took.raw_p50_us),
            median(|took| took.all_p50_us),
            median(|took| took.some_p50_us),
            median(|took| took.all_p99_us),
        ];
        table.row(name, row);
    }
    findings.tables.push(table);
    let what = "quorum of five: p50 of an acquire, of one server's";
    let ratio = stats::median(&of_one);
    findings.targets.push(Target::at_most(what, 1.6, ratio));
    let what = "quorum of five, two away: p50 of an acquire, of one with all";
    let ratio = stats::median(&of_all);
    findings.targets.push(Target::at_most(what, 1.05, ratio));
}
