//! `run --permits`, and what the other commands say of semaphores.

use std::process::Command;

use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::job::{Job, PATIENCE, UNTIL_EOF, at, gone, said, watchlock};
use crate::snapshot::{snapshot, without_times};

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
    // For whom it waits.
    let line = verbose.lines().next().unwrap_or_default();
    let holders = line.strip_prefix("watchlock: \"x\" is held by ");
    let mut holders: Vec<_> = holders.unwrap_or_default().split(", ").collect();
    holders.sort_unstable();
    assert_eq!(holders.len(), 2, "{verbose}");
    for job in &jobs {
        let label = format!(" {} sh", job.pid());
        let own = |holder: &&str| holder.contains('@') && holder.ends_with(&label);
        assert!(holders.iter().any(own), "{label}: {verbose}");
    }
    let json = said(&mut run(&server, "2", &["-nv", "--json"], &["true"])).err;
    let waiting = json.lines().next().unwrap_or_default();
    for id in &ids {
        assert!(waiting.contains(id), "{json}");
    }
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
        &["--watchdog", "3s"],
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
async fn a_nested_run_with_a_limit_to_its_wait_takes_a_second_permit() {
    let server = RedisServer::start();
    let program = env!("CARGO_BIN_EXE_watchlock");
    for limit in [&["-n"] as &[&str], &["-w", "50ms"]] {
        for (total, status, out) in [("2", 0, "inner 0\n"), ("1", 1, "")] {
            let inner = [program, "run", "--permits", total];
            let show = [
                "x",
                "sh",
                "-c",
                "echo inner $(redis-cli -u $WATCHLOCK_URL get x)",
            ];
            let inner = [&inner, limit, &show].concat();
            let ran = said(&mut run(&server, total, &[], &inner));
            assert_eq!((ran.status, ran.out.as_str()), (status, out), "{}", ran.err);
            server.cmd(&["DEL", "x"]).await;
        }
    }
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
    assert!(nested.err.contains("second permit"), "{}", nested.err);
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

const JAVA: &str = "\u{1}bcdefghijklmnop";
const JAVA_ID: &str = "0162636465666768696a6b6c6d6e6f70";
const RUST: &str = "7f3c8a52-02f1-4f0e-8d0b-5b2f8f6f2c11";

/// The server's clock.
async fn now(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.query(&["TIME"]).await;
    seconds * 1000 + micros / 1000
}

/// Records a permit of a client of this crate: that of its first hold.
async fn record_own(server: &RedisServer, key: &str, end: &str, client: &str) {
    const SCRIPT: &str = "local id = ARGV[2]:gsub('..', function(x) return string.char(tonumber(x, 16)) end) \
                          return redis.call('ZADD', KEYS[1], ARGV[1], id)";
    let half = client[19..].replace('-', "");
    let id = format!("{half}0000000000010000");
    server.cmd(&["EVAL", SCRIPT, "1", key, end, &id]).await;
}

/// Semaphores of both kinds and languages, and what looks like one.
async fn many() -> RedisServer {
    let server = RedisServer::start();
    let now = now(&server).await;
    let over = (now - 1000).to_string();
    let later = (now + 9_999_999).to_string();
    let record = async |key: &str, end: &str, id: &str| {
        server.cmd(&["ZADD", key, end, id]).await;
    };
    // Of Java: one permit for ever, one whose lease is over.
    server.cmd(&["SET", "imports", "3"]).await;
    record("{imports}:timeout", "922337203685477", JAVA).await;
    record("{imports}:timeout", &over, "abcdefghijklmnop").await;
    // A number of which only this crate's permits are recorded.
    server.cmd(&["SET", "a{b}c", "-1"]).await;
    record_own(&server, "watchlock_permits:a{b}c", &later, RUST).await;
    server
        .cmd(&[
            "SET",
            &format!("watchlock_client:{RUST}"),
            "billing@host-7\u{7}",
        ])
        .await;
    // Nothing is taken.
    server.cmd(&["SET", "all-free", "2"]).await;
    server.cmd(&["SET", "over", "1"]).await;
    record("{over}:timeout", &over, JAVA).await;
    // No semaphores.
    record("{gone}:timeout", &later, JAVA).await;
    server.cmd(&["SET", "text", "x"]).await;
    record("{text}:timeout", &later, JAVA).await;
    server.cmd(&["SET", "odd", "2"]).await;
    server.cmd(&["RPUSH", "{odd}:timeout", JAVA]).await;
    server.cmd(&["RPUSH", "list", "2"]).await;
    record("{list}:timeout", &later, JAVA).await;
    record("session:timeout", &later, "user").await;
    server.cmd(&["SET", "simple", "17", "PX", "9999999"]).await;
    server
}

#[tokio::test]
async fn ls_lists_semaphores_of_which_permits_are_taken() {
    let server = many().await;
    let table = said(&mut at(&server, &["ls"]));
    assert_eq!((table.status, table.err.as_str()), (0, ""));
    let json = said(&mut at(&server, &["ls", "--json"])).out;
    snapshot(
        "ls-semaphores",
        &format!("{}{}", table.out, without_times(&json)),
    );
    let names = |arguments: &[&str]| {
        let out = said(at(&server, &["ls"]).args(arguments)).out;
        let rows = out.lines().skip(1);
        let name = |row: &str| row.split_whitespace().next().map(str::to_owned);
        rows.filter_map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&["imp*"]), ["imports"]);
    assert_eq!(names(&["a*"]), ["a{b}c"]);
    assert_eq!(names(&["--prefix", "imp"]), ["orts"]);
    assert_eq!(names(&["--prefix", "a{b}"]), ["c"]);
    let one = said(&mut at(&server, &["ls", "--limit", "1"]));
    assert_eq!(one.out.lines().count(), 2);
    assert_eq!(one.err, "watchlock: there are more; --limit is 1\n");
}

