//! What goes wrong while the command runs. It ends before anybody else can take the lock.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use watchlock_support::process::is_alive;
use watchlock_support::proxy::{Direction, Fault, Match, Proxy};
use watchlock_support::server::RedisServer;
use watchlock_support::{StallWatch, eventually, wait_until};

use crate::job::{Job, PATIENCE, UNTIL_EOF, at, gone, said, watchlock};

const ACQUIRE: &str = include_str!("../../../lua/lock/acquire.lua");

fn via(proxy: &Proxy, arguments: &[&str]) -> Command {
    let mut command = watchlock(arguments);
    command.env("WATCHLOCK_URL", proxy.url());
    command
}

#[tokio::test]
async fn a_lost_lock_ends_the_command_and_is_75_whatever_it_returns() {
    let server = RedisServer::start();
    for script in [
        "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done",
        "echo ready; exec sleep 1000",
    ] {
        let run = ["run", "--watchdog", "3s", "x", "sh", "-c", script];
        let mut job = Job::start(&mut at(&server, &run));
        assert_eq!(job.line(), "ready");
        server.cmd(&["DEL", "x"]).await;
        let (status, err) = job.end();
        assert_eq!(status, 75, "{err}");
        let text = "watchlock: the lock \"x\" was lost, so the command is ended: Redis does not have it any more\n";
        // The shell says more.
        assert!(err.contains(text), "{err}");
    }
}

#[tokio::test]
async fn a_loss_that_only_the_release_finds_is_75() {
    let server = RedisServer::start();
    let mut job = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    server.cmd(&["DEL", "x"]).await;
    job.close();
    let (status, err) = job.end();
    assert_eq!(status, 75, "{err}");
    assert!(err.contains("the hold was lost"), "{err}");
}

#[tokio::test]
async fn a_frozen_server_ends_the_command_while_the_lock_is_still_there() {
    let server = RedisServer::start();
    let script = "trap 'echo TERM; exit 0' TERM; echo $$; while :; do sleep 0.01; done";
    let run = [
        "run",
        "--watchdog",
        "4",
        "--grace",
        "2",
        "x",
        "sh",
        "-c",
        script,
    ];
    let mut job = Job::start(&mut at(&server, &run));
    let command = job.pid_line();
    // A later end would be one that was renewed.
    let ends: u64 = server.query(&["PEXPIRETIME", "x"]).await;
    server.freeze();
    assert_eq!(job.line(), "TERM");
    gone(command);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock").as_millis();
    // The server may have the release before the next question, so it is not asked.
    assert!(now < ends.into(), "nobody could take it before");
    server.resume();
    let (status, err) = job.end();
    assert_eq!(status, 75);
    assert!(
        err.contains("watchlock: the lock \"x\" cannot be renewed, so the command is ended\n"),
        "{err}"
    );
    assert!(!server.exists("x").await, "it was given back");
}

/// When the command lived last, and until when the lock was there, in ms since 1970.
async fn lives_behind_a_cut_link() -> (u64, u64) {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    // It reports when it lived last; so does its child.
    let script = "trap '' TERM; echo $$; sh -c 'echo $$; while date +t%s%3N; do :; done' & \
                  while date +t%s%3N; do :; done";
    let run = ["run", "--watchdog", "2", "x", "sh", "-c", script];
    let mut job = Job::start(&mut via(&proxy, &run));
    let pids = [job.pid_line(), job.pid_line()];
    proxy.black_hole(Direction::Both);
    let mut last = 0;
    let mut expires = 0;
    while pids.iter().any(|pid| is_alive(*pid)) {
        // No renewal arrives any more, so the last answer is the end of the lock.
        let at: i64 = server.query(&["PEXPIRETIME", "x"]).await;
        expires = expires.max(u64::try_from(at).unwrap_or(0));
    }
    let (status, err) = job.end();
    assert_eq!(status, 75, "{err}");
    while let Some(line) = job.next_line() {
        last = last.max(line.trim_start_matches('t').parse().unwrap_or(0));
    }
    assert!(last > 0 && expires > 0);
    (last, expires)
}

