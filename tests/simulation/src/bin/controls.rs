//! Switches off one rule after the other, and looks for a seed under which the simulation notices.
//!
//! Each control replaces a text of the sources, which must stand there once, in a copy of the tree below the build
//! directory; builds the simulation; and runs seeds until one fails. `controls [NAME...]` runs all, or these.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

/// How many seeds must find a control.
const SEEDS: u64 = 2_000;

/// A rule, and the text without which it is off.
struct Control {
    name: &'static str,
    file: &'static str,
    text: &'static str,
    instead: &'static str,
    /// The option of `simulate` for other seeds: of semaphores, or on a server with a replica.
    world: Option<&'static str>,
}

const fn control(
    name: &'static str,
    file: &'static str,
    text: &'static str,
    instead: &'static str,
) -> Control {
    Control {
        name,
        file,
        text,
        instead,
        world: None,
    }
}

const fn of_permits(
    name: &'static str,
    file: &'static str,
    text: &'static str,
    instead: &'static str,
) -> Control {
    Control {
        world: Some("--permits"),
        ..control(name, file, text, instead)
    }
}

const CONTROLS: [Control; 33] = [
    Control {
        world: Some("--replica"),
        ..control(
            "what the replica has not acknowledged is not granted",
            "src/backend/command/acknowledge.rs",
            "if got >= self.acks.wanted {\n            return Ok(());",
            "if true {\n            return Ok(());",
        )
    },
    control(
        "a busy lock is not granted",
        "lua/lock/acquire.lua",
        "if holder[1] ~= hold_id then return ttl_ms end",
        "",
    ),
    control(
        "a release is published",
        "lua/lock/release.lua",
        "local heard = redis.pcall(ARGV[4] or 'PUBLISH', channel, '0')",
        "local heard = 0",
    ),
    control(
        "a release gives back its own hold only",
        "lua/simple/release.lua",
        "if holder ~= hold_id then return -5 end",
        "",
    ),
    control(
        "a hold has a lease",
        "lua/lock/acquire.lua",
        "local expires = redis.pcall('PEXPIRE', lock, ttl_ms >= lease_ms and string.format('%.0f', ttl_ms) or ARGV[2])",
        "local expires = 1",
    ),
    control(
        "readers and a writer exclude each other",
        "lua/rw/read_acquire.lua",
        "if mode == 'write' then return ttl_ms end",
        "if mode == 'write' then redis.call('HSET', lock, 'mode', 'read') end",
    ),
    control(
        "a writer waits for readers",
        "lua/rw/write_acquire.lua",
        "  return ttl_ms\nend\n\nif ttl_ms == -2",
        "end\n\nif ttl_ms == -2",
    ),
    control(
        "each hold has a greater token",
        "lua/fenced/acquire.lua",
        "token = math.max(token + 1, now[1] * 1000000 + now[2])",
        "token = math.max(token, 1)",
    ),
    control(
        "places are given in the order of arrival",
        "lua/fair/enqueue.lua",
        "call('RPUSH', queue, id)",
        "call('LPUSH', queue, id)",
    ),
    control(
        "a renewal prolongs the lease",
        "lua/lock/verify.lua",
        "redis.call('PEXPIRE', lock, string.format('%.0f', math.max(redis.call('PTTL', lock), lease_ms)))",
        "",
    ),
    control(
        "validity counts from the send",
        "src/engine/gate/answers.rs",
        "let term = hold.lease.term(grant.sent_at);",
        "let term = hold.lease.term(now);",
    ),
    control(
        "a hold whose lease is over is lost",
        "src/engine/hold/state.rs",
        "if self.phase == Phase::Held && now >= self.valid_until() {",
        "if self.phase == Phase::Held && now >= self.valid_until() + Duration::from_secs(60) {",
    ),
    control(
        "the watchdog renews every third of the lease",
        "src/engine/hold/state.rs",
        "if horizon >= renewal {",
        "if horizon >= last_moment {",
    ),
    control(
        "waiters poll when nothing is heard",
        "src/engine/keeper/job/mod.rs",
        "self.policy.next_try(now, known, listening, listeners)",
        "{\n            let _ = self.policy.next_try(now, known, listening, listeners);\n            Moment::NEVER\n        }",
    ),
    control(
        "waiters come in the order of arrival",
        "src/engine/gate/ticket.rs",
        "if self.waiters.insert(number, waiter).is_none() {",
        "if self.waiters.insert(u64::MAX - number, waiter).is_none() {",
    ),
    control(
        "a release is repeated until it is answered",
        "src/engine/keeper/reaper.rs",
        "let over = now >= give_up;",
        "let over = true;",
    ),
    control(
        "what was tried for nobody is given back",
        "src/engine/gate/answers.rs",
        "            return self.unwanted();\n        }\n        let in_time",
        "            return Settled::Unwanted;\n        }\n        let in_time",
    ),
    control(
        "a confirmed subscription leads to a try",
        "src/engine/keeper/job/mod.rs",
        "self.with(|gate| gate.set_listening(true));\n                    Event::Due",
        "self.with(|gate| gate.set_listening(true));\n                    Event::Nothing",
    ),
    control(
        "a waiter of a fair lock vouches for its place",
        "lua/fair/vouch.lua",
        "VOUCH, DAY = math.floor(now_us / 1000), math.min(20000, fair_wait), 1, 15000, 86400000",
        "VOUCH, DAY = math.floor(now_us / 1000), math.min(20000, fair_wait), 1, 15, 86400000",
    ),
    control(
        "a wait ends at its deadline",
        "src/engine/gate/ticket.rs",
        "index.ends.extend(waiter.end().map(|end| (end, number)));",
        "",
    ),
    control(
        "the count of a simple lock is checked",
        "lua/simple/release.lua",
        "if count ~= '0' then return -2 end",
        "",
    ),
    control(
        "a script that the server forgot is sent again",
        "src/backend/command/send.rs",
        "pub(super) fn is_unknown_script(result: &RedisResult<Value>) -> bool {",
        "pub(super) fn is_unknown_script(result: &RedisResult<Value>) -> bool {\n    return false;",
    ),
    control(
        "a lost hold gives nothing back",
        "lua/lock/release.lua",
        "local held = redis.pcall(count == '0' and 'HDEL' or 'HEXISTS', lock, hold_id)",
        "local held = count == '0' and redis.call('DEL', lock) + 1 or redis.pcall('HEXISTS', lock, hold_id)",
    ),
    control(
        "a reader's own timeout is kept",
        "lua/rw/read_acquire.lua",
        "local done = redis.pcall('SET', timeout, '1', 'PX', keep_ms)",
        "local done = redis.pcall('SET', timeout, '1')",
    ),
    control(
        "an end releases what is held",
        "src/engine/keeper/thread.rs",
        "let at_rest = tasks.releases.is_empty() && !keeper.core.is_in_flight();",
        "let at_rest = true;",
    ),
    of_permits(
        "no more permits than there are",
        "lua/permits/acquire.lua",
        "if #lacks > 0 and left - #lacks < reserve then break end",
        "if #lacks > 0 and left - #lacks < reserve - 1 then break end",
    ),
    of_permits(
        "a permit that is taken has a record",
        "lua/permits/acquire.lua",
        "local recorded = redis.pcall('ZADD', taken, unpack(scores))",
        "local recorded = 0",
    ),
    of_permits(
        "permits of dead holders return",
        "lua/permits/acquire.lua",
        "  if not first[over[i]] then",
        "  if false then",
    ),
    of_permits(
        "a release that runs twice gives back once",
        "lua/permits/release.lua",
        "if #mine == 0 then return kept == count and -2 or -5 end\nlocal left = redis.pcall('INCRBY', free, #mine)",
        "local left = redis.pcall('INCRBY', free, count)",
    ),
    of_permits(
        "a release of permits is published",
        "lua/permits/release.lua",
        "heard = redis.pcall(ARGV[4 + count] or 'PUBLISH', channel, string.format('%.0f', left))",
        "heard = 0",
    ),
    of_permits(
        "a renewal prolongs the record of a permit",
        "lua/permits/renew.lua",
        "redis.call('ZADD', taken, 'XX', unpack(scores))",
        "",
    ),
    of_permits(
        "requests of a client are granted in the order of their calls",
        "src/engine/gate/ticket.rs",
        "if self.waiters.insert(number, waiter).is_none() {",
        "if self.waiters.insert(u64::MAX - number, waiter).is_none() {",
    ),
    of_permits(
        "an older request of another client is left what it needs",
        "lua/permits/acquire.lua",
        "reserve = math.max(reserve, n)",
        "reserve = 0",
    ),
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let wanted: Vec<_> = std::env::args().skip(1).collect();
    let chosen = CONTROLS.iter().filter(|control| {
        wanted.is_empty()
            || wanted
                .iter()
                .any(|name| control.name.contains(name.as_str()))
    });
    let mut missed = 0;
    for control in chosen {
        let begun = Instant::now();
        match control.run() {
            Ok(Some(found)) => {
                println!("{}: {found}, {} s", control.name, begun.elapsed().as_secs());
            }
            Ok(None) => {
                missed += 1;
                println!("{}: NOT FOUND in {SEEDS} seeds", control.name);
            }
            Err(error) => {
                missed += 1;
                println!("{}: {error}", control.name);
            }
        }
    }
    ExitCode::from(u8::from(missed > 0))
}

