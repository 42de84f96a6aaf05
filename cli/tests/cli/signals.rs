//! Signals: while it waits, and for the command.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use watchlock_support::eventually;
use watchlock_support::process::is_alive;
use watchlock_support::server::RedisServer;

use crate::job::{HEEDING_SIGNALS, Job, PATIENCE, UNTIL_EOF, at, gone, said};

#[tokio::test]
async fn a_signal_ends_the_wait_and_leaves_nothing() {
    let server = RedisServer::start();
    for kind in ["plain", "fair", "write"] {
        let mut holder = Job::start(at(&server, &["run", "--kind", kind, kind]).args(UNTIL_EOF));
        assert_eq!(holder.line(), "ready");
        for (signal, number) in [
            ("TERM", 15),
            ("INT", 2),
            ("HUP", 1),
            ("QUIT", 3),
            ("USR1", 10),
        ] {
            let mut waiter = Job::start(&mut at(
                &server,
                &["run", "--kind", kind, kind, "echo", "ran"],
            ));
            eventually("it waits", PATIENCE, async || {
                !server.channels().await.is_empty()
            })
            .await;
            waiter.signal("WINCH");
            waiter.signal(signal);
            assert_eq!(
                waiter.end(),
                (128 + number, String::new()),
                "{kind} {signal}"
            );
            eventually("nothing is left", PATIENCE, async || {
                // The holder's lock and label are.
                let mut keys = server.keys().await;
                keys.retain(|key| !key.starts_with("watchlock_client:"));
                let labels = server.keys().await.len() - keys.len();
                (keys, labels) == (vec![kind.to_owned()], 1) && server.channels().await.is_empty()
            })
            .await;
        }
        holder.close();
        assert_eq!(holder.end().0, 0);
    }
}

#[test]
fn a_signal_ends_the_attempt_to_connect() {
    let server = RedisServer::start();
    server.freeze();
    let mut job = Job::start(&mut at(&server, &["run", "x", "true"]));
    // It catches signals before it connects.
    watchlock_support::wait_until("it catches signals", PATIENCE, || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", job.pid()));
        let status = status.unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap_or(0) >> 14 & 1 == 1)
    });
    job.signal("TERM");
    assert_eq!(job.end(), (128 + 15, String::new()));
    server.resume();
}

#[tokio::test]
async fn signals_are_passed_to_the_command_and_its_children() {
    let server = RedisServer::start();
    for signal in ["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"] {
        // Not in the background, where shells ignore INT and QUIT.
        let script = format!(
            "trap 'echo outer; exit 5' {signal}; \
             sh -c 'trap \"echo inner; exit\" {signal}; echo inside; while kill -0 $PPID 2>/dev/null; do sleep 0.01; done'; \
             while :; do sleep 0.01; done"
        );
        let mut job = Job::start(&mut at(&server, &["run", "x", "sh", "-c", &script]));
        assert_eq!(job.line(), "inside");
        job.signal(signal);
        assert_eq!([job.line(), job.line()], ["inner", "outer"], "{signal}");
        assert_eq!(job.end().0, 5, "{signal}");
        assert!(!server.exists("x").await, "{signal}");
    }
}

#[test]
fn signals_that_are_ignored_stay_ignored() {
    let server = RedisServer::start();
    let program = env!("CARGO_BIN_EXE_watchlock");
    let script =
        format!(r#"trap "" HUP; exec "{program}" run x sh -c 'echo ready; cat >/dev/null'"#);
    let mut command = Command::new("setsid");
    command
        .args(["sh", "-c", &script])
        .env("WATCHLOCK_URL", server.url());
    let mut job = Job::start(&mut command);
    assert_eq!(job.line(), "ready");
    job.signal("HUP");
    job.close();
    assert_eq!(job.end(), (0, String::new()));
}

#[test]
fn the_command_does_not_outlive_run() {
    let server = RedisServer::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let run = ["run", "--watchdog", "3", "x", "sh", "-c", script];
    let mut job = Job::start(&mut at(&server, &run));
    let command = job.pid_line();
    assert!(is_alive(command));
    job.signal("KILL");
    gone(command);
    assert_eq!(job.end().0, 1000 + 9);
    // The lock is free after its lease.
    assert_eq!(
        said(&mut at(&server, &["run", "-w", "30", "x", "true"])).status,
        0
    );
}

#[test]
fn a_shim_without_its_parent_executes_nothing() {
    let program = env!("CARGO_BIN_EXE_watchlock");
    let orphan = said(Command::new(program).args(["__execute-under", "1", "echo", "ran"]));
    assert_eq!(orphan.out, "");
    assert_ne!(orphan.status, 0);
}

/// A terminal: what is typed into it, and the side that a program gets.
fn terminal() -> (File, OwnedFd) {
    let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&main).expect("a terminal");
    unlockpt(&main).expect("a terminal");
    let name = ptsname(&main, Vec::new()).expect("a terminal");
    let name = name.into_string().expect("a path");
    let side = File::options()
        .read(true)
        .write(true)
        .open(name)
        .expect("a terminal");
    (main.into(), side.into())
}

#[test]
fn in_a_terminal_the_command_stays_in_the_group_and_gets_each_signal_once() {
    let server = RedisServer::start();
    let (mut keys, side) = terminal();
    let program = env!("CARGO_BIN_EXE_watchlock");
    // The group of the command is that of `run`, which leads it; each INT adds a letter.
    let script = "n=; trap 'n=i$n' INT; trap 'echo got $n; exit 6' TERM; \
                  read -r p c s pp group rest </proc/$$/stat; echo group $group of $PPID; while :; do sleep 0.01; done";
    let mut job = Command::new("setsid")
        .arg("--ctty")
        .args(HEEDING_SIGNALS)
        .args([program, "run", "x", "sh", "-c", script])
        .env("WATCHLOCK_URL", server.url())
        .stdin(Stdio::from(side.try_clone().expect("a copy")))
        .stdout(Stdio::from(side.try_clone().expect("a copy")))
        .stderr(Stdio::from(side))
        .spawn()
        .expect("it starts");
    // What it shows, read by a thread: a test that waits in vain has to end.
    let (sender, parts) = channel();
    let mut screen = keys.try_clone().expect("a copy");
    std::thread::spawn(move || {
        let mut part = [0; 256];
        while let Ok(size) = screen.read(&mut part) {
            let _ = sender.send(String::from_utf8_lossy(&part[..size]).into_owned());
        }
    });
    let mut shown = String::new();
    let mut read_until = |text: &str| {
        while !shown.contains(text) {
            let part = parts.recv_timeout(PATIENCE);
            shown.push_str(&part.unwrap_or_else(|_| panic!("no {text:?} in {shown:?}")));
        }
        shown.clone()
    };
    let run = job.id();
    let group = read_until("\n");
    let words: Vec<_> = group.split_whitespace().collect();
    assert_eq!(words, ["group", &run.to_string(), "of", &run.to_string()]);
    keys.write_all(b"\x03").expect("the terminal is open");
    read_until("^C");
    // What nobody but `run` gets is passed on.
    crate::job::signal(run, "TERM");
    let all = read_until("got i\r\n");
    let status = job.wait().expect("it ends");
    assert_eq!(status.code(), Some(6), "{all}");
}
