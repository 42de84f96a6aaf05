//! The campaign: processes of both kinds, owners that lock as fast as their plans let them, faults in storms with
//! calms between them, and the checker of the fault campaign over the history of it all.
//!
//! What Redisson can stand is what is done: its processes are killed and frozen, scripts are flushed and subscribers
//! cut. What it gets wrong even so is told apart from our faults by evidence, see [`blame`], and printed.

mod actor;
mod blame;
#[path = "../../interop/build.rs"]
mod build;
mod expiries;
mod fleet;
mod nemesis;

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use watchlock_support::checker::{self, Settings};
use watchlock_support::history::{Outcome, Record, Recorder};
use watchlock_support::now_ns;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::WorkerError;

use blame::Verdicts;
use expiries::Expiries;
use fleet::Slot;

/// The lease of both watchdogs.
const WATCHDOG_LEASE: Duration = Duration::from_millis(900);
const SLOTS: [Kind; 4] = [Kind::Java, Kind::Rust, Kind::Java, Kind::Rust];
const OWNERS: u32 = 4;
const NAMES: u32 = 6;
/// Longer than the longest plan and any time-out on the way.
const HOMECOMING: Duration = Duration::from_secs(20);
/// Longer than a lease, the repeated releases and the linger of a subscription.
const FADING: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Java,
    Rust,
}

/// What all take part in.
struct Ground {
    server: RedisServer,
    /// Where the records are that the locks protect; nothing happens to it.
    vault: RedisServer,
    recorder: Recorder,
    slots: Vec<Slot>,
    /// What the owners were answered, and how often.
    answers: Mutex<BTreeMap<String, u32>>,
    /// A message of each kind of error.
    errors: Mutex<BTreeMap<String, String>>,
    over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_and_rust_are_never_certain_at_once_under_faults() {
    let redisson = env::var("INTEROP_REDISSON").unwrap_or_else(|_| "4".to_owned());
    if !build::is_built(&redisson) {
        return;
    }
    let time = Duration::from_secs(number("INTEROP_SECONDS", 8));
    let seed = number("INTEROP_SEED", u64::from(fastrand::u32(..)));
    println!("INTEROP_SEED={seed} INTEROP_REDISSON={redisson}, {time:?}");

    let ground = Arc::new(Ground::prepare(&redisson).await);
    let expiries = Expiries::listen(&ground.server).await;
    let mut owners = JoinSet::new();
    for slot in 0..SLOTS.len() {
        for owner in 0..OWNERS {
            owners.spawn(actor::run(Arc::clone(&ground), slot, owner, seed));
        }
    }
    let faults = nemesis::rage(&ground, &expiries.listener, seed, time).await;
    ground.come_home(owners).await;
    ground.look_for_leftovers().await;

    let records = ground.recorder.take();
    let report = checker::check(&records, &settings());
    let verdicts = Verdicts::of(&records, &report, &expiries.seen(), &ground.java_clients());
    println!("faults: {faults:?}\nanswers: {:?}", ground.answers.lock());
    println!("errors: {:#?}\n{verdicts}", ground.errors.lock());
    assert!(
        report.holds > 100,
        "hardly anybody held anything: {}",
        report.holds
    );
    assert!(
        verdicts.ours.is_empty(),
        "violations that are ours, see above"
    );
}

fn settings() -> Settings {
    Settings {
        watchdog_lease: WATCHDOG_LEASE,
        // Two JVMs and two workers on two cores.
        scheduling: Duration::from_millis(250),
        ..Settings::default()
    }
}

impl Ground {
    async fn prepare(redisson: &str) -> Self {
        let server = RedisServer::start();
        let recorder = Recorder::new();
        let mut slots = Vec::new();
        for kind in SLOTS {
            slots.push(Slot::fill(kind, redisson, &server, &recorder).await);
        }
        Self {
            server,
            vault: RedisServer::start(),
            recorder,
            slots,
            answers: Mutex::default(),
            errors: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    fn answered(&self, kind: Kind, verb: &str, outcome: &Outcome) {
        let what = match outcome {
            Outcome::Failed(error) => error,
            Outcome::Busy => "busy",
            _ => "ok",
        };
        let mut answers = self.answers.lock();
        *answers
            .entry(format!("{kind:?} {verb}: {what}"))
            .or_default() += 1;
    }

    fn note_error(&self, by: Kind, error: &WorkerError) {
        let message: String = error.message.chars().take(200).collect();
        let mut errors = self.errors.lock();
        errors.insert(format!("{by:?} {}", error.kind), message);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn java_clients(&self) -> Vec<u32> {
        let java = self.slots.iter().filter(|slot| slot.kind == Kind::Java);
        java.flat_map(Slot::clients).collect()
    }

    async fn come_home(&self, mut owners: JoinSet<()>) {
        self.over.store(true, Ordering::Relaxed);
        let end = Instant::now() + HOMECOMING;
        while let Ok(Some(ended)) = timeout_at(end, owners.join_next()).await {
            ended.expect("an owner does not panic");
        }
        for slot in &self.slots {
            slot.process().collect();
        }
        for _ in 0..owners.len() {
            self.left("an owner still waits for an answer");
        }
    }

    async fn look_for_leftovers(&self) {
        let end = Instant::now() + FADING;
        while !self.leftovers().await.is_empty() && Instant::now() < end {
            sleep(Duration::from_millis(20)).await;
        }
        for what in self.leftovers().await {
            self.left(&what);
        }
    }

    /// Redisson's notes about its own unlocks stay for a while when it is killed, and are no locks.
    async fn leftovers(&self) -> Vec<String> {
        let mut left = self.server.keys().await;
        left.retain(|key| !key.starts_with("redisson_unlock_latch:"));
        let locks = self.server.channels().await;
        left.extend(
            locks
                .into_iter()
                .filter(|channel| channel.starts_with("redisson_lock")),
        );
        left
    }

    fn left(&self, what: &str) {
        let (t, what) = (now_ns(), what.to_owned());
        self.recorder.push(Record::Leftover { t, what });
    }
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text:?} is no number"))
    })
}
