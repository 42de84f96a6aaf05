//! (g) A client that holds nothing costs nothing.

use std::time::Duration;

use crate::Result;
use crate::bench::Bench;
use crate::load::Load;
use crate::load::idle::Idle;
use crate::locks::{Role, Setup};
use crate::report::{Findings, Table, Target, figure};
use crate::server::Counters;

pub(crate) fn run(bench: &Bench, findings: &mut Findings) -> Result<()> {
    let window = bench.plan.window(5000, 500).min(Duration::from_secs(30));
    let seconds = window.as_secs_f64();
    let mut table = Table::new("Idle: a connected client that holds nothing", "");
    table.columns(["CPU µs/s", "commands/s", "bytes/s"].map(str::to_owned));
    let looking = looking(bench)?;
    let mut floor = None;
    for who in bench.roster.those(|info| info.setup == Setup::Default) {
        let job = bench.job(who, Load::Idle, window);
        let Some(measured) = bench.measure::<Idle>("idle", who, &[job]) else {
            continue;
        };
        let mut commands = who.info.commands.clone();
        commands.push("ping".to_owned());
        let sent = measured.counters.calls_of(&commands) as f64 / seconds;
        let bytes = measured.counters.traffic_bytes.saturating_sub(looking);
        for idle in &measured.answers {
            let cpu = idle.cpu_us_per_second;
            let traffic = bytes as f64 / seconds;
            table.row(
                &who.info.name,
                [cpu, sent, traffic].map(|value| Some(figure(value))),
            );
            if who.info.role == Role::Floor {
                floor = Some(cpu);
            }
            if who.info.role == Role::Ours {
                // The cost of a process that sleeps beside an open connection does not belong to any lock.
                let over = floor.map(|floor| cpu - floor);
                findings.targets.extend([
                    Target::at_most("idle: client CPU over the floor's, µs a second", 20.0, over),
                    Target::at_most("idle: commands a second", 0.2, Some(sent)),
                ]);
            }
        }
    }
    findings.tables.push(table);
    Ok(())
}

/// What a look at the server's counters costs, in bytes both ways.
fn looking(bench: &Bench) -> Result<u64> {
    let before = Counters::read(bench.url())?;
    Ok(Counters::read(bench.url())?.since(&before).traffic_bytes)
}
