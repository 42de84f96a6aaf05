//! Semaphores under faults: workers that are killed and frozen take and give back permits. The permits of which somebody is
//! certain are never more than there are, and at the end all are there. `PERMITS_SECONDS` (6), `PERMITS_SEED`.
//!
//! A permit is certain from the return of its acquire until its release is called. When that fails, it was so until its
//! worker was frozen, or reported the loss.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use watchlock::Client;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;
use watchlock_support::{eventually, now_ns};

const NAME: &str = "imports";
const LEASE: Duration = Duration::from_millis(900);
const FROZEN: Duration = Duration::from_millis(1_300);
const WORKERS: usize = 3;
const TASKS: u32 = 3;
/// How long after a freeze a time that a worker took may still be late.
const LATE_NS: u64 = 50_000_000;

/// A worker, and what was done to it.
struct Process {
    worker: Worker,
    /// From when to when it was frozen.
    frozen: Mutex<Vec<(u64, u64)>>,
    killed: Mutex<Option<u64>>,
}

struct Grant {
    process: Arc<Process>,
    handle: Value,
    permits: u32,
    from: u64,
    until: u64,
    /// Whether its release succeeded.
    is_clean: bool,
}

impl Grant {
    /// When somebody was certain of it.
    fn certain(&self) -> Option<(u64, u64)> {
        let mut until = self
            .until
            .min(self.process.killed.lock().unwrap_or(u64::MAX));
        if !self.is_clean {
            let events = self.process.worker.events();
            let lost = events.iter().filter(|event| event["handle"] == self.handle);
            let lost = lost.filter_map(|event| event["t"].as_u64());
            until = until.min(lost.min().unwrap_or(u64::MAX));
            for (start, end) in &*self.process.frozen.lock() {
                if end + LATE_NS >= self.from {
                    until = until.min(*start);
                }
            }
        }
        (until > self.from).then_some((self.from, until))
    }
}

/// The most permits that were certain at once.
fn most_at_once(grants: &[Grant]) -> u32 {
    let mut changes = Vec::new();
    for grant in grants {
        if let Some((from, until)) = grant.certain() {
            changes.push((from, true, grant.permits));
            changes.push((until, false, grant.permits));
        }
    }
    // What ends at a time ends before what begins then.
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, begins, permits) in changes {
        now = if begins { now + permits } else { now - permits };
        most = most.max(now);
    }
    most
}

struct Scene {
    server: RedisServer,
    kind: &'static str,
    permits: u32,
    end: Instant,
    grants: Arc<Mutex<Vec<Grant>>>,
}

impl Scene {
    async fn process(&self) -> Arc<Process> {
        let process = Process {
            worker: Worker::rust(),
            frozen: Mutex::default(),
            killed: Mutex::default(),
        };
        process
            .worker
            .open(&self.server.url(), Some(LEASE))
            .await
            .expect("a client");
        let process = Arc::new(process);
        for task in 0..TASKS {
            let (process, grants) = (Arc::clone(&process), Arc::clone(&self.grants));
            let most = self.permits.min(2 + task % 2);
            tokio::spawn(take(
                process,
                grants,
                self.kind,
                self.permits,
                most,
                self.end,
            ));
        }
        process
    }

    /// Kills and freezes one after the other.
    async fn faults(&self, random: &mut fastrand::Rng) {
        let mut processes = Vec::new();
        for _ in 0..WORKERS {
            processes.push(self.process().await);
        }
        while Instant::now() < self.end {
            tokio::time::sleep(Duration::from_millis(random.u64(50..400))).await;
            let one = random.usize(..WORKERS);
            let process = &processes[one];
            if random.bool() {
                process.worker.kill();
                *process.killed.lock() = Some(now_ns());
                processes[one] = self.process().await;
            } else {
                let since = now_ns();
                process.worker.freeze();
                tokio::time::sleep(FROZEN).await;
                process.frozen.lock().push((since, now_ns()));
                process.worker.resume();
            }
        }
        for process in processes {
            process.worker.close_stdin();
            process.worker.wait_exit(Duration::from_secs(20)).await;
        }
    }
}

