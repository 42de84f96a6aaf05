//! (i) In a cluster: the cost of routing, the cost of renewing by slot, and whether a silent node delays the locks of
//! others.

use watchlock_support::cluster::RedisCluster;
use watchlock_support::server::RedisServer;

use crate::Result;
use crate::bench::Bench;
use crate::load::beside::Beside;
use crate::load::holding::Holding;
use crate::load::pairs::Pairs;
use crate::load::{Job, Load};
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::stats::{median, ratio};

const TASKS: &[usize] = &[1, 16, 64];
const ROUNDS: usize = 15;
const HOLDS: usize = 10_000;
const HOLDS_ROUNDS: usize = 3;
/// Tasks whose masters answer, and those whose master falls silent.
const BESIDE: [usize; 2] = [16, 8];
const BESIDE_ROUNDS: usize = 5;
/// Twice as long as a command may take: before, and meanwhile.
const BESIDE_MS: u64 = 10_000;
/// Two periods of 10 s.
const WATCHED_MS: u64 = 20_000;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    pairs(bench, findings);
    beside(bench, findings);
    if let Some(rounds) = bench.or_note("holds in a cluster", holds(bench)) {
        let [one, three]: [Vec<f64>; 2] =
            [0, 1].map(|row| rounds.iter().map(|cores| cores[row] * 100.0).collect());
        let mut table = Table::new(
            "Cluster: 10 000 locks kept alive",
            "Shares of one core of the client, after the first 10 s, in which each lock is renewed once. Each \
             lock is renewed by a call of its own. Both clients run at the same time.",
        );
        table.columns(vec!["client core".to_owned()]);
        for (row, cores) in [("one server", &one), ("three masters", &three)] {
            table.row(row, [median(cores).map(|core| format!("{core:.2} %"))]);
        }
        findings.tables.push(table);
        let what = "cluster, 10 000 holds over three masters: client core against one server";
        findings
            .targets
            .push(Target::at_most(what, 1.2, ratio(&three, &one)));
    }
}

/// Compares with the same scripts sent raw to the right node: one node has all slots.
fn pairs(bench: &Bench, findings: &mut Findings) {
    let node = RedisServer::options().cluster_of_one().start();
    let mut table = Table::new(
        "Cluster: lock and unlock, each task its own name",
        "Pairs per second, the best of all rounds, and the median of their ratios; raw: the same scripts, sent to the node \
         that has the slot.",
    );
    table.columns(vec![
        "raw".to_owned(),
        "watchlock".to_owned(),
        "ratio".to_owned(),
    ]);
    for &tasks in bench.plan.some(TASKS, 1) {
        let mut ratios = Vec::new();
        let mut best = [0.0_f64; 2];
        for round in 0..bench.plan.rounds(ROUNDS) {
            let mut roles = [Role::Floor, Role::Ours];
            if round % 2 == 1 {
                roles.reverse();
            }
            let mut measured = [None, None];
            for role in roles {
                let index = usize::from(role == Role::Ours);
                measured[index] = one(bench, &node, role, tasks);
            }
            if let [Some(raw), Some(ours)] = measured {
                best = [best[0].max(raw), best[1].max(ours)];
                ratios.push(ours / raw);
            }
        }
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios.get(ratios.len() / 2).copied();
        table.row(
            &format!("{tasks} tasks"),
            [
                Some(figure(best[0])),
                Some(figure(best[1])),
                ratio.map(|ratio| format!("{ratio:.2}")),
            ],
        );
        let what = format!("cluster, {tasks} tasks: pairs against raw scripts");
        findings.targets.push(Target::at_least(&what, 0.93, ratio));
    }
    findings.tables.push(table);
}

fn one(bench: &Bench, node: &RedisServer, role: Role, tasks: usize) -> Option<f64> {
    let who = first(bench, role)?;
    let job = Job {
        url: node.url(),
        ..bench.job(who, Load::Pairs { tasks }, bench.plan.window(90, 60))
    };
    let measured = bench.measure::<Pairs>(&format!("cluster, {tasks} tasks"), who, &[job])?;
    Some(measured.answers.first()?.per_second)
}