#[tokio::test]
async fn ls_asks_about_a_thousand_semaphores_together() {
    let server = RedisServer::start();
    let later = (now(&server).await + 9_999_999).to_string();
    for number in 0..500 {
        server.cmd(&["SET", &format!("java:{number}"), "1"]).await;
        let record = format!("{{java:{number}}}:timeout");
        server.cmd(&["ZADD", &record, &later, JAVA]).await;
        server.cmd(&["SET", &format!("rust:{number}"), "1"]).await;
        let client = format!("7f3c8a52-02f1-4f0e-8d0b-{number:012}");
        let record = format!("watchlock_permits:{{rust:{number}}}");
        record_own(&server, &record, &later, &client).await;
        let label = format!("watchlock_client:{client}");
        server
            .cmd(&["SET", &label, &format!("host-{number}")])
            .await;
    }
    let before = reads(&server).await;
    let listed = said(&mut at(&server, &["ls"]));
    assert_eq!((listed.status, listed.err.as_str()), (0, ""));
    assert_eq!(listed.out.lines().count(), 1001);
    for number in 0..500 {
        assert!(listed.out.contains(&format!(" host-{number} ")), "{number}");
    }
    // A question for each would take more than 1000; the server reads long ones in parts of 16 KB.
    let reads = reads(&server).await - before;
    assert!(reads < 250, "{reads} reads");
}