/// While the machine stands still nobody is killed: a command that lived too long by less than that says nothing.
#[tokio::test]
async fn behind_a_cut_link_what_ignores_term_is_killed_before_the_lock_expires() {
    for _ in 0..10 {
        let watch = StallWatch::start();
        let (last, expires) = lives_behind_a_cut_link().await;
        let stall = watch.longest();
        if last < expires {
            return;
        }
        let by = Duration::from_millis(last - expires);
        assert!(by < stall, "lived for {by:?} too long, stall {stall:?}");
    }
    panic!("the machine stood still each time");
}

#[tokio::test]
async fn a_loss_reaches_the_children_of_the_command() {
    let server = RedisServer::start();
    // The child ignores TERM; its parent does not.
    let script = "sh -c 'trap \"\" TERM; echo $$; exec sleep 100' & wait";
    let run = ["run", "--watchdog", "3s", "x", "sh", "-c", script];
    let mut job = Job::start(&mut at(&server, &run));
    let child = job.pid_line();
    server.cmd(&["DEL", "x"]).await;
    gone(child);
    assert_eq!(job.end().0, 75);
}

#[tokio::test]
async fn children_have_the_grace_though_the_command_ends_first() {
    let server = RedisServer::start();
    let script = "(trap 'echo cleaning; sleep 0.2; echo cleaned; exit' TERM; echo ready; \
                  while kill -0 $PPID 2>/dev/null; do sleep 0.01; done) & wait";
    let options = ["run", "--watchdog", "6", "--grace", "3"];
    let mut job = Job::start(at(&server, &options).args(["x", "sh", "-c", script]));
    assert_eq!(job.line(), "ready");
    server.cmd(&["DEL", "x"]).await;
    assert_eq!([job.line(), job.line()], ["cleaning", "cleaned"]);
    assert_eq!(job.end().0, 75);
}

#[tokio::test]
async fn a_blocked_stderr_holds_nothing_up() {
    let server = RedisServer::start();
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // As much as it takes.
    writer
        .write_all(&vec![b'x'; 65536])
        .expect("a pipe of Linux takes 64 KiB");
    let script = "echo $$; exec sleep 1000";
    let run = ["run", "-v", "--watchdog", "3s", "x", "sh", "-c", script];
    let mut command = at(&server, &run);
    let mut job = Job::start_with_stderr(command.stderr(writer));
    let child = job.pid_line();
    server.cmd(&["DEL", "x"]).await;
    gone(child);
    assert_eq!(job.end().0, 75);
    drop(reader);
}

#[tokio::test]
async fn a_failed_release_is_a_warning() {
    let server = RedisServer::start();
    let mut job = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    server.freeze();
    job.close();
    let (status, err) = job.end();
    server.resume();
    assert_eq!(status, 0, "{err}");
    assert!(err.starts_with("watchlock: lock \"x\": "), "{err}");
}

