//! Metrics, by a real recorder that a real scrape reads: that of the process, so one test has all the load. And by one that
//! hangs.
#![cfg(feature = "metrics")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../examples/metrics.rs"]
#[allow(dead_code, reason = "the example itself is not run")]
mod example;
mod stuck;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use watchlock::{Client, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::proxy::Proxy;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, SHORT, ms, poll_once, soon};

const PAGE: &str = include_str!("../../docs/metrics.md");
const CODE: &str = include_str!("../../src/report/metrics.rs");

/// The instruments that a text names.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    words
        .filter(|word| word.starts_with("watchlock_"))
        .map(|word| word.trim_end_matches("_bucket"))
        .collect()
}

#[test]
fn table_code_and_alerts_have_the_same_instruments() {
    let (table, alerts) = PAGE.split_once("## Alerts").unwrap();
    let rows: BTreeSet<_> = table
        .lines()
        .filter_map(|line| line.strip_prefix("|`")?.split('`').next())
        .collect();
    assert_eq!(rows.len(), 11);
    assert_eq!(rows, named(CODE));
    assert_eq!(named(alerts).len(), 4);
    assert!(named(alerts).is_subset(&rows));
    // Each word of a label is one that the code writes.
    let words = table
        .lines()
        .filter(|line| line.starts_with("|`watchlock_"));
    for row in words {
        let labels = row.split('|').nth(3).unwrap();
        for word in labels.split('`').skip(1).step_by(2) {
            let sources = [
                CODE,
                include_str!("../../src/backend/cluster/fleet.rs"),
                include_str!("../../src/engine/keeper/hub/mod.rs"),
                include_str!("../../src/client/builder.rs"),
            ];
            let is_written = |source: &&str| source.contains(&format!("\"{word}\""));
            assert!(sources.iter().any(is_written), "{word}");
        }
    }
}

/// What a scrape returns: a number for each series.
async fn scrape(port: u16) -> BTreeMap<String, f64> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    connection
        .write_all(b"GET /metrics HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let lines = body
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, number) = line.rsplit_once(' ').unwrap();
            (series.to_owned(), number.parse().unwrap())
        })
        .collect()
}

/// The sum of the series of an instrument that have all of these labels.
fn sum(series: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> f64 {
    let meant = series.iter().filter(|(series, _)| {
        let own = series.split('{').next() == Some(name);
        own && labels.iter().all(|label| series.contains(label))
    });
    meant.map(|(_, number)| number).sum()
}

fn lock_label(name: &str) -> Option<&'static str> {
    name.starts_with("order:").then_some("order")
}

/// A client whose numbers are scraped.
struct Load {
    port: u16,
    server: RedisServer,
    proxy: Proxy,
    client: Client,
}

impl Load {
    async fn start() -> Self {
        let recorder = example::install().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(example::serve(listener, recorder));
        let server = RedisServer::start();
        let proxy = Proxy::to(&server);
        let builder = Client::builder(&proxy.url()).watchdog_lease(SHORT);
        let builder = builder
            .command_timeout(ms(300))
            .metrics_lock_label(lock_label);
        Self {
            port,
            client: builder.connect().await.unwrap(),
            server,
            proxy,
        }
    }

    /// Waits until the series with these labels have this sum.
    async fn is(&self, what: &str, name: &str, labels: &[&str], number: f64) {
        eventually(what, LONG, async || {
            let found = sum(&scrape(self.port).await, name, labels);
            (found - number).abs() < 0.5
        })
        .await;
    }
}

/// Held while a client lives: whatever is registered late is counted by the recorder of the process.
static ONE_CLIENT: Mutex<()> = Mutex::const_new(());

/// A recorder may do anything: while one is called, nothing of the client is locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_recorder_that_hangs_holds_up_its_caller_alone() {
    let _alone = ONE_CLIENT.lock().await;
    let server = RedisServer::start();
    let (recorder, is_stuck, go) = stuck::StuckRecorder::new();
    let client = tokio::task::block_in_place(|| {
        let connect = || Handle::current().block_on(Client::connect(&server.url()));
        metrics::with_local_recorder(&recorder, connect)
    })
    .unwrap();
    let lock = client.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let release = tokio::spawn(guard.unlock());
    is_stuck.recv_timeout(LONG).unwrap();
    let asks = tokio::spawn({
        let (client, lock) = (client.clone(), lock.clone());
        async move {
            let mut waits = Box::pin(lock.lock());
            (poll_once(&mut waits).await.is_none(), client.stats().holds)
        }
    });
    assert_eq!(soon(asks).await.unwrap(), (true, 0));
    // The keeper may hang, too, as it gives back what was dropped.
    drop(go);
    soon(release).await.unwrap().unwrap();
    let guard = soon(lock.lock()).await.unwrap();
    soon(guard.unlock()).await.unwrap();
}

