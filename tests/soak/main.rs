//! A client that locks and unlocks for a long time, with futures dropped in the middle and faults on its link, uses no
//! more memory, files and threads at the end than after its first rounds.
//!
//! `SOAK_MINUTES` is the length; without it the test runs a few short rounds.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use watchlock::{Client, Lease, LockGuard};
use watchlock_support::campaign::{Look, growth};
use watchlock_support::eventually;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;

const TASKS: u64 = 32;
const NAMES: u32 = 12;
const WATCHDOG_LEASE: Duration = ms(900);

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[derive(Default)]
struct Counts {
    sections: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    faults: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Polls a future for a random short time; one in a hundred is dropped in the middle.
async fn or_dropped<T>(
    rng: &mut Rng,
    counts: &Counts,
    future: impl Future<Output = T>,
) -> Option<T> {
    if rng.u32(..100) > 0 {
        return Some(future.await);
    }
    let done = timeout(Duration::from_micros(rng.u64(..3_000)), future).await;
    if done.is_err() {
        count(&counts.dropped);
    }
    done.ok()
}

async fn lock_and_unlock(client: Client, seed: u64, end: Instant, counts: Arc<Counts>) {
    let mut rng = Rng::with_seed(seed);
    while Instant::now() < end {
        let lock = client.get_lock(&format!("soak:{}", rng.u32(..NAMES)));
        let fixed = Lease::Fixed(ms(rng.u64(100..1_000)));
        let lease = if rng.bool() { Lease::Watchdog } else { fixed };
        let wait = ms(rng.u64(..200));
        let trying = lock.try_lock(wait, lease);
        match or_dropped(&mut rng, &counts, trying).await {
            Some(Ok(Some(guard))) => section(&mut rng, &counts, guard).await,
            Some(Ok(None)) | None => {}
            Some(Err(_)) => {
                count(&counts.failed);
                sleep(ms(5)).await;
            }
        }
    }
}

async fn section(rng: &mut Rng, counts: &Counts, guard: LockGuard) {
    count(&counts.sections);
    if rng.u32(..4) == 0 {
        drop(or_dropped(rng, counts, guard.reenter(Lease::Watchdog)).await);
    }
    sleep(Duration::from_micros(rng.u64(..3_000))).await;
    if rng.u32(..10) > 0 {
        drop(or_dropped(rng, counts, guard.unlock()).await);
    }
}

/// One fault after the other until the end; then the link and the server are as before.
async fn disturb(server: &RedisServer, proxy: &Proxy, mut rng: Rng, end: Instant, counts: &Counts) {
    while Instant::now() < end {
        sleep(ms(rng.u64(50..300))).await;
        count(&counts.faults);
        let calls = Match::when(|command| command.name().starts_with("EVAL"));
        match rng.u32(..9) {
            0 => drop(proxy.reset_all()),
            1 => drop(proxy.reset_subscribers()),
            2 => drop(proxy.inject(Fault::ResetAfter).on(calls).arm()),
            3 => drop(proxy.inject(Fault::SwallowReply).on(calls).arm()),
            4 => drop(proxy.inject(Fault::DelayReply(ms(200))).on(calls).arm()),
            5 => drop(server.try_cmd(&["SCRIPT", "FLUSH"]).await),
            6 => drop(server.try_cmd(&["CLIENT", "KILL", "TYPE", "pubsub"]).await),
            7 => {
                server.freeze();
                sleep(ms(rng.u64(20..400))).await;
                server.resume();
            }
            _ => {
                proxy.black_hole(Direction::Both);
                sleep(ms(rng.u64(20..400))).await;
                proxy.heal();
                proxy.reset_all();
            }
        }
    }
    proxy.calm();
    proxy.reset_all();
}

async fn round(
    client: &Client,
    server: &RedisServer,
    proxy: &Proxy,
    seed: u64,
    time: Duration,
    counts: &Arc<Counts>,
) {
    let end = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let seed = (seed << 16) + task;
        let work = lock_and_unlock(client.clone(), seed, end, Arc::clone(counts));
        tasks.spawn(work);
    }
    disturb(server, proxy, Rng::with_seed(seed), end, counts).await;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no operation panics");
    }
    let nothing_left =
        async || server.keys().await.is_empty() && server.channels().await.is_empty();
    eventually("nothing is left in Redis", ms(10_000), nothing_left).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_a_long_time_of_locks_faults_and_dropped_futures_leaves_nothing_behind() {
    let minutes: Option<u64> = env::var("SOAK_MINUTES")
        .ok()
        .and_then(|text| text.parse().ok());
    let (rounds, time) = minutes.map_or((6, ms(400)), |minutes| (minutes * 4, ms(15_000)));
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let builder = Client::builder(&proxy.url()).watchdog_lease(WATCHDOG_LEASE);
    let client = builder.connect().await.expect("the server is there");
    let counts = Arc::new(Counts::default());
    let (mut looks, mut tasks) = (Vec::new(), None);
    for number in 1..=rounds {
        round(&client, &server, &proxy, number, time, &counts).await;
        tasks = Some(settled(&client, &server, tasks).await);
        let number = u32::try_from(number).expect("few rounds");
        let look = Look::at(std::process::id(), number).expect("a process knows itself");
        println!("{look:?} {:?}", shown(&counts));
        looks.push(look);
    }
    assert_eq!(growth(&looks), [] as [String; 0]);
}

/// Waits until the client has one connection here and one in its keeper, and no more tasks than before; returns the
/// number of tasks.
async fn settled(client: &Client, server: &RedisServer, before: Option<usize>) -> usize {
    let long = ms(10_000);
    // Uses both connections, so that neither is missing; the release uses the keeper's.
    drop(
        client
            .get_lock("soak:last")
            .lock()
            .await
            .expect("all is well"),
    );
    let two = async || server.connections().await == 2 && server.keys().await.is_empty();
    eventually("two connections are left", long, two).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = before.unwrap_or_else(tasks);
    eventually("no task is left", long, async || tasks() <= before).await;
    before
}

fn shown(counts: &Counts) -> [(&'static str, u64); 4] {
    [
        ("sections", counts.sections.load(Ordering::Relaxed)),
        ("dropped", counts.dropped.load(Ordering::Relaxed)),
        ("failed", counts.failed.load(Ordering::Relaxed)),
        ("faults", counts.faults.load(Ordering::Relaxed)),
    ]
}