/// How often the server read from a connection.
async fn reads(server: &RedisServer) -> u64 {
    let info: String = server.query(&["INFO", "stats"]).await;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn show_shows_a_semaphore_with_the_ends_of_its_permits() {
    let server = many().await;
    let (mut pages, mut json) = (String::new(), String::new());
    for (name, status) in [("imports", 0), ("a{b}c", 0), ("all-free", 1), ("over", 1)] {
        let page = said(&mut at(&server, &["show", name]));
        assert_eq!((page.status, page.err.as_str()), (status, ""), "{name}");
        pages.push_str(&page.out);
        pages.push('\n');
        json.push_str(&said(&mut at(&server, &["show", "--json", name])).out);
    }
    snapshot(
        "show-semaphores",
        &format!("{pages}{}", without_times(&json)),
    );
    for (name, status) in [("gone", 1), ("list", 78), ("{imports}:timeout", 78)] {
        let shown = said(&mut at(&server, &["show", name]));
        assert_eq!(shown.status, status, "{name}: {}", shown.err);
    }
    // Strings may be simple locks.
    for name in ["text", "simple"] {
        let shown = said(&mut at(&server, &["show", name]));
        assert!(shown.out.contains("kind      simple"), "{}", shown.out);
    }
}

#[tokio::test]
async fn a_permit_of_run_is_listed_with_its_label_and_released_by_its_id() {
    let server = RedisServer::start();
    let script = "echo $WATCHLOCK_HOLD; exec sleep 1000";
    let options = ["--watchdog", "3s"];
    let mut job =
        Job::start(run(&server, "2", &options, &["sh", "-c", script]).env("USER", "jane"));
    let id = job.line();
    let label = format!(" {} sh", job.pid());
    eventually("the label is there", PATIENCE, async || {
        said(&mut at(&server, &["ls"])).out.contains(&label)
    })
    .await;
    let shown = said(&mut at(&server, &["show", "x"])).out;
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(
        lines[1..4],
        [
            "kind      expirable",
            "ttl       none",
            "permits   1 free, 1 taken"
        ]
    );
    assert!(lines[4].starts_with("permit    jane@"), "{shown}");
    assert!(
        lines[4].contains(&format!("{label}, {id}, ttl ")),
        "{shown}"
    );
    assert_eq!(lines[5], "waiting   0");

    let release = |arguments: &[&str]| said(at(&server, &["release"]).args(arguments));
    assert_eq!(release(&["--permit", "0bad", "--yes", "x"]).status, 64);
    assert_eq!(
        release(&["--permit", &id, "--kind", "plain", "x"]).status,
        64
    );
    assert_eq!(release(&["--yes", "x"]).status, 78, "it is a semaphore");
    let refused = release(&["--permit", &id, "x"]);
    assert_eq!(refused.status, 1);
    assert!(refused.err.contains(&label), "{}", refused.err);
    assert!(
        refused.err.ends_with("nothing was released\n"),
        "{}",
        refused.err
    );
    let other = release(&["--permit", JAVA_ID, "--yes", "x"]);
    assert_eq!(other.status, 1);
    let text = format!("watchlock: permit {JAVA_ID} of \"x\" is not taken\n");
    assert!(other.err.ends_with(&text), "{}", other.err);
    assert_eq!(free(&server).await, Some(1));
    let released = release(&["--permit", &id.to_uppercase(), "--yes", "x"]);
    assert_eq!(released.status, 0, "{}", released.err);
    assert_eq!(free(&server).await, Some(2));
    assert_eq!(job.end().0, 75);
    assert_eq!(release(&["--permit", &id, "--yes", "y"]).status, 1);
    server
        .cmd(&["HSET", "lock", &format!("{RUST}:1"), "1"])
        .await;
    assert_eq!(release(&["--permit", &id, "--yes", "lock"]).status, 78);
    assert!(server.exists("lock").await);
}

/// Not a record that somebody made up: one that the library wrote.
#[tokio::test]
async fn permits_of_a_plain_semaphore_are_shown_with_their_client() {
    let server = RedisServer::start();
    let builder = watchlock::Client::builder(server.url()).label("billing@host-7");
    let client = builder.connect().await.expect("it connects");
    let key = format!("watchlock_client:{}", client.id());
    eventually("it has a label", PATIENCE, async || {
        server.exists(&key).await
    })
    .await;
    let imports = client.get_semaphore("imports").with_permits(3);
    let permit = imports.acquire().await.expect("three are free");
    let holders = imports.holders().await.expect("it answers");
    let shown = said(&mut at(&server, &["show", "imports"])).out;
    let json = said(&mut at(&server, &["ls", "--json"])).out;
    let listed = said(&mut at(&server, &["ls"])).out;
    drop(permit);
    let id = &holders[0].hold_id;
    let found = [&listed, &shown].map(|out| out.contains("billing@host-7"));
    assert_eq!(found, [true; 2], "{listed}\n{shown}\n{json}");
    assert!(
        shown.contains(id) && json.contains(id),
        "{id}\n{shown}\n{json}"
    );
}

/// An operator who asks for that must not read that they are not taken, or what to write instead.
#[tokio::test]
async fn permits_of_a_plain_semaphore_are_not_released_by_their_id() {
    let server = RedisServer::start();
    let client = watchlock::Client::connect(server.url()).await;
    let imports = client.expect("it connects").get_semaphore("imports");
    let imports = imports.with_permits(3);
    let permit = imports.acquire().await.expect("three are free");
    let holders = imports.holders().await.expect("it answers");
    let id = holders[0].hold_id.as_str();
    let of_id = ["release", "--yes", "--permit", id, "imports"];
    for options in [&of_id[..], &["release", "--yes", "imports"]] {
        let refused = said(&mut at(&server, options));
        assert_eq!(refused.status, 78, "{}", refused.err);
        assert!(refused.err.contains("not expirable"), "{}", refused.err);
    }
    permit.release().await.expect("it is held");
}