/// The keeper may look at the command that is being measured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorder_that_hangs_at_a_command_stops_no_renewal() {
    let _alone = ONE_CLIENT.lock().await;
    let server = RedisServer::start();
    let (mut recorder, is_stuck, go) = stuck::StuckRecorder::new();
    recorder.hangs_at_commands = true;
    let builder = Client::builder(server.url()).watchdog_lease(SHORT);
    let client = builder.command_timeout(ms(300)).connect().await.unwrap();
    let kept = client.get_lock("kept").lock().await.unwrap();
    // Another lock of the same client is asked about on a thread whose recorder hangs.
    let hangs = std::thread::spawn({
        let (lock, runtime) = (client.get_fair_lock("x"), Handle::current());
        move || {
            let taken = || runtime.block_on(lock.lock());
            metrics::with_local_recorder(&recorder, taken)
        }
    });
    is_stuck.recv_timeout(LONG).unwrap();
    let two_leases = Instant::now() + SHORT * 2;
    eventually("two leases have passed", LONG, async || {
        kept.check().expect("it is renewed");
        Instant::now() > two_leases
    })
    .await;
    drop(go);
    let guard = tokio::task::spawn_blocking(|| hangs.join());
    let guard = soon(guard).await.unwrap().unwrap();
    drop(guard);
    kept.unlock().await.unwrap();
}

const OUTCOME: &str = "watchlock_acquire_seconds_count";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_under_load_finds_the_numbers_of_the_load() {
    let _alone = ONE_CLIENT.lock().await;
    let load = Load::start().await;
    each_kind_is_taken_and_given_back(&load).await;
    let guard = one_waits_one_is_busy_one_gives_up(&load).await;
    a_hold_is_renewed_lost_or_left(&load, guard).await;
    redis_is_away(&load).await;
    clients_add_up_and_leave_nothing(load).await;
}

async fn each_kind_is_taken_and_given_back(load: &Load) {
    let client = &load.client;
    let both = client.get_read_write_lock("rw");
    client
        .get_lock("order:1")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    client
        .get_fair_lock("f")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    client
        .get_fenced_lock("t")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    client
        .get_spin_lock("s")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    client
        .get_simple_lock("i")
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    both.read_lock()
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    both.write_lock()
        .lock()
        .await
        .unwrap()
        .unlock()
        .await
        .unwrap();
    for kind in ["plain", "fair", "fenced", "spin", "simple", "read", "write"] {
        let kind = format!("kind=\"{kind}\"");
        load.is(
            "acquired",
            "watchlock_acquire_seconds_count",
            &[&kind, "free"],
            1.0,
        )
        .await;
        load.is(
            "released",
            "watchlock_hold_seconds_count",
            &[&kind, "released"],
            1.0,
        )
        .await;
        load.is("given back", "watchlock_holds", &[&kind], 0.0)
            .await;
    }
    let order = ["lock=\"order\"", "free", "plain"];
    load.is("its label", "watchlock_acquire_seconds_count", &order, 1.0)
        .await;
    load.is(
        "a command",
        "watchlock_command_seconds_count",
        &["lock/acquire.lua", "answered"],
        2.0,
    )
    .await;
}

