//! Many worker processes on one Redis, or on the five servers of a quorum, under faults of every kind, and a check
//! afterwards.
//!
//! A *campaign* is a number of rounds. In each, every owner of every worker locks, re-enters and
//! unlocks as fast as its plan lets it, while the *nemesis* kills, freezes, cuts and deletes. Then
//! the faults end, all owners come home, and the history of the round is checked.
//!
//! - One seed decides what owners ask for and what breaks: the same seed replays the same plans in the same order for
//!   every owner, and the same faults in the same order for every link and the server. When exactly they meet is up to
//!   the machine.
//! - Beside the owners and their plans run a few *scenes*, for moments that chance would seldom hit.
//! - Faults come in *storms* with *calms* between them: most chances to catch a waiter asleep beside
//!   a free lock are in the calms, when nothing excuses it.
//! - The record that the locks protect lives in a Redis of its own, without faults.
//! - Every worker reaches Redis through its own proxy, so a fault of a link affects one client alone.
//! - Masters with replicas get the faults of fail-overs, one at a time, and no faults of links. If a fail-over loses
//!   what nobody had acknowledged, two holders after it are not a violation of ours; they are counted separately.
//! - Workers are ours or Redisson's. When Redisson's take part, they and the server get only the faults that Redisson
//!   can stand. `blame` separates by evidence what Redisson still gets wrong from our faults, and shows it.

mod actor;
mod alone;
mod blame;
mod deployment;
mod expiries;
mod failovers;
mod fleet;
mod ground;
pub mod kinds;
mod layout;
mod links;
mod majority;
mod plan;
mod quiet;
mod scenes;
mod servers;
mod soak;
mod tally;
mod weather;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

pub use layout::Layout;
pub use soak::{Look, growth};
pub use tally::Tally;

use crate::checker::{self, Report, Settings};
use crate::controls::Flaw;
use crate::history::{LockKind, Record, write_history};
use ground::Ground;

/// The lease of the workers' watchdogs.
pub(crate) const WATCHDOG_LEASE: Duration = Duration::from_millis(900);
/// The library's time-out of one command.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const ROUND: Duration = Duration::from_secs(60);

/// More at once in one process would measure how slow the machine is, not whether the locks work.
static AT_ONCE: Semaphore = Semaphore::const_new(ALL as usize);
const ALL: u32 = 3;

/// The client that a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours.
    Rust,
    /// Redisson's.
    Java,
    /// The plain client of the controls, with one mistake or none. It gets no faults of the nemesis, since it leaves
    /// out what those would need.
    Plain(Option<Flaw>),
}

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// How long faults are injected, in total.
    pub time: Duration,
    /// The source of all randomness.
    pub seed: u64,
    /// Worker processes.
    pub workers: Vec<Kind>,
    /// Owners in each worker.
    pub owners: u32,
    /// The number of locks that they share.
    pub names: u32,
    /// The kinds of these locks, in turn.
    pub kinds: Vec<LockKind>,
    /// The servers.
    pub layout: Layout,
    /// Where histories of rounds with violations are written.
    pub histories: PathBuf,
    /// Whether there are faults beyond those of the scenes.
    pub faults: bool,
    /// Whether workers are killed as well.
    pub kills: bool,
    /// What wrong clients do to the server every 50 ms, of which the history knows nothing.
    pub meddling: Vec<Vec<String>>,
}

impl Campaign {
    /// A campaign of a minute with 4 workers of 6 owners on 12 names.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            time: Duration::from_secs(60),
            seed,
            workers: vec![Kind::Rust; 4],
            owners: 6,
            names: 12,
            kinds: [kinds::RUST, kinds::SEMAPHORES].concat(),
            layout: Layout::One,
            histories: std::env::temp_dir(),
            faults: true,
            kills: true,
            meddling: Vec::new(),
        }
    }

    /// The same on the five servers of a quorum.
    #[must_use]
    pub fn of_quorum(seed: u64, layout: Layout) -> Self {
        Self {
            owners: 4,
            names: 8,
            kinds: kinds::QUORUM.to_vec(),
            layout,
            ..Self::new(seed)
        }
    }

    /// The same on masters with replicas. Without fair locks: a queue that comes back with a stale replica has places of
    /// waiters that were served before, and stands still while their client has others in it.
    #[must_use]
    pub fn of_replicas(seed: u64, layout: Layout) -> Self {
        let mut kinds = kinds::RUST.to_vec();
        kinds.retain(|kind| *kind != LockKind::Fair);
        Self {
            kinds,
            layout,
            kills: false,
            ..Self::new(seed)
        }
    }

    /// What the checker requires of the workers.
    #[must_use]
    pub fn settings(&self) -> Settings {
        // A starting JVM takes all of a small machine for a while.
        let (blur_ms, dead_turn) = if self.has_java() {
            (250, Duration::from_millis(plan::JAVA_WAITS_MS))
        } else {
            (100, Duration::ZERO)
        };
        Settings {
            dead_turn,
            permits: kinds::PERMITS,
            watchdog_lease: self.layout.lease(),
            command_timeout: COMMAND_TIMEOUT,
            scheduling: Duration::from_millis(blur_ms),
            recovery: Duration::from_secs(1),
            ..Settings::default()
        }
    }

    fn has_java(&self) -> bool {
        self.workers.contains(&Kind::Java)
    }

    /// Runs the campaign to its end and reports each round on standard output. Three run at once in a process, or one
    /// with Java's workers; others wait for them.
    ///
    /// # Panics
    /// When the servers or the workers cannot be started.
    pub async fn run(&self) -> Tally {
        let share = if self.has_java() { ALL } else { 1 };
        let turn = AT_ONCE.acquire_many(share).await;
        let _turn = turn.expect("it is never closed");
        let ground = Arc::new(Ground::prepare(self).await);
        let mut tally = Tally::default();
        let mut left = self.time;
        while !left.is_zero() {
            let time = left.min(ROUND);
            left -= time;
            tally.rounds += 1;
            let records = round(&ground, self, tally.rounds, time).await;
            let mut report = check(&records, self.settings()).await;
            if let Some((waited, both)) = ground.judge(&records, &mut report) {
                tally.failed_over(waited, both);
            }
            if let Some(expiries) = &ground.expiries {
                let (seen, java) = (expiries.seen(), ground.java_clients());
                tally.excuse(blame::sort_out(&records, &mut report, &seen, &java));
            }
            if !report.violations.is_empty() {
                self.keep(&records, tally.rounds);
            }
            tally.add(&ground, &records, report);
            tally
                .looks
                .extend(soak::Look::at_all(&ground, tally.rounds));
            println!("{}", tally.line());
        }
        ground.end();
        tally.note_answers(&ground);
        tally
    }

    fn keep(&self, records: &[Record], round: u32) {
        let file = format!("chaos-{}{}-{round}.jsonl", self.seed, self.layout.suffix());
        let path = self.histories.join(file);
        let written = std::fs::File::create(&path)
            .and_then(|file| write_history(records, std::io::BufWriter::new(file)));
        match written {
            Ok(()) => println!("the history of round {round} is in {}", path.display()),
            Err(error) => println!("{} cannot be written: {error}", path.display()),
        }
    }
}