#[tokio::test]
async fn short_cuts_cost_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(&server);
    let mut job = Job::start(via(&proxy, &["run", "--watchdog", "3", "x"]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    for _ in 0..3 {
        wait_until("it is connected", PATIENCE, || proxy.connections() > 0);
        proxy.reset_all();
    }
    let first: i64 = server.query(&["PEXPIRETIME", "x"]).await;
    eventually("it is renewed", PATIENCE, async || {
        server.query::<i64>(&["PEXPIRETIME", "x"]).await > first
    })
    .await;
    job.close();
    assert_eq!(job.end(), (0, String::new()));
}

#[tokio::test]
async fn a_server_that_restarts_without_its_data_has_lost_the_lock() {
    let server = RedisServer::start();
    let mut job = Job::start(at(&server, &["run", "--watchdog", "2", "x"]).args([
        "sh",
        "-c",
        "echo ready; exec sleep 1000",
    ]));
    assert_eq!(job.line(), "ready");
    server.restart();
    let (status, err) = job.end();
    assert_eq!(status, 75, "{err}");
}

#[tokio::test]
async fn a_command_that_left_its_group_is_ended_at_a_loss() {
    let server = RedisServer::start();
    let script = "import os, time; os.setpgid(0, os.getpgid(os.getppid())); \
                  print(os.getpid(), flush=True); time.sleep(60)";
    let run = ["run", "--watchdog", "3s", "x", "python3", "-c", script];
    let mut job = Job::start(&mut at(&server, &run));
    let command = job.pid_line();
    server.cmd(&["DEL", "x"]).await;
    wait_until("the command is ended", PATIENCE, || !is_alive(command));
    let (status, err) = job.end();
    assert_eq!(status, 75, "{err}");
}

#[tokio::test]
async fn a_short_outage_at_the_end_does_not_make_run_wait_for_all_of_at_least() {
    let server = RedisServer::start();
    let options = ["run", "--watchdog", "20", "--at-least", "60s", "x"];
    let mut job = Job::start(at(&server, &options).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    server.freeze();
    job.close();
    // Longer than it tries once.
    std::thread::sleep(Duration::from_secs(8));
    server.resume();
    wait_until("it leaves the lock to Redis", PATIENCE, || job.has_ended());
    assert!(server.pttl("x").await > 30_000);
}

#[tokio::test]
async fn a_try_without_an_answer_is_one_try_and_says_nothing_of_busy_also_with_verbose() {
    let server = RedisServer::start();
    let asked = ["-n", "-nv"].map(|options| {
        let proxy = Proxy::to(&server);
        let silence = proxy.inject(Fault::BlackHole(Direction::Both));
        let _silent = silence.on(Match::command("EVALSHA")).always().arm();
        let tries = proxy.count(Match::script(ACQUIRE));
        let questions = proxy.count(Match::command("HLEN"));
        let tried = said(&mut via(&proxy, &["run", options, "x", "true"]));
        assert_eq!(tried.status, 69, "{}", tried.err);
        assert_eq!(tried.err.lines().count(), 1, "{}", tried.err);
        (tries.fired(), questions.fired())
    });
    assert_eq!(asked, [(1, 0); 2]);
}

/// Others that come while it asks for the holders do not overtake it.
#[tokio::test]
async fn it_waits_for_its_turn_before_it_asks_for_whom_also_with_verbose() {
    let server = RedisServer::start();
    let mut holder = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(holder.line(), "ready");
    let proxy = Proxy::to(&server);
    let tries = proxy.count(Match::script(ACQUIRE));
    let question = proxy.inject(Fault::SwallowReply);
    let question = question.on(Match::command("HLEN")).arm();
    let mut waiter = Job::start(&mut via(&proxy, &["run", "-v", "x", "true"]));
    wait_until("it asks for whom it waits", PATIENCE, || {
        question.fired() == 1
    });
    // One to know that it waits, and one to wait.
    assert_eq!(tries.seen(), 2);
    holder.close();
    assert_eq!(waiter.end().0, 0);
}

/// A signal that the command gets at the same moment does not hide that Redis reported the loss, which leaves the grace.
#[tokio::test]
async fn a_loss_leaves_the_grace_whatever_signals_come_with_it() {
    let server = RedisServer::start();
    let script = "trap : USR1; trap 'echo TERM; exit 0' TERM; echo ready; \
                  while :; do sleep 0.01; done";
    let run = ["run", "--watchdog", "2s", "x", "sh", "-c", script];
    for _ in 0..20 {
        let mut job = Job::start(&mut at(&server, &run));
        assert_eq!(job.line(), "ready");
        let pid = job.pid().to_string();
        let storm = "while kill -s USR1 \"$0\" 2>/dev/null; do :; done";
        let mut storm = Command::new("sh").args(["-c", storm, &pid]).spawn();
        server.cmd(&["DEL", "x"]).await;
        assert_eq!(job.line(), "TERM");
        assert_eq!(job.end().0, 75);
        let _ = storm.as_mut().map(std::process::Child::wait);
    }
}
