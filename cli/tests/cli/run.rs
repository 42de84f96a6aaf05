//! The options of `run`, without faults.

use std::time::Duration;

use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::job::{Job, PATIENCE, UNTIL_EOF, at, said};

#[tokio::test]
async fn the_lock_is_held_while_the_command_runs() {
    let server = RedisServer::start();
    let mut job = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    assert!(server.exists("x").await);
    job.close();
    assert_eq!(job.end(), (0, String::new()));
    assert_eq!(server.keys().await, [] as [&str; 0]);
}

#[test]
fn arguments_and_streams_are_those_of_the_command() {
    let server = RedisServer::start();
    for separator in [&[] as &[&str], &["--"]] {
        let script = r#"printf '%s|' "$@"; echo warning >&2; cat"#;
        let mut job = Job::start(
            at(&server, &["run", "x"])
                .args(separator)
                .args(["sh", "-c", script, "-", "-n", "--wait", "a b", ""]),
        );
        job.send("input");
        job.close();
        assert_eq!(job.line(), "-n|--wait|a b||input");
        assert_eq!(job.end(), (0, "warning\n".to_owned()));
    }
}

#[tokio::test]
async fn it_waits_for_its_turn() {
    let server = RedisServer::start();
    let mut first = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(first.line(), "ready");
    let mut second = Job::start(&mut at(
        &server,
        &["run", "-w", "1m", "x", "echo", "second"],
    ));
    eventually("the second waits", PATIENCE, async || {
        server.subscribers("redisson_lock__channel:{x}").await == 1
    })
    .await;
    first.close();
    assert_eq!(second.line(), "second");
    assert_eq!((first.end().0, second.end().0), (0, 0));
}

#[tokio::test]
async fn each_kind_is_the_lock_of_the_library() {
    let server = RedisServer::start();
    for (kind, same_kind, other, other_status) in [
        ("plain", 1, "fenced", 1),
        ("fenced", 1, "plain", 1),
        ("fair", 1, "plain", 1),
        ("read", 0, "write", 1),
        ("write", 1, "read", 1),
        ("simple", 1, "plain", 78),
    ] {
        let script = "echo $WATCHLOCK_HOLD; cat >/dev/null";
        let mut job = Job::start(&mut at(
            &server,
            &["run", "--kind", kind, kind, "sh", "-c", script],
        ));
        assert!(job.line().contains(':'), "{kind}: a hold id");
        let other_kind = |other: &str| {
            said(&mut at(
                &server,
                &["run", "-n", "--kind", other, kind, "true"],
            ))
            .status
        };
        assert_eq!(other_kind(kind), same_kind, "{kind} and {kind}");
        assert_eq!(other_kind(other), other_status, "{kind} and {other}");
        let type_of: String = server.query(&["TYPE", kind]).await;
        assert_eq!(type_of, if kind == "simple" { "string" } else { "hash" });
        job.close();
        assert_eq!(job.end(), (0, String::new()), "{kind}");
        assert!(!server.exists(kind).await, "{kind}");
    }
}

