//! The faults of one worker and its links, storm after storm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;

use super::fleet::{Link, Slot};
use super::ground::Ground;
use super::weather::Watch;
use super::{COMMAND_TIMEOUT, Kind};
use crate::checker::ns;
use crate::history::{Nanos, Record, Scope};
use crate::now_ns;
use crate::proxy::{Direction, Fault, Match, Odds};

/// The round trip of a distant link.
const FAR: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
enum Strike {
    Kill,
    Freeze(Duration),
    /// A fault that waits for a command: how many commands it lets pass, and how long it waits.
    Aimed(Fault, u64, Duration),
    HalfOpen,
    ResetAll,
    ResetSubscribers,
    Standing(Standing, Duration),
    /// Many small faults by chance.
    Random(u64, Duration),
}

/// A fault that lasts for a while.
#[derive(Clone, Copy, Debug)]
enum Standing {
    BlackHole(Direction),
    Hold(Direction),
    Refuse,
    /// Round trips of that length.
    Slow(Duration),
}

pub(super) async fn run(
    ground: Arc<Ground>,
    (slot, link): (usize, usize),
    seed: u64,
    kills: bool,
    mut weather: Watch,
) {
    let own = (slot as u64 + 1) << 32 ^ (link as u64) << 56;
    let mut rng = Rng::with_seed(seed ^ own);
    let slot = &ground.slots[slot];
    let struck = Struck {
        slot,
        link: &slot.links[link],
    };
    // The task that strikes a worker's first link also strikes its process. Of several links most should work.
    let (is_first, rarer) = (link == 0, u32::try_from(slot.links.len()).unwrap_or(1));
    while weather.storm().await {
        // Not a fault: a wake-up that is only missed when links are slow is missed all the same.
        let near = rng.u32(..4) > 0;
        let round_trip = if near { Duration::ZERO } else { FAR };
        struck.link.proxy.latency(round_trip);
        struck.link.far.store(!near, Ordering::Relaxed);
        while weather.is_storm() {
            let pause = ms(rng.u64(10..250)) * rarer;
            let mut strike = match slot.kind {
                Kind::Java => draw_mildly(&mut rng, kills),
                Kind::Rust | Kind::Plain(_) => draw(&mut rng, kills),
            };
            if !is_first && matches!(strike, Strike::Kill | Strike::Freeze(_)) {
                strike = Strike::ResetAll;
            }
            weather.sleep_in_storm(pause).await;
            inflict(&ground, struck, strike, &mut weather).await;
            struck.link.proxy.latency(round_trip);
        }
        clear(&ground, struck);
    }
    struck.link.proxy.calm();
}

/// A worker, and the link that is struck.
#[derive(Clone, Copy)]
struct Struck<'a> {
    slot: &'a Slot,
    link: &'a Link,
}

/// Draws everything here, so that the draws do not depend on what happens.
fn draw(rng: &mut Rng, kills: bool) -> Strike {
    let long = ms(rng.u64(50..1_300));
    let short = ms(rng.u64(5..250));
    let direction = [Direction::Requests, Direction::Replies, Direction::Both][rng.usize(..3)];
    let (pass, seed) = (rng.u64(1..5), rng.u64(..));
    match rng.u32(..32) {
        0 if kills => Strike::Kill,
        0..2 => Strike::Freeze(long),
        2..4 => Strike::Aimed(Fault::SwallowRequest, pass, short),
        4..7 => Strike::Aimed(Fault::SwallowReply, pass, short),
        7..10 => Strike::Aimed(Fault::ResetBefore, pass, short),
        10..13 => Strike::Aimed(Fault::ResetAfter, pass, short),
        13..15 => Strike::Aimed(Fault::DelayRequest(long), pass, short),
        15..17 => Strike::Aimed(Fault::DelayReply(long), pass, short),
        17 => Strike::Standing(Standing::BlackHole(direction), long),
        18 => Strike::HalfOpen,
        19..21 => Strike::ResetAll,
        21..23 => Strike::ResetSubscribers,
        23 => Strike::Standing(Standing::Hold(direction), long),
        24 => Strike::Standing(Standing::Refuse, short),
        25..28 => Strike::Standing(Standing::Slow(ms(rng.u64(100..700))), long),
        _ => Strike::Random(seed, long),
    }
}

/// The faults that Redisson can stand.
fn draw_mildly(rng: &mut Rng, kills: bool) -> Strike {
    let long = ms(rng.u64(20..1_400));
    match rng.u32(..64) {
        0 if kills => Strike::Kill,
        0..16 => Strike::Freeze(long),
        _ => Strike::ResetSubscribers,
    }
}

