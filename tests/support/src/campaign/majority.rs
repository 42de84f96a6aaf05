//! The faults of the servers of a quorum, storm after storm.
//!
//! The servers form two parts, and each part has faults of its own, on one of its servers at a time: so mostly there is
//! a majority, and holds and acquires must not notice. Now and then the majority itself fails.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use super::ground::Ground;
use super::servers::{self, Strike};
use super::weather::Watch;
use crate::checker::ns;
use crate::history::Scope;
use crate::now_ns;

/// The parts, by the indices of their servers.
pub(super) const PARTS: [Range<usize>; 2] = [0..3, 3..5];

#[derive(Clone, Debug)]
enum Blow {
    /// A fault of one server.
    One(Strike),
    /// All servers of the part stand still at once.
    FreezeAll(Duration),
    /// All servers of the part crash at once.
    CrashAll(Duration),
}

pub(super) async fn run(ground: Arc<Ground>, part: Range<usize>, seed: u64, mut weather: Watch) {
    let mut rng = Rng::with_seed(seed ^ (part.start as u64 + 7) << 24);
    while weather.storm().await {
        while weather.is_storm() {
            let pause = Duration::from_millis(rng.u64(20..500));
            let (place, blow) = (rng.usize(part.clone()), draw(&mut rng));
            weather.sleep_in_storm(pause).await;
            match blow {
                Blow::One(strike) => one(&ground, place, strike, &mut weather).await,
                Blow::FreezeAll(time) => freeze(&ground, part.clone(), time, &mut weather).await,
                Blow::CrashAll(time) => crash(&ground, part.clone(), time, &mut weather).await,
            }
        }
    }
}

/// Draws everything here, so that the draws do not depend on what happens.
fn draw(rng: &mut Rng) -> Blow {
    let time = Duration::from_millis(rng.u64(10..600));
    let long = Duration::from_millis(rng.u64(600..1_600));
    let one = match rng.u32(..24) {
        0..6 => Strike::Freeze(time),
        6..8 => Strike::Freeze(long),
        8..13 => Strike::Crash(time),
        13..15 => servers::CUT_COMMANDS,
        15..17 => servers::CUT_SUBSCRIBERS,
        17..19 => servers::FLUSH_SCRIPTS,
        19 => Strike::OutOfMemory(time),
        20..22 => Strike::Pause(time),
        22 => return Blow::FreezeAll(long),
        _ => return Blow::CrashAll(time),
    };
    Blow::One(one)
}

async fn one(ground: &Ground, place: usize, strike: Strike, weather: &mut Watch) {
    let crash = matches!(strike, Strike::Crash(_));
    servers::inflict(ground, place, strike, weather).await;
    if crash {
        // Without a vote it counts as away, and of each part one server is away at a time.
        sleep(ground.layout.restart_delay()).await;
    }
}

async fn freeze(ground: &Ground, part: Range<usize>, time: Duration, weather: &mut Watch) {
    let from = now_ns();
    for server in &ground.servers[part.clone()] {
        server.freeze();
    }
    weather.sleep_in_storm(time).await;
    for server in &ground.servers[part] {
        server.resume();
    }
    ground.fault("freeze servers", from, 0, Scope::All);
}

async fn crash(ground: &Ground, part: Range<usize>, time: Duration, weather: &mut Watch) {
    let from = now_ns();
    for server in &ground.servers[part.clone()] {
        server.kill();
    }
    weather.sleep_in_storm(time).await;
    for server in &ground.servers[part.clone()] {
        server.launch();
    }
    for server in &ground.servers[part] {
        server.ready().await;
    }
    let delay = ground.layout.restart_delay();
    ground.fault("crash servers", from, ns(delay), Scope::All);
    sleep(delay).await;
}
