//! `run --permits`, and what the other commands say of semaphores.

use std::process::Command;

use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::job::{Job, PATIENCE, UNTIL_EOF, at, gone, said, watchlock};

/// `watchlock run --permits` of the semaphore `x`.
fn run(server: &RedisServer, permits: &str, options: &[&str], command: &[&str]) -> Command {
    let mut run = at(server, &["run", "--permits", permits]);
    run.args(options).arg("x").args(command);
    run
}

async fn free(server: &RedisServer) -> Option<i64> {
    server.query(&["GET", "x"]).await
}

/// The ids of the permits that are taken.
async fn taken(server: &RedisServer) -> Vec<String> {
    let ids: Vec<Vec<u8>> = server.query(&["ZRANGE", "{x}:timeout", "0", "-1"]).await;
    let ids = ids
        .into_iter()
        .map(|id| <[u8; 16]>::try_from(id).expect("an id"));
    ids.map(|id| format!("{:032x}", u128::from_be_bytes(id)))
        .collect()
}

#[tokio::test]
async fn so_many_commands_run_at_once_and_the_next_waits() {
    let server = RedisServer::start();
    let script = r#"echo "$WATCHLOCK_NAME|$WATCHLOCK_TOKEN|$WATCHLOCK_HELD|$WATCHLOCK_HOLD"; cat"#;
    let jobs = [(); 2].map(|()| {
        let mut run = run(&server, "2", &[], &["sh", "-c", script]);
        Job::start(run.env("WATCHLOCK_TOKEN", "7"))
    });
    let mut ids = Vec::new();
    for job in &jobs {
        let line = job.line();
        let id = line.strip_prefix(r#"x||["x"]|"#);
        ids.push(id.unwrap_or_else(|| panic!("{line}")).to_owned());
    }
    ids.sort();
    let mut recorded = taken(&server).await;
    recorded.sort();
    assert_eq!(recorded, ids);
    let busy = said(&mut run(&server, "2", &["-n", "-E", "9"], &["echo", "ran"]));
    assert_eq!((busy.status, busy.out.as_str()), (9, ""));
    let verbose = said(&mut run(&server, "2", &["-nv"], &["true"])).err;
    assert!(
        verbose.starts_with("watchlock: \"x\" is busy\n"),
        "{verbose}"
    );
    let mut third = Job::start(&mut run(&server, "2", &["-w", "1m"], &["echo", "third"]));
    eventually("the third waits", PATIENCE, async || {
        server.subscribers("redisson_sc:{x}").await == 1
    })
    .await;
    let [mut first, mut second] = jobs;
    first.close();
    assert_eq!(third.line(), "third");
    second.close();
    for job in [&mut first, &mut second, &mut third] {
        assert_eq!(job.end(), (0, String::new()));
    }
    assert_eq!(
        (free(&server).await, taken(&server).await.len()),
        (Some(2), 0)
    );
}

#[tokio::test]
async fn a_lost_permit_ends_the_command_and_is_75() {
    let server = RedisServer::start();
    let script = "echo ready; exec sleep 1000";
    let mut job = Job::start(&mut run(
        &server,
        "2",
        &["--watchdog", "900ms"],
        &["sh", "-c", script],
    ));
    assert_eq!(job.line(), "ready");
    server.cmd(&["DEL", "{x}:timeout"]).await;
    let (status, err) = job.end();
    assert_eq!(status, 75, "{err}");
    assert!(err.contains("the lock \"x\" was lost"), "{err}");
    // A loss that only the release finds.
    server.cmd(&["SET", "x", "2"]).await;
    let mut job = Job::start(&mut run(&server, "2", &[], &UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    server.cmd(&["DEL", "{x}:timeout"]).await;
    job.close();
    assert_eq!(job.end().0, 75);
}

#[tokio::test]
async fn behind_a_frozen_server_the_command_is_ended_and_the_permit_given_back() {
    let server = RedisServer::start();
    let script = "trap 'echo TERM; exit 0' TERM; echo $$; while :; do sleep 0.01; done";
    let options = ["--watchdog", "4", "--grace", "2"];
    let mut job = Job::start(&mut run(&server, "1", &options, &["sh", "-c", script]));
    let command = job.pid_line();
    server.freeze();
    assert_eq!(job.line(), "TERM");
    gone(command);
    server.resume();
    assert_eq!(job.end().0, 75);
    assert_eq!(free(&server).await, Some(1));
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_a_permit_or_reaches_the_command() {
    let server = RedisServer::start();
    let script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut holder = Job::start(&mut run(&server, "1", &[], &["sh", "-c", script]));
    assert_eq!(holder.line(), "ready");
    let mut waiter = Job::start(&mut run(&server, "1", &[], &["echo", "ran"]));
    eventually("it waits", PATIENCE, async || {
        server.subscribers("redisson_sc:{x}").await == 1
    })
    .await;
    waiter.signal("TERM");
    assert_eq!(waiter.end(), (128 + 15, String::new()));
    holder.signal("TERM");
    assert_eq!(holder.line(), "got");
    assert_eq!(holder.end().0, 5);
    assert_eq!(
        (free(&server).await, taken(&server).await.len()),
        (Some(1), 0)
    );
}

#[tokio::test]
async fn statuses_are_those_of_locks() {
    let server = RedisServer::start();
    for options in [
        &["--kind", "fair"] as &[&str],
        &["--kind", "plain"],
        &["--at-least", "1m"],
        &["--quorum"],
    ] {
        let tried = said(&mut run(&server, "2", options, &["true"]));
        assert_eq!(tried.status, 64, "{options:?}: {}", tried.err);
    }
    for total in ["0", "-1", "2147483648", "some"] {
        let tried = said(&mut run(&server, total, &[], &["true"]));
        assert_eq!(tried.status, 64, "{total}: {}", tried.err);
    }
    let nested = said(run(&server, "2", &[], &["true"]).env("WATCHLOCK_HELD", r#"["x"]"#));
    assert_eq!(nested.status, 64, "{}", nested.err);
    assert_eq!(server.keys().await, [] as [&str; 0]);

    assert_eq!(
        said(&mut run(&server, "2147483647", &[], &["true"])).status,
        0
    );
    // The number that is there counts.
    server.cmd(&["SET", "x", "1"]).await;
    let mut own = run(&server, "7", &["-n"], &["sh", "-c", "exit 3"]);
    assert_eq!(said(&mut own).status, 3);
    assert_eq!(free(&server).await, Some(1));
    assert_eq!(said(&mut run(&server, "1", &[], &["no-such"])).status, 127);
    assert_eq!(said(&mut run(&server, "1", &[], &["/"])).status, 126);
    assert_eq!(
        (free(&server).await, taken(&server).await.len()),
        (Some(1), 0)
    );
    server.cmd(&["SET", "x", "no number"]).await;
    assert_eq!(said(&mut run(&server, "1", &[], &["true"])).status, 78);
    let mut out_of_reach = watchlock(&["run", "-n", "--permits", "1", "x", "true"]);
    let out_of_reach = said(out_of_reach.env("WATCHLOCK_URL", "redis://127.0.0.1:1/"));
    assert_eq!(out_of_reach.status, 69, "{}", out_of_reach.err);
}
