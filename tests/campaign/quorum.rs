//! Wrong clients of a quorum, each caught in what brings its mistake out; the correct one, which passes all of it; and
//! ours, once as it is and once with its servers' votes at once where that is wrong.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use watchlock_support::checker::{Invariant, Report, Settings, check};
use watchlock_support::controls::quorum::{NODE_TIMEOUT, PlainQuorum, QuorumFlaw};
use watchlock_support::history::{Call, LockKind, Outcome, Record, Recorder, Scope};
use watchlock_support::proxy::{Fault, Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;
use watchlock_support::{eventually, now_ns};

const NAME: &str = "controlled";
const SECOND: Duration = Duration::from_secs(1);
/// No lease of a test whose servers restart is longer than [`LEASE`].
const RESTART_DELAY: Duration = Duration::from_secs(5);
const LEASE: Duration = Duration::from_secs(2);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Servers, a client that has each of them behind a proxy, and one that is left alone.
struct Stage {
    servers: Vec<RedisServer>,
    proxies: Vec<Proxy>,
    recorder: Recorder,
    harmed: PlainQuorum,
    second: PlainQuorum,
}

impl Stage {
    async fn new(count: usize, flaw: Option<QuorumFlaw>, delay: Duration) -> Self {
        let servers: Vec<_> = (0..count).map(|_| RedisServer::start()).collect();
        join_all(servers.iter().map(RedisServer::ready)).await;
        let proxies: Vec<_> = servers.iter().map(Proxy::to).collect();
        let recorder = Recorder::new();
        let harmed: Vec<_> = proxies.iter().map(Proxy::url).collect();
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        Self {
            harmed: PlainQuorum::new(&harmed, 1, flaw, delay, &recorder),
            second: PlainQuorum::new(&urls, 2, flaw, delay, &recorder),
            servers,
            proxies,
            recorder,
        }
    }

    fn fault(&self, from: u64, kind: &str, scope: Scope) {
        fault(&self.recorder, from, kind, scope);
    }

    /// Waits until nothing is left on any server, or records what is, and checks the history.
    async fn report(&self) -> Report {
        report(&self.servers, &self.recorder).await
    }
}

fn fault(recorder: &Recorder, from: u64, kind: &str, scope: Scope) {
    recorder.push(Record::Fault {
        from,
        until: now_ns(),
        kind: kind.to_owned(),
        scope,
    });
}

async fn left(servers: &[RedisServer]) -> Vec<String> {
    let mut left = Vec::new();
    for server in servers {
        left.extend(server.keys().await);
    }
    left
}

async fn report(servers: &[RedisServer], recorder: &Recorder) -> Report {
    let patience = tokio::time::Instant::now() + 3 * SECOND;
    while !left(servers).await.is_empty() && tokio::time::Instant::now() < patience {
        tokio::time::sleep(ms(5)).await;
    }
    for what in left(servers).await {
        let t = now_ns();
        recorder.push(Record::Leftover { t, what });
    }
    let settings = Settings {
        watchdog_lease: LEASE,
        command_timeout: NODE_TIMEOUT,
        backoff_cap: ms(200),
        scheduling: ms(150),
        recovery: ms(300),
        ..Settings::default()
    };
    check(&recorder.take(), &settings)
}

async fn until_old(servers: &[RedisServer]) {
    for server in servers {
        eventually("it is old enough", 4 * RESTART_DELAY, async || {
            let uptime = server.info("server", "uptime_in_seconds").await;
            uptime.is_some_and(|said| {
                said.parse::<u64>()
                    .is_ok_and(|s| s >= RESTART_DELAY.as_secs())
            })
        })
        .await;
    }
}

/// The answers of all servers are late, and somebody waits for the end of the lease.
async fn late_replies(flaw: Option<QuorumFlaw>) -> Report {
    let stage = Stage::new(3, flaw, Duration::ZERO).await;
    let from = now_ns();
    let aims: Vec<_> = stage
        .proxies
        .iter()
        .map(|proxy| {
            let late = proxy.inject(Fault::DelayReply(SECOND));
            late.on(Match::arg(NAME)).arm()
        })
        .collect();
    let first = async {
        let hold = stage.harmed.lock(NAME, Duration::ZERO, LEASE).await;
        assert!(aims.iter().all(|aim| aim.fired() == 1));
        stage.fault(from, "delay_reply", Scope::Client(1));
        hold
    };
    let second = async {
        let server = &stage.servers[0];
        let there = async || server.exists(NAME).await;
        eventually("the first has it", 5 * SECOND, there).await;
        let hold = stage.second.lock(NAME, 5 * SECOND, LEASE).await;
        tokio::time::sleep(SECOND).await;
        hold
    };
    let (first, second) = tokio::join!(first, second);
    for hold in [second, first].into_iter().flatten() {
        hold.unlock().await;
    }
    stage.report().await
}

/// A majority is started again, empty, while somebody has the lock.
async fn restarts(flaw: Option<QuorumFlaw>) -> Report {
    let stage = Stage::new(3, flaw, RESTART_DELAY).await;
    until_old(&stage.servers).await;
    let first = stage.harmed.lock(NAME, Duration::ZERO, LEASE).await;
    let from = now_ns();
    for server in &stage.servers[..2] {
        server.kill();
        server.launch();
        server.ready().await;
    }
    stage.fault(from, "restart", Scope::All);
    let second = stage.second.lock(NAME, ms(300), ms(600)).await;
    tokio::time::sleep(ms(300)).await;
    for hold in [second, first].into_iter().flatten() {
        hold.unlock().await;
    }
    stage.report().await
}

/// A server grants the lock, and its answer is too late.
async fn unanswered(flaw: Option<QuorumFlaw>) -> Report {
    let stage = Stage::new(3, flaw, Duration::ZERO).await;
    let from = now_ns();
    let late = stage.proxies[2].inject(Fault::DelayReply(2 * NODE_TIMEOUT));
    let aim = late.on(Match::arg(NAME)).arm();
    let hold = stage.harmed.lock(NAME, SECOND, 30 * SECOND).await;
    assert_eq!(aim.fired(), 1);
    stage.fault(from, "delay_reply", Scope::Client(1));
    hold.expect("two granted it").unlock().await;
    stage.report().await
}

/// Each of two clients reaches servers that the other does not.
async fn split(flaw: Option<QuorumFlaw>) -> Report {
    let stage = Stage::new(5, flaw, Duration::ZERO).await;
    let urls = |of: std::ops::Range<usize>| {
        // Nobody listens on the first port.
        let away = (0..5).map(|_| "redis://127.0.0.1:1/".to_owned());
        let mut urls: Vec<_> = away.collect();
        for place in of {
            urls[place] = stage.servers[place].url();
        }
        urls
    };
    let of = |client, places| {
        PlainQuorum::new(&urls(places), client, flaw, Duration::ZERO, &stage.recorder)
    };
    let (one, other) = (of(1, 0..2), of(2, 2..5));
    let first = one.lock(NAME, Duration::ZERO, LEASE).await;
    let second = other.lock(NAME, Duration::ZERO, LEASE).await;
    tokio::time::sleep(ms(300)).await;
    for hold in [second, first].into_iter().flatten() {
        hold.unlock().await;
    }
    stage.report().await
}

async fn play(part: QuorumFlaw, flaw: Option<QuorumFlaw>) -> Report {
    match part {
        QuorumFlaw::ValidityFromReply => late_replies(flaw).await,
        QuorumFlaw::VotesAtOnce => restarts(flaw).await,
        QuorumFlaw::ReleaseWhereAcquired => unanswered(flaw).await,
        QuorumFlaw::HalfIsEnough => split(flaw).await,
    }
}

/// The machine may excuse what happens while it stalls, so there are several chances.
async fn catches(flaw: QuorumFlaw, invariant: Invariant) {
    let mut report = play(flaw, Some(flaw)).await;
    for _ in 0..3 {
        if report.breaks(invariant) {
            return;
        }
        report = play(flaw, Some(flaw)).await;
    }
    assert!(report.breaks(invariant), "{flaw:?} got away:\n{report}");
}

#[tokio::test]
async fn a_quorum_whose_validity_is_counted_from_the_replies_is_caught() {
    catches(QuorumFlaw::ValidityFromReply, Invariant::I1).await;
}

#[tokio::test]
async fn a_quorum_in_which_restarted_servers_vote_at_once_is_caught() {
    catches(QuorumFlaw::VotesAtOnce, Invariant::I1).await;
}

#[tokio::test]
async fn a_quorum_that_gives_back_only_known_grants_is_caught() {
    catches(QuorumFlaw::ReleaseWhereAcquired, Invariant::I7).await;
}

#[tokio::test]
async fn a_quorum_of_half_of_the_servers_is_caught() {
    catches(QuorumFlaw::HalfIsEnough, Invariant::I1).await;
}

#[tokio::test]
async fn the_correct_quorum_passes_all_of_it() {
    for part in QuorumFlaw::ALL {
        let report = play(part, None).await;
        assert!(report.violations.is_empty(), "{part:?}:\n{report}");
    }
}

/// Our worker, as its history records it.
struct Ours<'a> {
    worker: Worker,
    client: u32,
    recorder: &'a Recorder,
}