async fn inflict(ground: &Ground, struck: Struck<'_>, strike: Strike, weather: &mut Watch) {
    let from = now_ns();
    let Struck { slot, link } = struck;
    let scope = Scope::Client(slot.worker().client);
    let (kind, tail) = match strike {
        Strike::Freeze(time) => return freeze(ground, slot, time, weather).await,
        Strike::Aimed(fault, pass, time) => {
            return aimed(ground, struck, fault, (pass, time), weather).await;
        }
        Strike::Random(seed, time) => return random(ground, struck, (seed, time), weather).await,
        Strike::Kill => {
            ground.panicked(&slot.replace().await);
            ("kill -9", 0)
        }
        Strike::HalfOpen => {
            link.deafened(from);
            link.proxy.half_open_all();
            ("half-open", ns(COMMAND_TIMEOUT))
        }
        Strike::ResetAll => {
            link.proxy.reset_all();
            ("reset all", 0)
        }
        Strike::ResetSubscribers => {
            link.proxy.reset_subscribers();
            ("reset subscriber", 0)
        }
        Strike::Standing(condition, time) => {
            let stood = stand(link, condition, from);
            weather.sleep_in_storm(time).await;
            link.proxy.heal();
            if matches!(condition, Standing::Refuse) {
                link.proxy.accept();
            }
            stood
        }
    };
    ground.fault(kind, from, tail, scope);
}

/// Sets up a fault that lasts for a while; returns its name and how long its effects last.
fn stand(link: &Link, condition: Standing, from: Nanos) -> (&'static str, Nanos) {
    match condition {
        Standing::BlackHole(direction) => {
            link.deafened(from);
            link.proxy.black_hole(direction);
            ("black hole", ns(COMMAND_TIMEOUT))
        }
        Standing::Hold(direction) => {
            link.proxy.hold(direction);
            ("partition", 0)
        }
        Standing::Refuse => {
            link.proxy.refuse();
            link.proxy.reset_all();
            ("refuse", 0)
        }
        Standing::Slow(round_trip) => {
            link.proxy.latency(round_trip);
            ("slow link", ns(round_trip))
        }
    }
}

async fn freeze(ground: &Ground, slot: &Slot, time: Duration, weather: &mut Watch) {
    let process = slot.worker();
    let from = now_ns();
    process.worker.freeze();
    weather.sleep_in_storm(time).await;
    process.worker.resume();
    ground.count("freeze");
    ground.recorder.push(Record::Frozen {
        from,
        until: now_ns(),
        client: process.client,
    });
}

/// Waits for the n-th script call.
async fn aimed(
    ground: &Ground,
    Struck { slot, link }: Struck<'_>,
    fault: Fault,
    (pass, time): (u64, Duration),
    weather: &mut Watch,
) {
    let from = now_ns();
    let scope = Scope::Client(slot.worker().client);
    let kind = fault.kind().replace('_', " ");
    let tail = match fault {
        Fault::DelayRequest(delay) | Fault::DelayReply(delay) => ns(delay),
        Fault::SwallowRequest | Fault::SwallowReply => {
            link.deafened(from);
            ns(COMMAND_TIMEOUT)
        }
        _ => 0,
    };
    let calls = Match::when(|command| command.name().starts_with("EVAL"));
    let aim = link.proxy.inject(fault).on(calls).nth(pass).arm();
    weather.sleep_in_storm(time).await;
    aim.cancel();
    if aim.fired() > 0 {
        ground.fault(&kind, from, tail, scope);
    }
}

async fn random(
    ground: &Ground,
    Struck { slot, link }: Struck<'_>,
    (seed, time): (u64, Duration),
    weather: &mut Watch,
) {
    let from = now_ns();
    let scope = Scope::Client(slot.worker().client);
    let before = link.proxy.fault_count();
    let odds = Odds::seeded(seed)
        .chance(0.01, Fault::ResetBefore)
        .chance(0.01, Fault::ResetAfter)
        .chance(0.02, Fault::DelayRequest(ms(15)))
        .chance(0.02, Fault::DelayReply(ms(15)));
    link.proxy.random(odds);
    weather.sleep_in_storm(time).await;
    link.proxy.calm();
    let struck = link.proxy.fault_count() - before;
    ground.disturbed("random", from, ms_ns(15), scope);
    for _ in 0..struck {
        ground.count("random reset or delay");
    }
}

/// The storm ends: closes connections that were made deaf; everything else has recovered already.
fn clear(ground: &Ground, Struck { slot, link }: Struck<'_>) {
    link.proxy.calm();
    link.proxy.heal();
    if let Some(from) = link.deaf_since.lock().take() {
        link.proxy.reset_all();
        let scope = Scope::Client(slot.worker().client);
        ground.disturbed("deaf connections", from, 0, scope);
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

const fn ms_ns(milliseconds: u64) -> Nanos {
    milliseconds * crate::history::MS
}
