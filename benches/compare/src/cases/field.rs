//! (l) In the field: crowds of names, freezes, near and far clients, long queues, the end of a client, floods of messages.

use std::time::Duration;

use watchlock_support::proxy::Proxy;

use crate::bench::Bench;
use crate::load::contended::{Contended, Section, Work};
use crate::load::ending::Ending;
use crate::load::flood::Flood;
use crate::load::names::Names;
use crate::load::queue::Queue;
use crate::load::{Job, Load};
use crate::locks::Role;
use crate::report::{Findings, Table, Target, figure};
use crate::roster::Participant;
use crate::samples::Samples;

const CROWDS: &[usize] = &[1_000, 10_000, 100_000];
const ROUNDS: usize = 3;
const FROZEN: &[usize] = &[1_000, 10_000, 100_000];
const QUEUES: &[usize] = &[0, 1, 10, 100, 300];
const HOLDS: &[usize] = &[2_000, 20_000];
const FAR: &[Duration] = &[Duration::from_millis(3), Duration::from_millis(20)];
const NEAR_TASKS: usize = 16;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) {
    names(bench, findings);
    frozen(bench, findings);
    near_and_far(bench, findings);
    queues(bench, findings);
    endings(bench, findings);
    floods(bench, findings);
}

fn answer<T: serde::de::DeserializeOwned>(
    bench: &Bench,
    case: &str,
    who: &Participant,
    job: Job,
) -> Option<T> {
    let measured = bench.measure::<T>(case, who, &[job])?;
    measured.answers.into_iter().next()
}

/// Ours and the floor.
fn both(bench: &Bench) -> Vec<&Participant> {
    let roster = &bench.roster;
    roster.those(|info| matches!(info.role, Role::Ours | Role::Floor))
}

fn names(bench: &Bench, findings: &mut Findings) {
    let mut samples = Samples::new();
    let sizes = bench.plan.some(CROWDS, 1);
    for round in 0..bench.plan.rounds(ROUNDS) {
        for &tasks in sizes {
            for who in both(bench) {
                let freeze = false;
                let job = bench.job(who, Load::Names { tasks, freeze }, Duration::ZERO);
                if let Some(names) = answer::<Names>(bench, "names", who, job) {
                    samples.add(&who.info.name, &tasks.to_string(), round, names);
                }
            }
        }
    }
    let mut table = Table::new(
        "A crowd of names: each task locks and unlocks its own, all at once",
        "The floor sends the same scripts from as many tasks, over one connection, without a library. Each size is ten \
         times the one before, so growth can be read from row to row.",
    );
    let columns = ["seconds", "of the floor", "scripts a name", "connections"];
    table.columns(columns.map(str::to_owned));
    let floor = bench.roster.name_of(Role::Floor);
    let ours = bench.roster.name_of(Role::Ours);
    for &tasks in sizes {
        let config = tasks.to_string();
        for who in [floor, ours] {
            let median = |value: fn(&Names) -> f64| samples.median(who, &config, value);
            let ratio = samples.ratio(who, floor, &config, |names| names.seconds);
            let row = format!("{who}, {}", figure(tasks as f64));
            let cells = [
                median(|names| names.seconds).map(|s| format!("{s:.2}")),
                ratio.map(|ratio| format!("{ratio:.2}")),
                median(|names| names.scripts).map(|scripts| format!("{scripts:.2}")),
                median(|names| names.connections as f64).map(figure),
            ];
            table.row(&row, cells);
            if who == ours && tasks >= 10_000 {
                let what = |of: &str| format!("a crowd of {} names: {of}", figure(tasks as f64));
                findings.targets.extend([
                    Target::at_most(&what("time, of the floor"), 2.0, ratio),
                    Target::at_most(&what("scripts a name"), 2.1, median(|n| n.scripts)),
                ]);
            }
        }
    }
    findings.tables.push(table);
}

fn frozen(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "The same while the server does not answer for 10 s",
        "Seconds: from when it answers again until all are done. Bytes: of the process, for each task, its own \
         memory included, while the server is silent. Failed: a lock whose command was sent gives up after 5 s, \
         `unavailable_after`; the floor never does.",
    );
    let columns = ["seconds", "scripts a name", "bytes a task", "failed"];
    table.columns(columns.map(str::to_owned));
    for &tasks in bench.plan.some(FROZEN, 1) {
        for who in both(bench) {
            let freeze = true;
            let job = bench.job(who, Load::Names { tasks, freeze }, Duration::ZERO);
            let Some(names) = answer::<Names>(bench, "names behind a freeze", who, job) else {
                continue;
            };
            let cells = [
                format!("{:.2}", names.seconds),
                format!("{:.2}", names.scripts),
                figure(names.bytes_a_task),
                names.failed.to_string(),
            ];
            let row = format!("{}, {}", who.info.name, figure(tasks as f64));
            table.row(&row, cells.map(Some));
            if tasks >= 10_000 && who.info.role == Role::Ours {
                let bytes = Some(names.bytes_a_task);
                let crowd = figure(tasks as f64);
                let of_10_s = |what: &str| format!("{crowd} names behind a freeze of 10 s: {what}");
                let seconds = Some(names.seconds);
                findings.targets.extend([
                    Target::at_most(&of_10_s("seconds"), 20.0, seconds),
                    Target::at_most(&of_10_s("bytes a task"), 2048.0, bytes),
                    // No more than may be under way at once.
                    Target::at_most(&of_10_s("failed"), 768.0, Some(names.failed as f64)),
                ]);
            }
        }
    }
    findings.tables.push(table);
}

