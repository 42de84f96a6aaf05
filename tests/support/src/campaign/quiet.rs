//! After the storms: everybody finishes, and nothing is left. Also a look at keys now and then.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::ground::Ground;
use super::kinds::{PERMITS, semaphore_of};
use super::weather::{Watch, Weather};
use super::{Kind, Layout};
use crate::history::{MS, Nanos, Record, Scope};
use crate::now_ns;
use crate::server::RedisServer;

/// Longer than the longest plan, an unreachable server's time-out, a signal's lag, and the places of dead waiters in the
/// queue of a fair lock.
pub(super) const HOMECOMING: Duration = Duration::from_secs(30);
/// The same when there were wrong clients, because of which somebody may wait for ever.
pub(super) const SHORT_HOMECOMING: Duration = Duration::from_secs(5);
/// How much longer than a lease repeated releases and the linger of a subscription take.
const FADING: Duration = Duration::from_millis(4_100);
const LOOK_EVERY: Duration = Duration::from_millis(10);
const STALL: Nanos = 60 * MS;

/// Looks at the locks' keys while the campaign runs: none may be without TTL. An answer that takes long without a fault
/// is a fault of the machine (a slow disk), and excuses like one.
/// The number of a semaphore's free permits has none.
pub(super) async fn sample(ground: Arc<Ground>, names: Vec<String>, weather: Watch) {
    for (turn, name) in names.iter().cycle().enumerate() {
        if weather.is_over() {
            return;
        }
        sleep(LOOK_EVERY).await;
        let Ok(_calm) = ground.struck.try_read() else {
            continue;
        };
        let command = ["PTTL", name];
        // One look at all names, then at the next server.
        let look = async {
            let server = match &ground.deployment {
                Some(deployment) => deployment.server_of(name).await,
                None => &ground.servers[turn / names.len() % ground.servers.len()],
            };
            server.try_cmd(&command).await
        };
        let asked = now_ns();
        let look = timeout(Duration::from_secs(3), look).await;
        let t = now_ns();
        if t - asked > STALL {
            ground.stalled(asked, Scope::Answer);
        }
        if let Ok(Ok(redis::Value::Int(ttl_ms))) = look {
            ground.recorder.push(Record::Sample {
                t,
                name: name.clone(),
                ttl_ms,
            });
        }
    }
}

/// Looks whether the machine stands still while the campaign runs, which a thread that sleeps is the first to see.
pub(super) fn watch_the_clock(ground: &Ground, weather: &Watch) {
    while !weather.is_over() {
        let from = now_ns();
        std::thread::sleep(LOOK_EVERY);
        if now_ns() - from > STALL {
            ground.stalled(from, Scope::Machine);
        }
    }
}

/// Waits until all owners have finished, for `limit` at most, and says which did not.
pub(super) async fn come_home(
    ground: &Ground,
    weather: &Weather,
    mut actors: JoinSet<()>,
    limit: Duration,
) {
    sleep(Duration::from_millis(500)).await;
    weather.call_home();
    let end = Instant::now() + limit;
    while let Ok(Some(ended)) = tokio::time::timeout_at(end, actors.join_next()).await {
        ended.expect("an owner does not panic");
    }
    for slot in &ground.slots {
        slot.worker().collect();
    }
    for _ in 0..actors.len() {
        leftover(ground, "an owner still waits for an answer".to_owned());
    }
    actors.shutdown().await;
}

pub(super) async fn look_for_leftovers(ground: &Ground) {
    let mut left = what_stays(ground).await;
    if !left.is_empty() && ground.expiries.is_some() {
        // Keys that go away when Redisson's processes are replaced were theirs.
        for slot in ground.slots.iter().filter(|slot| slot.kind == Kind::Java) {
            slot.replace().await;
        }
        let theirs = std::mem::replace(&mut left, what_stays(ground).await);
        for what in theirs.iter().filter(|what| !left.contains(what)) {
            ground.answer(&format!("Redisson's leftover: {what}"));
        }
    }
    for what in left {
        leftover(ground, what);
    }
}

async fn what_stays(ground: &Ground) -> Vec<String> {
    let end = Instant::now() + ground.layout.lease() + FADING;
    let mut left = what_is_left(ground).await;
    while !left.is_empty() && Instant::now() < end {
        sleep(Duration::from_millis(20)).await;
        left = what_is_left(ground).await;
    }
    left
}