impl<'a> Ours<'a> {
    async fn open(
        servers: &[RedisServer],
        delay: Option<u64>,
        client: u32,
        recorder: &'a Recorder,
    ) -> Self {
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        let mut opening = json!({"urls": urls, "watchdog_ms": 2_000});
        if let Some(delay) = delay {
            opening["restart_delay_ms"] = json!(delay);
        }
        let worker = Worker::rust();
        worker.call("open", opening).await.expect("a quorum");
        Self {
            worker,
            client,
            recorder,
        }
    }

    /// One try; whether it got the lock.
    async fn tries(&self) -> bool {
        let lease = u64::try_from(LEASE.as_millis()).expect("a short time");
        let call = Call::Acquire {
            wait_ms: Some(0),
            lease_ms: Some(lease),
        };
        let op = self
            .recorder
            .invoke(self.client, 0, LockKind::Red, NAME, call);
        let fields =
            json!({"owner": "0", "kind": "red", "name": NAME, "wait_ms": 0, "lease_ms": lease});
        let answer = self.worker.call("try_lock", fields).await;
        let outcome = match &answer {
            Ok(got) if got["acquired"] == true => Outcome::Acquired(1),
            Ok(_) => Outcome::Busy,
            Err(error) => Outcome::Failed(error.kind.clone()),
        };
        let got = outcome == Outcome::Acquired(1);
        self.recorder.returned(op, outcome);
        got
    }
}