async fn take(
    process: Arc<Process>,
    grants: Arc<Mutex<Vec<Grant>>>,
    kind: &'static str,
    total: u32,
    most: u32,
    end: Instant,
) {
    let mut random = fastrand::Rng::new();
    while Instant::now() < end {
        let permits = random.u32(1..=most);
        let fields = json!({"kind": kind, "name": NAME, "permits": permits,
            "with_permits": total, "wait_ms": 1_000});
        let got = process.worker.request("try_acquire", fields).await;
        match &got.outcome {
            Ok(answer) if answer["acquired"] == true => {
                tokio::time::sleep(Duration::from_millis(random.u64(0..60))).await;
                let handle = answer["handle"].clone();
                let fields = json!({"kind": kind, "name": NAME, "handle": handle});
                let asked = now_ns();
                let released = process.worker.request("release", fields).await;
                let until = if released.t_inv > 0 {
                    released.t_inv
                } else {
                    asked
                };
                grants.lock().push(Grant {
                    process: Arc::clone(&process),
                    handle,
                    permits,
                    from: got.t_ret,
                    until,
                    is_clean: released.outcome.is_ok(),
                });
            }
            Err(error) if error.kind == "dead" || error.kind == "closed" => return,
            _ => {}
        }
    }
}

/// What a run came to: the most permits that were certain at once, how many are free at the end, and how often some were
/// taken.
struct Tally {
    most: u32,
    free: i64,
    grants: usize,
}

/// Beside the run something else may change what Redis has, every 50 ms.
async fn run(kind: &'static str, permits: u32, seconds: u64, meddle: &[&[&str]]) -> Tally {
    let seed = number("PERMITS_SEED", u64::from(fastrand::u32(..)));
    println!("PERMITS_SEED={seed}, {kind} of {permits}");
    let scene = Scene {
        server: RedisServer::start(),
        kind,
        permits,
        end: Instant::now() + Duration::from_secs(seconds),
        grants: Arc::default(),
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let meddling = async {
        while Instant::now() < scene.end && !meddle.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for command in meddle {
                scene.server.cmd(command).await;
            }
        }
    };
    tokio::join!(scene.faults(&mut random), meddling);
    let client = Client::connect(&scene.server.url())
        .await
        .expect("a client");
    let of = client.get_semaphore(NAME);
    let leased = client.get_permit_expirable_semaphore(NAME);
    let free = async || match kind {
        "semaphore" => of.available_permits().await.expect("a number"),
        _ => leased.available_permits().await.expect("a number"),
    };
    let last = Instant::now() + LEASE * 3;
    eventually("the dead ones' leases are over", LEASE * 6, async || {
        free().await == i64::from(permits) || Instant::now() > last
    })
    .await;
    let free = free().await;
    let grants = scene.grants.lock();
    Tally {
        most: most_at_once(&grants),
        free,
        grants: grants.len(),
    }
}

fn number(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |text| text.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_are_never_too_many_and_none_is_missing_at_the_end() {
    for (kind, permits) in [("semaphore", 1), ("permit", 3), ("semaphore", 5)] {
        let mut grants = 0;
        // A busy machine needs several rounds for as much.
        for _ in 0..10 {
            let tally = run(kind, permits, number("PERMITS_SECONDS", 6), &[]).await;
            assert!(tally.most <= permits, "{} of {permits}", tally.most);
            assert_eq!(tally.free, i64::from(permits), "at the end");
            grants += tally.grants;
            if grants > 20 {
                break;
            }
        }
        assert!(grants > 20, "hardly anybody had any");
    }
}

/// Whether a tally is ever wrong while this is done to the semaphore; a busy machine needs several rounds for it.
async fn is_noticed(
    kind: &'static str,
    meddle: &[&[&str]],
    wrong: impl Fn(&Tally) -> bool,
) -> bool {
    for _ in 0..20 {
        if wrong(&run(kind, 2, 3, meddle).await) {
            return true;
        }
    }
    false
}

/// A release without a record, or one whose repeat counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_nobody_gave_back_are_noticed() {
    let more: [&[&str]; 1] = [&["INCR", NAME]];
    let wrong = |tally: &Tally| tally.most > 2 && tally.free > 2;
    assert!(is_noticed("semaphore", &more, wrong).await);
}

/// As by a clock that is ahead: live permits are taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_are_taken_back_too_early_are_noticed() {
    let early: [&[&str]; 1] = [&[
        "EVAL",
        "if #redis.call('ZPOPMIN', KEYS[2]) > 0 then
            redis.call('PUBLISH', 'redisson_sc:{imports}', redis.call('INCR', KEYS[1]))
        end",
        "2",
        NAME,
        "{imports}:timeout",
    ]];
    assert!(is_noticed("permit", &early, |tally| tally.most > 2).await);
}