async fn round(ground: &Arc<Ground>, of: &Campaign, number: u32, time: Duration) -> Vec<Record> {
    let seed = of.seed.wrapping_add(u64::from(number) << 32);
    let weather = weather::Weather::begin();
    let mut actors = tokio::task::JoinSet::new();
    for slot in &ground.slots {
        for owner in 0..of.owners {
            let plans = plan::Plans::seeded(seed, slot.index, owner, of.names, &of.kinds);
            let actor = actor::run(
                Arc::clone(ground),
                slot.index,
                owner,
                plans,
                weather.watch(),
            );
            actors.spawn(actor);
        }
    }
    if of.layout.has_replicas() {
        for (slot, owner) in ground
            .slots
            .iter()
            .flat_map(|slot| alone::OWNERS.map(move |owner| (slot.index, owner)))
        {
            let watch = weather.watch();
            actors.spawn(alone::run(Arc::clone(ground), slot, owner, watch));
        }
    }
    for (owner, scene) in (of.owners..).zip(scenes::on(of)) {
        let watch = weather.watch();
        actors.spawn(scenes::run(Arc::clone(ground), scene, owner, seed, watch));
    }
    let mut nemesis = tokio::task::JoinSet::new();
    if of.faults {
        rage(ground, of, seed, &weather, &mut nemesis);
    }
    nemesis.spawn(servers::meddle(
        Arc::clone(ground),
        of.meddling.clone(),
        weather.watch(),
    ));
    nemesis.spawn(quiet::sample(
        Arc::clone(ground),
        kinds::names_of_locks(of.names, &of.kinds),
        weather.watch(),
    ));
    let (clock, watch) = (Arc::clone(ground), weather.watch());
    nemesis.spawn_blocking(move || quiet::watch_the_clock(&clock, &watch));
    weather.change_for(time).await;
    while let Some(ended) = nemesis.join_next().await {
        ended.expect("the nemesis does not panic");
    }
    let limit = match of.meddling[..] {
        [] => quiet::HOMECOMING,
        _ => quiet::SHORT_HOMECOMING,
    };
    quiet::come_home(ground, &weather, actors, limit).await;
    quiet::look_for_leftovers(ground).await;
    ground.recorder.take()
}

/// Starts everybody that injects faults.
fn rage(
    ground: &Arc<Ground>,
    of: &Campaign,
    seed: u64,
    weather: &weather::Weather,
    nemesis: &mut tokio::task::JoinSet<()>,
) {
    if of.layout.has_replicas() {
        let (ground, names, watch) = (Arc::clone(ground), of.names, weather.watch());
        // Its future is not `Send`.
        let runtime = tokio::runtime::Handle::current();
        nemesis
            .spawn_blocking(move || runtime.block_on(failovers::run(ground, seed, names, watch)));
        return;
    }
    for slot in &ground.slots {
        for link in 0..slot.links.len() {
            let faults = links::run(
                Arc::clone(ground),
                (slot.index, link),
                seed,
                of.kills,
                weather.watch(),
            );
            nemesis.spawn(faults);
        }
    }
    if of.layout.is_quorum() {
        for part in majority::PARTS {
            let faults = majority::run(Arc::clone(ground), part, seed, weather.watch());
            nemesis.spawn(faults);
        }
        return;
    }
    nemesis.spawn(servers::run(Arc::clone(ground), seed, weather.watch()));
    if !of.has_java() {
        // A deletion takes locks away, and Redisson does not report that to its holders.
        let operator = servers::operate(Arc::clone(ground), seed, of.names, weather.watch());
        nemesis.spawn(operator);
    }
}

/// Off the runtime's threads, since it takes a while.
async fn check(records: &[Record], settings: Settings) -> Report {
    let records = records.to_vec();
    let checking = move || checker::check(&records, &settings);
    let report = tokio::task::spawn_blocking(checking).await;
    report.expect("a history makes sense")
}