#[tokio::test]
async fn the_environment_names_the_hold() {
    let server = RedisServer::start();
    let script =
        r#"echo "$WATCHLOCK_NAME|$WATCHLOCK_TOKEN|$WATCHLOCK_HELD"; echo "$WATCHLOCK_HOLD"; cat"#;
    let mut fenced = at(
        &server,
        &["run", "--kind", "fenced", "x", "sh", "-c", script],
    );
    let mut job = Job::start(fenced.env("WATCHLOCK_HELD", r#"["a \"b\""]"#));
    let line = job.line();
    let token: String = server.query(&["GET", "redisson_lock_token:{x}"]).await;
    assert_eq!(line, format!("x|{token}|[\"a \\\"b\\\"\",\"x\"]"));
    let holds = server.hash("x").await;
    assert_eq!(holds.keys().collect::<Vec<_>>(), [&job.line()]);
    job.close();
    assert_eq!(job.end(), (0, String::new()));
    // What an outer one set does not stay.
    let mut plain = at(&server, &["run", "--prefix", "p:", "x", "sh", "-c", script]);
    let plain = said(plain.env("WATCHLOCK_TOKEN", "7").env("WATCHLOCK_NAME", "y"));
    assert!(plain.out.starts_with("x||[\"p:x\"]\n"), "{}", plain.out);
    assert_eq!(plain.out.lines().count(), 2);
}

#[test]
fn a_nested_run_of_another_name_runs_and_one_of_the_same_is_refused() {
    let server = RedisServer::start();
    let program = env!("CARGO_BIN_EXE_watchlock");
    let nested = |name: &str| {
        said(&mut at(
            &server,
            &["run", "x", program, "run", name, "echo", "inner"],
        ))
    };
    assert_eq!(nested("y").out, "inner\n");
    let same = nested("x");
    assert_eq!((same.status, same.out.as_str()), (64, ""));
    assert!(
        same.err
            .contains("is held by a `run` that this one is under"),
        "{}",
        same.err
    );
}

#[tokio::test]
async fn the_lease_is_that_of_the_option_and_is_renewed() {
    let server = RedisServer::start();
    let mut job = Job::start(at(&server, &["run", "--watchdog", "3", "x"]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    let expires = async || server.query::<i64>(&["PEXPIRETIME", "x"]).await;
    let first = expires().await;
    assert!(server.pttl("x").await <= 3000);
    eventually("a lease passes", PATIENCE, async || {
        expires().await >= first + 3000
    })
    .await;
    job.close();
    assert_eq!(job.end(), (0, String::new()));
}

#[tokio::test]
async fn at_least_leaves_the_lock_to_its_lease() {
    let server = RedisServer::start();
    let run = ["run", "--at-least", "5m", "x", "sh", "-c", "exit 3"];
    assert_eq!(said(&mut at(&server, &run)).status, 3);
    let left = server.pttl("x").await;
    assert!((290_000..=300_000).contains(&left), "{left}");
    assert_eq!(
        said(&mut at(&server, &["run", "-n", "x", "true"])).status,
        1
    );
    assert_eq!(server.connections().await, 0);
}

#[tokio::test]
async fn at_least_shorter_than_the_lease_is_waited_for_and_released_on_time() {
    let server = RedisServer::start();
    let start = std::time::Instant::now();
    let run = ["run", "--at-least", "700ms", "x", "sh", "-c", "exit 3"];
    assert_eq!(said(&mut at(&server, &run)).status, 3);
    assert!(start.elapsed() >= Duration::from_millis(700));
    assert!(!server.exists("x").await);
    // A command that takes longer has the lock for as long as it runs.
    let run = ["run", "--at-least", "10ms", "x", "sleep", "0.05"];
    assert_eq!(said(&mut at(&server, &run)).status, 0);
    assert!(!server.exists("x").await);
}

#[tokio::test]
async fn a_signal_behind_the_command_leaves_the_lock_to_its_lease() {
    let server = RedisServer::start();
    let run = [
        "run",
        "--at-least",
        "20",
        "x",
        "sh",
        "-c",
        "echo $$; exit 3",
    ];
    let mut job = Job::start(&mut at(&server, &run));
    let pid = job.pid_line();
    crate::job::gone(pid);
    // Passed to a command that has just ended, it is nobody's.
    while !job.has_ended() {
        job.signal("TERM");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(job.end(), (3, String::new()));
    assert!(server.pttl("x").await > 15_000);
}

#[test]
fn verbose_says_how_long_it_took() {
    let server = RedisServer::start();
    let run = said(&mut at(&server, &["run", "-v", "x", "true"]));
    assert!(
        run.err.starts_with("watchlock: \"x\" was acquired after "),
        "{}",
        run.err
    );
}

#[tokio::test]
async fn the_hold_of_one_of_many_readers_has_an_id() {
    let server = RedisServer::start();
    for number in 0..150 {
        let id = format!("00000000-0000-4000-8000-{number:012}:1");
        server.cmd(&["HSET", "x", "mode", "read", &id, "1"]).await;
        let timeout = format!("{{x}}:{id}:rwlock_timeout:1");
        server.cmd(&["SET", &timeout, "1", "PX", "600000"]).await;
    }
    server.cmd(&["PEXPIRE", "x", "600000"]).await;
    let mut without = 0;
    for _ in 0..10 {
        let run = [
            "run",
            "--kind",
            "read",
            "x",
            "sh",
            "-c",
            "echo ${WATCHLOCK_HOLD-none}",
        ];
        let ran = said(&mut at(&server, &run));
        assert_eq!((ran.status, ran.err.as_str()), (0, ""));
        without += u32::from(ran.out == "none\n");
    }
    assert_eq!(without, 0, "of 10");
}
