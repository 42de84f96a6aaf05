//! What happens to one worker and its link, storm after storm.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;

use super::fleet::Slot;
use super::ground::Ground;
use super::weather::Watch;
use super::{COMMAND_TIMEOUT, Kind};
use crate::checker::ns;
use crate::history::{Nanos, Record, Scope};
use crate::now_ns;
use crate::proxy::{Direction, Fault, Match, Odds};

/// The round trip of a link that is far away.
const FAR: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
enum Strike {
    Kill,
    Freeze(Duration),
    /// A fault of a command to come: how many of them it lets pass, how long it lies in wait.
    Aimed(Fault, u64, Duration),
    HalfOpen,
    ResetAll,
    ResetSubscribers,
    Standing(Standing, Duration),
    /// Many small faults by chance.
    Random(u64, Duration),
}

/// What lasts for a while.
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
    slot: usize,
    seed: u64,
    kills: bool,
    mut weather: Watch,
) {
    let mut rng = Rng::with_seed(seed ^ (slot as u64 + 1) << 32);
    let struck = &ground.slots[slot];
    while weather.storm().await {
        // Not a fault: a wake-up that is only missed when links are slow is missed all the same.
        let near = rng.u32(..4) > 0;
        let round_trip = if near { Duration::ZERO } else { FAR };
        struck.proxy.latency(round_trip);
        struck.far.store(!near, Ordering::Relaxed);
        while weather.is_storm() {
            let pause = ms(rng.u64(10..250));
            let strike = match struck.kind {
                Kind::Java => draw_mildly(&mut rng, kills),
                Kind::Rust | Kind::Plain(_) => draw(&mut rng, kills),
            };
            weather.sleep_in_storm(pause).await;
            inflict(&ground, struck, strike, &mut weather).await;
            struck.proxy.latency(round_trip);
        }
        clear(&ground, struck);
    }
    struck.proxy.calm();
}

/// All chance is taken here, so that what is drawn does not depend on what happens.
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

/// What Redisson can stand.
fn draw_mildly(rng: &mut Rng, kills: bool) -> Strike {
    let long = ms(rng.u64(20..1_400));
    match rng.u32(..64) {
        0 if kills => Strike::Kill,
        0..16 => Strike::Freeze(long),
        _ => Strike::ResetSubscribers,
    }
}

async fn inflict(ground: &Ground, slot: &Slot, strike: Strike, weather: &mut Watch) {
    let from = now_ns();
    let scope = Scope::Client(slot.worker().client);
    let (kind, tail) = match strike {
        Strike::Freeze(time) => return freeze(ground, slot, time, weather).await,
        Strike::Aimed(fault, pass, time) => {
            return aimed(ground, slot, fault, (pass, time), weather).await;
        }
        Strike::Random(seed, time) => return random(ground, slot, (seed, time), weather).await,
        Strike::Kill => {
            ground.panicked(&slot.replace().await);
            ("kill -9", 0)
        }
        Strike::HalfOpen => {
            slot.deafened(from);
            slot.proxy.half_open_all();
            ("half-open", ns(COMMAND_TIMEOUT))
        }
        Strike::ResetAll => {
            slot.proxy.reset_all();
            ("reset all", 0)
        }
        Strike::ResetSubscribers => {
            slot.proxy.reset_subscribers();
            ("reset subscriber", 0)
        }
        Strike::Standing(condition, time) => {
            let told = stand(slot, condition, from);
            weather.sleep_in_storm(time).await;
            slot.proxy.heal();
            if matches!(condition, Standing::Refuse) {
                slot.proxy.accept();
            }
            told
        }
    };
    ground.fault(kind, from, tail, scope);
}

/// Sets up what lasts for a while; says its name and how long it is felt afterwards.
fn stand(slot: &Slot, condition: Standing, from: Nanos) -> (&'static str, Nanos) {
    match condition {
        Standing::BlackHole(direction) => {
            slot.deafened(from);
            slot.proxy.black_hole(direction);
            ("black hole", ns(COMMAND_TIMEOUT))
        }
        Standing::Hold(direction) => {
            slot.proxy.hold(direction);
            ("partition", 0)
        }
        Standing::Refuse => {
            slot.proxy.refuse();
            slot.proxy.reset_all();
            ("refuse", 0)
        }
        Standing::Slow(round_trip) => {
            slot.proxy.latency(round_trip);
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

/// Lies in wait for the n-th script call.
async fn aimed(
    ground: &Ground,
    slot: &Slot,
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
            slot.deafened(from);
            ns(COMMAND_TIMEOUT)
        }
        _ => 0,
    };
    let calls = Match::when(|command| command.name().starts_with("EVAL"));
    let aim = slot.proxy.inject(fault).on(calls).nth(pass).arm();
    weather.sleep_in_storm(time).await;
    aim.cancel();
    if aim.fired() > 0 {
        ground.fault(&kind, from, tail, scope);
    }
}

async fn random(ground: &Ground, slot: &Slot, (seed, time): (u64, Duration), weather: &mut Watch) {
    let from = now_ns();
    let scope = Scope::Client(slot.worker().client);
    let before = slot.proxy.fault_count();
    let odds = Odds::seeded(seed)
        .chance(0.01, Fault::ResetBefore)
        .chance(0.01, Fault::ResetAfter)
        .chance(0.02, Fault::DelayRequest(ms(15)))
        .chance(0.02, Fault::DelayReply(ms(15)));
    slot.proxy.random(odds);
    weather.sleep_in_storm(time).await;
    slot.proxy.calm();
    let struck = slot.proxy.fault_count() - before;
    ground.disturbed("random", from, ms_ns(15), scope);
    for _ in 0..struck {
        ground.count("random reset or delay");
    }
}

/// The sky clears: connections that were made deaf are closed, everything else is back already.
fn clear(ground: &Ground, slot: &Slot) {
    slot.proxy.calm();
    slot.proxy.heal();
    if let Some(from) = slot.deaf_since.lock().take() {
        slot.proxy.reset_all();
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