impl Control {
    /// The first seed that finds it, and how.
    fn run(&self) -> Result<Option<String>> {
        let tree = copy_of_the_tree()?;
        let file = tree.join(self.file);
        let sources = fs::read_to_string(&file)?;
        let count = sources.matches(self.text).count();
        if count != 1 {
            return Err(format!("its text stands {count} times in {}", self.file).into());
        }
        fs::write(&file, sources.replace(self.text, self.instead))?;
        let found = look(&tree, self.world);
        fs::write(&file, sources)?;
        found
    }
}

/// Builds the simulation in this tree, and runs seeds until one fails.
fn look(tree: &Path, world: Option<&str>) -> Result<Option<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "watchlock-simulation",
        ])
        .args(["--bin", "simulate"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", tree.with_file_name("build"))
        .env("RUSTFLAGS", "--cfg tokio_unstable --allow warnings")
        // Only one crate changes from control to control.
        .env("CARGO_INCREMENTAL", "1")
        .status()?;
    if !built.success() {
        return Err("it does not build".into());
    }
    let ran = Command::new(tree.with_file_name("build").join("release/simulate"))
        .args(["--seeds", &format!("0..{SEEDS}"), "--until-failed"])
        .args(world)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let mut lines = said.lines();
    let seed = lines.find(|line| line.starts_with("seed "));
    let how = lines.next().unwrap_or("it ended").trim();
    let seed = seed.and_then(|line| line.split(':').next());
    Ok(match seed {
        Some(seed) => Some(format!("{seed}, {how}")),
        // It was ended, because a task was always ready.
        None if !ran.status.success() => {
            Some(String::from_utf8_lossy(&ran.stderr).trim().to_owned())
        }
        None => None,
    })
}

/// Copies what git knows of the tree, as it is now, to a folder beside the build directory of the controls.
fn copy_of_the_tree() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let tree = root.join(target).join("controls/tree");
    let files = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(&root)
        .output()?;
    for name in String::from_utf8(files.stdout)?.split_terminator('\0') {
        let (from, to) = (root.join(name), tree.join(name));
        let Ok(wanted) = fs::read(&from) else {
            continue;
        };
        // Cargo builds again what has changed, by its time.
        if fs::read(&to).is_ok_and(|there| there == wanted) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, wanted)?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_each_control_stands_once_in_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for control in &CONTROLS {
            let sources = fs::read_to_string(root.join(control.file)).expect(control.file);
            let count = sources.matches(control.text).count();
            assert_eq!(count, 1, "{}: {}", control.name, control.file);
        }
    }
}