/// The servers forget while somebody has the lock for a fixed lease, which nobody renews.
async fn ours(delay: Option<u64>) -> Report {
    let recorder = Recorder::new();
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    join_all(servers.iter().map(RedisServer::ready)).await;
    until_old(&servers).await;
    let one = Ours::open(&servers, delay, 1, &recorder).await;
    let other = Ours::open(&servers, delay, 2, &recorder).await;
    assert!(one.tries().await, "it is free");
    let from = now_ns();
    for server in &servers[..2] {
        server.kill();
        server.launch();
        server.ready().await;
    }
    fault(&recorder, from, "restart", Scope::All);
    let end = tokio::time::Instant::now() + LEASE / 2;
    while !other.tries().await && tokio::time::Instant::now() < end {
        tokio::time::sleep(ms(20)).await;
    }
    tokio::time::sleep(ms(100)).await;
    report(&servers, &recorder).await
}

#[tokio::test]
async fn our_quorum_without_its_restart_delay_on_servers_that_forget_is_caught() {
    let mut report = ours(Some(0)).await;
    for _ in 0..3 {
        if report.breaks(Invariant::I1) {
            return;
        }
        report = ours(Some(0)).await;
    }
    assert!(report.breaks(Invariant::I1), "{report}");
}

#[tokio::test]
async fn our_quorum_with_its_restart_delay_is_not() {
    let report = ours(None).await;
    assert!(!report.breaks(Invariant::I1), "{report}");
    assert!(report.holds > 0);
}