async fn one_waits_one_is_busy_one_gives_up(load: &Load) -> LockGuard {
    let lock = load.client.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let busy = lock
        .try_lock(Duration::ZERO, Lease::Watchdog)
        .await
        .unwrap();
    assert!(busy.is_none());
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    load.is("it waits", "watchlock_waiters", &["plain"], 1.0)
        .await;
    load.is("it is held", "watchlock_holds", &["plain"], 1.0)
        .await;
    let mut dropped = Box::pin(lock.lock());
    assert!(poll_once(&mut dropped).await.is_none());
    drop(dropped);
    load.is("one is abandoned", OUTCOME, &["plain", "abandoned"], 1.0)
        .await;
    load.is("one is busy", OUTCOME, &["plain", "busy"], 1.0)
        .await;
    load.is("one waits on", "watchlock_waiters", &["plain"], 1.0)
        .await;
    guard.unlock().await.unwrap();
    let guard = soon(waiting).await.unwrap();
    load.is("one waited", OUTCOME, &["plain", "waited"], 1.0)
        .await;
    guard
}

async fn a_hold_is_renewed_lost_or_left(load: &Load, guard: LockGuard) {
    eventually("it is renewed", LONG, async || {
        let series = scrape(load.port).await;
        sum(&series, "watchlock_renewals_total", &["held"]) >= 1.0
            && sum(&series, "watchlock_renewal_slack_ratio_count", &[]) >= 1.0
    })
    .await;
    load.server.cmd(&["DEL", "x"]).await;
    soon(guard.lost()).await;
    load.is("a loss", "watchlock_lost_total", &["plain", "missing"], 1.0)
        .await;
    load.is(
        "it ended",
        "watchlock_hold_seconds_count",
        &["plain", "lost"],
        1.0,
    )
    .await;
    drop(guard);
    let left = load
        .client
        .get_lock("left")
        .lock_with_lease(LONG)
        .await
        .unwrap();
    left.let_expire().unwrap();
    load.is(
        "one is left",
        "watchlock_hold_seconds_count",
        &["plain", "left"],
        1.0,
    )
    .await;
}

/// A release is repeated, waiters poll, an acquire fails.
async fn redis_is_away(load: &Load) {
    let (client, proxy) = (&load.client, &load.proxy);
    let lock = client.get_lock("x");
    let guard = lock.lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    eventually("it listens", LONG, async || {
        !load.server.channels().await.is_empty()
    })
    .await;
    proxy.refuse();
    proxy.reset_all();
    load.is("it polls", "watchlock_polling", &[], 1.0).await;
    let failed = client.get_lock("y").try_lock(ms(50), Lease::Watchdog).await;
    assert!(failed.is_err());
    load.is("it fails", OUTCOME, &["plain", "failed"], 1.0)
        .await;
    waiting.abort();
    drop(guard);
    // The acquire of `y` may have been sent: then it is taken back, too.
    eventually("it is repeated", LONG, async || {
        sum(&scrape(load.port).await, "watchlock_unreleased", &[]) >= 1.0
    })
    .await;
    proxy.accept();
    load.is("it is released", "watchlock_unreleased", &[], 0.0)
        .await;
    for lane in ["callers", "keeper", "messages"] {
        let lane = format!("lane=\"{lane}\"");
        let series = scrape(load.port).await;
        let connects = sum(&series, "watchlock_connects_total", &[&lane, "ok"]);
        assert!(connects >= 1.0, "{lane}");
    }
}

/// Each client takes its part back when it ends.
async fn clients_add_up_and_leave_nothing(load: Load) {
    let (client, server) = (&load.client, &load.server);
    let other = Client::builder(&server.url()).metrics_lock_label(lock_label);
    let other = other.connect().await.unwrap();
    let guards = [
        client.get_lock("a").lock().await.unwrap(),
        other.get_lock("b").lock().await.unwrap(),
    ];
    load.is("both hold", "watchlock_holds", &["plain"], 2.0)
        .await;
    soon(other.shutdown(Duration::ZERO)).await;
    load.is("one holds", "watchlock_holds", &["plain"], 1.0)
        .await;
    soon(client.shutdown(Duration::ZERO)).await;
    drop(guards);
    for gauge in [
        "watchlock_holds",
        "watchlock_waiters",
        "watchlock_polling",
        "watchlock_unreleased",
    ] {
        load.is(gauge, gauge, &[], 0.0).await;
    }
    let series = scrape(load.port).await;
    let all = series
        .keys()
        .map(|series| series.split('{').next().unwrap());
    let all: BTreeSet<_> = all
        .map(|name| name.trim_end_matches("_count").trim_end_matches("_sum"))
        .map(|name| name.trim_end_matches("_bucket"))
        .collect();
    assert_eq!(all, named(CODE));
}