/// Keys that may stay: fencing tokens must grow for ever; and a client that was killed in the queue of a fair lock
/// stays until the next waiter removes it. Those queues are deleted, so that a round begins as the first one
/// did.
async fn what_is_left(ground: &Ground) -> Vec<String> {
    let mut left = Vec::new();
    for server in ground.masters().await {
        left.extend(what_is_left_at(ground, server).await);
    }
    left
}

async fn what_is_left_at(ground: &Ground, server: &RedisServer) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| !key.starts_with("redisson_lock_token:"));
    let mut left = Vec::new();
    for key in keys {
        if let Some((key, missing)) = semaphore(server, &key).await {
            if missing != 0 {
                left.push(format!("{key} lacks {missing} permits"));
            }
        } else if is_queue_of_the_dead(ground, server, &key).await {
            server.cmd(&["DEL", &key]).await;
        } else {
            left.push(key);
        }
    }
    let mut keys = left;
    let mut channels = server.channels().await;
    if matches!(ground.layout, Layout::Cluster | Layout::AcknowledgedCluster) {
        channels.extend(server.sharded_channels().await);
    }
    // The channels on which sentinels talk.
    channels.retain(|channel| channel != "__sentinel__:hello");
    if ground.expiries.is_some() {
        // Redisson's notes about its own unlocks stay for a while after it is killed, and are not locks.
        keys.retain(|key| !key.starts_with("redisson_unlock_latch:"));
        channels.retain(|channel| channel.starts_with("redisson_lock"));
    }
    let keys = keys.into_iter().map(|key| format!("key {key}"));
    let channels = channels.into_iter().map(|name| format!("channel {name}"));
    keys.chain(channels).collect()
}

/// The semaphore that a key is of, and how many of its permits are neither free nor to be taken back: the records of dead
/// holders stay until somebody looks.
async fn semaphore(server: &RedisServer, key: &str) -> Option<(String, i64)> {
    let own = key.strip_prefix("watchlock_permits:{");
    let of = own.or_else(|| key.strip_suffix(":timeout"));
    let name = of.map_or(key, |name| name.trim_matches(['{', '}']));
    let (_, records) = semaphore_of(name);
    let free: Option<String> = asked(server, &["GET", name]).await?;
    // Without the number, which an operator deleted, the records are of nothing.
    let free: i64 = match free {
        Some(free) => free.parse().ok()?,
        None => return of.map(|_| (name.to_owned(), 0)),
    };
    let (seconds, _): (u64, u64) = asked(server, &["TIME"]).await?;
    let now_ms = (seconds * 1_000).to_string();
    let over: i64 = asked(server, &["ZCOUNT", &records, "-inf", &now_ms]).await?;
    let all: i64 = asked(server, &["ZCARD", &records]).await?;
    let missing = match all - over {
        0 => i64::from(PERMITS) - free - over,
        taken => taken,
    };
    Some((name.to_owned(), missing))
}

async fn asked<T: redis::FromRedisValue>(server: &RedisServer, command: &[&str]) -> Option<T> {
    let answer = server.try_cmd(command).await.ok()?;
    redis::from_redis_value(answer).ok()
}

/// Whether a key belongs to a fair lock's queue that contains no live client.
async fn is_queue_of_the_dead(ground: &Ground, server: &RedisServer, key: &str) -> bool {
    let command = match key.split(':').next() {
        Some("redisson_lock_queue") => "LRANGE",
        Some("redisson_lock_timeout" | "watchlock_waiters") => "ZRANGE",
        _ => return false,
    };
    let members = server.try_cmd(&[command, key, "0", "-1"]).await;
    let Ok(redis::Value::Array(members)) = members else {
        return false;
    };
    let living: Vec<_> = ground
        .slots
        .iter()
        .map(super::fleet::Slot::worker)
        .collect();
    let members = members.iter().map(|member| {
        let member = redis::from_redis_value_ref::<String>(member);
        member.unwrap_or_default()
    });
    // A client's note that it lives stands beside the places of others, and stays as long as they do.
    let places: Vec<_> = members.filter(|member| member.contains(':')).collect();
    let lives = |place: &String| living.iter().any(|process| place.starts_with(&process.id));
    !places.is_empty() && !places.iter().any(lives)
}

fn leftover(ground: &Ground, what: String) {
    let t = now_ns();
    ground.recorder.push(Record::Leftover { t, what });
}