fn near_and_far(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "A far client beside 16 near waiters, sections of 1 ms",
        "The round trip of the far client, which has one task, is added by a proxy. Free: the share of the time in \
         which nobody was in, the hand-overs included.",
    );
    let columns = ["turns of the far client", "its longest wait, ms", "free"];
    table.columns(columns.map(str::to_owned));
    let work = Work {
        hold_us: 1_000,
        pause_us: 0,
    };
    let window = bench.plan.window(6_000, 3_000);
    let proxy = Proxy::to(&bench.server);
    for &far in bench.plan.some(FAR, 1) {
        proxy.latency(far);
        for who in bench.roster.those(|info| info.role == Role::Ours) {
            let load = |tasks, process| Load::Contended {
                tasks,
                process,
                work,
            };
            let near = bench.job(who, load(NEAR_TASKS, 0), window);
            let mut there = bench.job(who, load(1, NEAR_TASKS), window);
            there.url = proxy.url();
            let Some(measured) = bench.measure::<Vec<Section>>("far", who, &[near, there]) else {
                continue;
            };
            let [near, there] = &measured.answers[..] else {
                continue;
            };
            let turns = Contended::of(there.clone(), window);
            let all = Contended::of(near.iter().chain(there).copied().collect(), window);
            let held = all.per_second * work.hold().as_secs_f64();
            let free = 1.0 - held.min(1.0);
            let cells = [
                turns.sections.to_string(),
                format!("{:.0}", turns.worst_wait_ms),
                format!("{:.1} %", free * 100.0),
            ];
            let row = format!("{}, {} ms away", who.info.name, far.as_millis());
            table.row(&row, cells.map(Some));
            let what = format!("a client {} ms away: its longest wait, ms", far.as_millis());
            let wait = Some(turns.worst_wait_ms);
            findings.targets.push(Target::at_most(&what, 1_000.0, wait));
        }
    }
    findings.tables.push(table);
}

fn queues(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "Clients that wait for one fair lock",
        "One task each, and nobody gets it. Share of one core of the server, and what is more than without a waiter.",
    );
    table.columns(["server core", "for the waiters"].map(str::to_owned));
    let mut idle = None;
    let window = bench.plan.window(10_000, 10_000);
    for &clients in bench.plan.some(QUEUES, 2) {
        for who in bench.roster.of_kind("fair") {
            if who.info.role != Role::Ours {
                continue;
            }
            let job = bench.job(who, Load::Queue { clients }, window);
            let Some(queue) = answer::<Queue>(bench, "queue", who, job) else {
                continue;
            };
            let percent = queue.server_core * 100.0;
            let for_waiters = percent - *idle.get_or_insert(percent);
            let row = format!("{}, {clients} clients", who.info.name);
            let cells = [percent, for_waiters].map(|share| format!("{share:.2} %"));
            table.row(&row, cells.map(Some));
            if clients == 300 {
                let what = "300 clients wait for a fair lock: server core for them, %";
                let target = Target::at_most(what, 1.0, Some(for_waiters));
                findings.targets.push(target);
            }
        }
    }
    findings.tables.push(table);
}

fn endings(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "The end of a client that holds very many locks",
        "`shutdown` without a wait for the holders.",
    );
    table.columns(["seconds", "left"].map(str::to_owned));
    for &holds in bench.plan.some(HOLDS, 1) {
        for who in bench.roster.those(|info| info.role == Role::Ours) {
            let job = bench.job(who, Load::Ending { holds }, Duration::ZERO);
            let ending = answer::<Option<Ending>>(bench, "ending", who, job);
            let Some(Ending { seconds, left }) = ending.flatten() else {
                continue;
            };
            let row = format!("{}, {}", who.info.name, figure(holds as f64));
            table.row(
                &row,
                [Some(format!("{seconds:.2}")), Some(left.to_string())],
            );
            if holds >= 20_000 {
                findings.targets.extend([
                    Target::at_most("shutdown of 20 000 holds: seconds", 2.0, Some(seconds)),
                    Target::at_most("shutdown of 20 000 holds: left", 0.0, Some(left as f64)),
                ]);
            }
        }
    }
    findings.tables.push(table);
}

fn floods(bench: &Bench, findings: &mut Findings) {
    let mut table = Table::new(
        "A flood of messages on the channel of a lock for which a task waits",
        "The client holds 100 locks with a lease of 30 s meanwhile. A renewal on time keeps each TTL above 20 s. Memory: \
         by how much that of the client grew, after the first 5 s.",
    );
    let columns = ["messages/s", "shortest TTL, ms", "gone", "memory, KiB"];
    table.columns(columns.map(str::to_owned));
    let window = bench.plan.window(25_000, 12_000);
    for who in bench.roster.those(|info| info.role == Role::Ours) {
        let job = bench.job(who, Load::Flood, window);
        let flood = answer::<Option<Flood>>(bench, "flood", who, job);
        let Some(flood) = flood.flatten() else {
            continue;
        };
        let grown = flood.grown_bytes as f64 / 1024.0;
        let cells = [
            figure(flood.messages_per_second),
            flood.min_ttl_ms.to_string(),
            flood.gone.to_string(),
            figure(grown),
        ];
        table.row(&who.info.name, cells.map(Some));
        let ttl = Some(flood.min_ttl_ms as f64);
        findings.targets.extend([
            Target::at_least("a flood of messages: shortest TTL, ms", 17_000.0, ttl),
            Target::at_most("a flood of messages: memory, KiB", 1_024.0, Some(grown)),
        ]);
    }
    findings.tables.push(table);
}
