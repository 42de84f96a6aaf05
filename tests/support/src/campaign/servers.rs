//! The faults of the server, storm after storm.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use super::ground::Ground;
use super::weather::Watch;
use crate::history::{Record, Scope};
use crate::now_ns;
use crate::server::RedisServer;

#[derive(Clone, Debug)]
pub(super) enum Strike {
    Freeze(Duration),
    Crash(Duration),
    OutOfMemory(Duration),
    Pause(Duration),
    DeleteAll,
    /// One command, and its name for people.
    Ask(&'static str, &'static [&'static str]),
}

pub(super) const CUT_COMMANDS: Strike =
    Strike::Ask("cut commands", &["CLIENT", "KILL", "TYPE", "normal"]);
pub(super) const CUT_SUBSCRIBERS: Strike =
    Strike::Ask("cut subscribers", &["CLIENT", "KILL", "TYPE", "pubsub"]);
pub(super) const FLUSH_SCRIPTS: Strike = Strike::Ask("flush scripts", &["SCRIPT", "FLUSH"]);

/// How often a deletion is repeated at most, and after which pause: for longer than a server is ever away.
const TRIES: u32 = 2_000;
const AGAIN: Duration = Duration::from_millis(5);

pub(super) async fn run(ground: Arc<Ground>, seed: u64, mut weather: Watch) {
    let mut rng = Rng::with_seed(seed);
    while weather.storm().await {
        while weather.is_storm() {
            let pause = Duration::from_millis(rng.u64(20..500));
            let mut strike = draw(&mut rng);
            if ground.expiries.is_some() {
                strike = FLUSH_SCRIPTS;
            }
            weather.sleep_in_storm(pause).await;
            inflict(&ground, 0, strike, &mut weather).await;
        }
    }
}

/// An operator that deletes locks, with and without faults; the server may be away just then.
pub(super) async fn operate(ground: Arc<Ground>, seed: u64, names: u32, weather: Watch) {
    let mut rng = Rng::with_seed(!seed);
    while !weather.is_over() {
        let pause = Duration::from_millis(rng.u64(100..900));
        let name = format!("chaos:{}", rng.u32(..names));
        tokio::time::sleep(pause).await;
        delete(&ground, &name).await;
    }
}

/// Deletes a lock. The server may be away just then, so this repeats the deletion until it is answered: then whoever had the
/// lock before has it no more.
pub(super) async fn delete(ground: &Ground, name: &str) {
    let (from, mut may_have_run) = (now_ns(), false);
    for _ in 0..TRIES {
        match ground.server().try_cmd(&["DEL", name]).await {
            Ok(answer) => {
                if may_have_run || answer != redis::Value::Int(0) {
                    deleted(ground, from, Some(name.to_owned()));
                }
                return;
            }
            Err(_) => may_have_run = true,
        }
        tokio::time::sleep(AGAIN).await;
    }
    panic!("{name} cannot be deleted");
}

/// Wrong clients do these things to the server, again and again.
pub(super) async fn meddle(ground: Arc<Ground>, meddling: Vec<Vec<String>>, weather: Watch) {
    while !weather.is_over() && !meddling.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for command in &meddling {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            // The server may be away.
            let _ = ground.server().try_cmd(&words).await;
        }
    }
}

/// Draws everything here, so that the draws do not depend on what happens.
fn draw(rng: &mut Rng) -> Strike {
    let time = Duration::from_millis(rng.u64(10..600));
    let long = Duration::from_millis(rng.u64(600..1_600));
    match rng.u32(..22) {
        0..3 => Strike::Freeze(time),
        3 => Strike::Freeze(long),
        4..6 => Strike::Crash(time),
        6..9 => CUT_COMMANDS,
        9..12 => CUT_SUBSCRIBERS,
        12..17 => FLUSH_SCRIPTS,
        17..19 => Strike::OutOfMemory(time),
        19..21 => Strike::Pause(time),
        _ => Strike::DeleteAll,
    }
}

/// Strikes the server at a place.
pub(super) async fn inflict(ground: &Ground, place: usize, strike: Strike, weather: &mut Watch) {
    let from = now_ns();
    let server = &ground.servers[place];
    let kind = match strike {
        Strike::DeleteAll => {
            ask(server, &["FLUSHALL"]).await;
            return deleted(ground, from, None);
        }
        Strike::Freeze(time) => {
            server.freeze();
            weather.sleep_in_storm(time).await;
            server.resume();
            "freeze server"
        }
        Strike::Crash(time) => {
            server.kill();
            weather.sleep_in_storm(time).await;
            server.launch();
            server.ready().await;
            "crash server"
        }
        Strike::OutOfMemory(time) => {
            ask(server, &["CONFIG", "SET", "maxmemory", "1"]).await;
            weather.sleep_in_storm(time).await;
            ask(server, &["CONFIG", "SET", "maxmemory", "0"]).await;
            "out of memory"
        }
        Strike::Pause(time) => {
            let time_ms = time.as_millis().to_string();
            ask(server, &["CLIENT", "PAUSE", &time_ms]).await;
            // The answer to the next question comes after the pause.
            ask(server, &["PING"]).await;
            "pause clients"
        }
        Strike::Ask(kind, command) => {
            ask(server, command).await;
            kind
        }
    };
    ground.fault(kind, from, 0, Scope::All);
}

/// Disturbs nobody: connections and commands are as before.
pub(super) fn deleted(ground: &Ground, from: u64, name: Option<String>) {
    ground.count(name.as_ref().map_or("delete all", |_| "delete a lock"));
    ground.recorder.push(Record::Deleted {
        from,
        until: now_ns(),
        name,
    });
}

/// The server answers: all its faults come from here, one after the other.
async fn ask(server: &RedisServer, command: &[&str]) {
    let answer = server.try_cmd(command).await;
    answer.unwrap_or_else(|error| panic!("{command:?}: {error}"));
}
