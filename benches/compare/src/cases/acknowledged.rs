//! (k) Acknowledgements: the cost when a replica must acknowledge each acquire, and its effect on other commands.

use watchlock_support::server::RedisServer;

use crate::Result;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::acknowledged::Acknowledged;
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::stats::median;

const TASKS: &[usize] = &[1, 16, 64];
const ROUNDS: usize = 15;

/// Figures of all rounds: without, and with acknowledgements.
#[derive(Default)]
struct Rounds {
    pairs: [Vec<f64>; 2],
    ratios: Vec<f64>,
    others: [Vec<f64>; 2],
    other_ratios: Vec<f64>,
}

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    let Some((master, _replica)) = bench.or_note("a master and its replica", servers()) else {
        return;
    };
    let mut table = Table::new(
        "Acknowledged by a replica: lock and unlock, each task its own name",
        "Pairs per second of watchlock on a master with one replica, and p99 of another command of the same client \
         meanwhile, in µs. Master, replica and client share the machine.",
    );
    let columns = [
        "not acknowledged",
        "acknowledged",
        "ratio",
        "other command, p99",
        "beside acknowledged",
    ];
    table.columns(columns.map(str::to_owned));
    for &tasks in bench.plan.some(TASKS, 2) {
        let rounds = measure(bench, &master, tasks);
        let ratio = median(&rounds.ratios);
        let row = [
            median(&rounds.pairs[0]).map(figure),
            median(&rounds.pairs[1]).map(figure),
            ratio.map(|ratio| format!("{ratio:.2}")),
            median(&rounds.others[0]).map(figure),
            median(&rounds.others[1]).map(figure),
        ];
        table.row(&format!("{tasks} tasks"), row);
        // One task waits for each acknowledgement by itself.
        if tasks > 1 {
            let what = format!("acknowledged, {tasks} tasks: pairs, of those that are not");
            findings.targets.push(Target::at_least(&what, 0.9, ratio));
            let what =
                format!("acknowledged, {tasks} tasks: p99 of other commands, of that without");
            let ratio = median(&rounds.other_ratios);
            findings.targets.push(Target::at_most(&what, 1.2, ratio));
        }
    }
    findings.tables.push(table);
}

fn servers() -> Result<(RedisServer, RedisServer)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    runtime.block_on(replica.synced());
    Ok((master, replica))
}

fn measure(bench: &Bench, master: &RedisServer, tasks: usize) -> Rounds {
    let mut rounds = Rounds::default();
    for round in 0..bench.plan.rounds(ROUNDS) {
        let mut measured = [None, None];
        let order = if round % 2 == 0 {
            [false, true]
        } else {
            [true, false]
        };
        for acks in order {
            measured[usize::from(acks)] = one(bench, master, tasks, acks);
        }
        let [Some(without), Some(with)] = measured else {
            continue;
        };
        rounds
            .ratios
            .push(with.pairs.per_second / without.pairs.per_second);
        rounds
            .other_ratios
            .push(with.other_p99_us / without.other_p99_us);
        for (index, found) in [without, with].iter().enumerate() {
            rounds.pairs[index].push(found.pairs.per_second);
            rounds.others[index].push(found.other_p99_us);
        }
    }
    rounds
}

fn one(bench: &Bench, master: &RedisServer, tasks: usize, acks: bool) -> Option<Acknowledged> {
    let ours = bench.roster.those(|info| info.role == Role::Ours);
    let who = ours.into_iter().next()?;
    let load = Load::Acknowledged { tasks, acks };
    let mut job = bench.job(who, load, bench.plan.window(150, 60));
    job.url = master.url();
    let how = if acks {
        "acknowledged"
    } else {
        "not acknowledged"
    };
    let case = format!("{how}, {tasks} tasks");
    let measured = bench.measure::<Option<Acknowledged>>(&case, who, &[job])?;
    measured.answers.into_iter().flatten().next()
}