fn first(bench: &Bench, role: Role) -> Option<&Participant> {
    let those = bench.roster.those(|info| info.role == role);
    those.into_iter().next()
}

/// Three masters, one of which stops answering in the middle of each round.
fn beside(bench: &Bench, findings: &mut Findings) {
    let Some(rounds) = bench.or_note("locks beside a silent node", silent(bench)) else {
        return;
    };
    let of = |value: fn(&Beside) -> f64| {
        let values: Vec<f64> = rounds.iter().map(value).collect();
        median(&values)
    };
    let mut table = Table::new(
        "Cluster: locks of two masters while the third is silent",
        "What a section takes, in µs: 16 tasks at two masters, each with a name and 1 ms between its sections, beside \
         8 at the third, which is paused for 5 s.",
    );
    table.columns(vec!["p50".to_owned(), "p99".to_owned()]);
    let p50 = of(|round| round.before_p50_us).map(figure);
    table.row("before", [p50, of(|round| round.before_p99_us).map(figure)]);
    let p50 = of(|round| round.meanwhile_p50_us).map(figure);
    table.row(
        "meanwhile",
        [p50, of(|round| round.meanwhile_p99_us).map(figure)],
    );
    findings.tables.push(table);
    let ratio = of(|round| round.meanwhile_p99_us / round.before_p99_us);
    let what = "cluster, one of three masters is silent: p99 of the others' locks, of that before";
    findings.targets.push(Target::at_most(what, 1.2, ratio));
}

fn silent(bench: &Bench) -> Result<Vec<Beside>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let cluster = runtime.block_on(RedisCluster::masters());
    let who = first(bench, Role::Ours).ok_or("watchlock does not take part")?;
    let [well, ill] = runtime.block_on(names(&cluster));
    let load = Load::Beside {
        well,
        ill,
        node: cluster.node(SILENT).url(),
    };
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds(BESIDE_ROUNDS) {
        let job = Job {
            url: cluster.url(),
            ..bench.job(who, load.clone(), bench.plan.window(BESIDE_MS, BESIDE_MS))
        };
        let measured = bench.measure::<Beside>("cluster, a silent node", who, &[job]);
        rounds.extend(measured.into_iter().flat_map(|measured| measured.answers));
    }
    Ok(rounds)
}

/// Which of the masters.
const SILENT: usize = 2;

/// Names at masters that answer, and at the one that will stop.
async fn names(cluster: &RedisCluster) -> [Vec<String>; 2] {
    let mut names = [Vec::new(), Vec::new()];
    for number in 0.. {
        let name = format!("bench:{number}");
        let kind = usize::from(cluster.owner_of(&name).await == SILENT);
        if names[kind].len() < BESIDE[kind] {
            names[kind].push(name);
        }
        if names.each_ref().map(Vec::len) == BESIDE {
            break;
        }
    }
    names
}

/// Shares of a core, on one server and on three masters at the same time, round by round.
fn holds(bench: &Bench) -> Result<Vec<[f64; 2]>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let who = first(bench, Role::Ours).ok_or("watchlock does not take part")?;
    let window = bench.plan.window(WATCHED_MS, WATCHED_MS);
    let mut rounds = Vec::new();
    for _ in 0..bench.plan.rounds(HOLDS_ROUNDS) {
        let cluster = runtime.block_on(RedisCluster::masters());
        let jobs = [bench.url().to_owned(), cluster.url()].map(|url| Job {
            url,
            ..bench.job(who, Load::Holding { holds: HOLDS }, window)
        });
        let measured = bench.measure::<Option<Holding>>("cluster, holding", who, &jobs);
        let answers = measured.map(|measured| measured.answers);
        let cores: Vec<_> = answers.into_iter().flatten().flatten().collect();
        let cores = cores
            .iter()
            .map(|held| held.client_core)
            .collect::<Vec<_>>();
        rounds.push(cores.try_into().map_err(|_| "nothing was measured")?);
    }
    Ok(rounds)
}
