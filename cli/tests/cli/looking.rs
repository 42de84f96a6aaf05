//! `ls`, `show` and `release`.

use std::collections::HashMap;

use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::job::{Job, PATIENCE, Said, UNTIL_EOF, at, said, watchlock};
use crate::snapshot::{snapshot, without_times};

const JAVA: &str = "0b2d6cc1-6fc0-4f4b-a9f3-0f4a6bb2dd57";
const RUST: &str = "7f3c8a52-02f1-4f0e-8d0b-5b2f8f6f2c11";

/// A hash with a lease that looks the same for some minutes.
async fn hash(server: &RedisServer, key: &str, fields: &[(&str, &str)]) {
    for (field, value) in fields {
        server.cmd(&["HSET", key, field, value]).await;
    }
    server.cmd(&["PEXPIRE", key, "9999999"]).await;
}

/// Locks of every kind and of both languages, and what looks like one.
async fn many() -> RedisServer {
    let server = RedisServer::start();
    let (java, rust) = (format!("{JAVA}:57"), format!("{RUST}:2"));
    hash(&server, "orders", &[(&java, "2")]).await;
    hash(&server, "fenced", &[(&rust, "1")]).await;
    server
        .cmd(&["SET", "redisson_lock_token:{fenced}", "7000"])
        .await;
    hash(&server, "fair", &[(&java, "1")]).await;
    let queue = [
        "RPUSH",
        "redisson_lock_queue:{fair}",
        &rust,
        &format!("{JAVA}:58"),
    ];
    server.cmd(&queue).await;
    hash(
        &server,
        "prices",
        &[("mode", "read"), (&java, "2"), (&rust, "1")],
    )
    .await;
    for (level, ttl) in [("1", "8888888"), ("2", "7777777")] {
        let key = format!("{{prices}}:{java}:rwlock_timeout:{level}");
        server.cmd(&["SET", &key, "1", "PX", ttl]).await;
    }
    server
        .cmd(&["ZADD", "watchlock_writers:{prices}", "9999999999999", RUST])
        .await;
    hash(
        &server,
        "written",
        &[("mode", "write"), (&format!("{rust}:write"), "1")],
    )
    .await;
    server
        .cmd(&["HSET", "stuck", &format!("{JAVA}:-9"), "1"])
        .await;
    hash(&server, "line\nbreak \u{1b}[31m{x}", &[(&java, "1")]).await;
    let label = [
        "SET",
        &format!("watchlock_client:{RUST}"),
        "billing@host-7\u{7}",
    ];
    server.cmd(&label).await;
    // No locks.
    hash(&server, "user:1", &[("name", "x")]).await;
    hash(&server, "user:2", &[(&java, "1"), (&rust, "1")]).await;
    hash(&server, "user:3", &[(JAVA, "1")]).await;
    server.cmd(&["SET", "text", &java]).await;
    server
}

#[tokio::test]
async fn ls_lists_the_locks_of_everybody_and_nothing_else() {
    let server = many().await;
    let table = said(&mut at(&server, &["ls"]));
    assert_eq!((table.status, table.err.as_str()), (0, ""));
    snapshot("ls", &table.out);
    // It only read.
    let writes = server.calls().await;
    let json = said(&mut at(&server, &["ls", "--json"])).out;
    let after = server.calls().await;
    for write in ["del", "hset", "pexpire", "evalsha"] {
        assert_eq!(writes.get(write), after.get(write), "{write}");
    }
    snapshot("ls-json", &without_times(&json));
}

#[tokio::test]
async fn ls_takes_a_pattern_a_limit_and_a_prefix() {
    let server = RedisServer::start();
    let field = format!("{JAVA}:1");
    for number in 0..2500 {
        server.cmd(&["SET", &format!("other:{number}"), ""]).await;
    }
    for key in ["a*:one", "a*:two", "ab:three", "a*:odd[1]"] {
        hash(&server, key, &[(&field, "1")]).await;
    }
    let names = |arguments: &[&str]| -> Vec<String> {
        let out = said(at(&server, &["ls"]).args(arguments)).out;
        let rows = out.lines().skip(1);
        rows.map(|row| row.split_whitespace().next().expect("a name").to_owned())
            .collect()
    };
    assert_eq!(names(&[]), ["a*:odd[1]", "a*:one", "a*:two", "ab:three"]);
    assert_eq!(names(&["*t*"]), ["a*:two", "ab:three"]);
    assert_eq!(names(&["nothing"]), [] as [&str; 0]);
    assert_eq!(names(&["--prefix", "a*:"]), ["odd[1]", "one", "two"]);
    assert_eq!(names(&["--prefix", "a*:", "o*"]), ["odd[1]", "one"]);
    let two = said(&mut at(&server, &["ls", "--limit", "2"]));
    assert_eq!(two.out.lines().count(), 3);
    assert_eq!(two.err, "watchlock: there are more; --limit is 2\n");
    assert_eq!(said(&mut at(&server, &["ls", "--limit", "4"])).err, "");
}

#[tokio::test]
async fn a_run_is_listed_by_its_user_host_process_and_command() {
    let server = RedisServer::start();
    let mut run = at(&server, &["run", "x"]);
    let mut job = Job::start(run.args(UNTIL_EOF).env("USER", "jane"));
    assert_eq!(job.line(), "ready");
    let label = format!(" {} sh", job.pid());
    eventually("the label is there", PATIENCE, async || {
        said(&mut at(&server, &["ls"])).out.contains(&label)
    })
    .await;
    let listed = said(&mut at(&server, &["ls"])).out;
    assert!(listed.contains("jane@"), "{listed}");
    // What it waits for.
    let mut waiter = Job::start(&mut at(&server, &["run", "-v", "-w", "2s", "x", "true"]));
    let (status, err) = waiter.end();
    assert_eq!(status, 1);
    let lines: Vec<_> = err.lines().collect();
    assert!(
        lines[0].starts_with("watchlock: \"x\" is held by jane@"),
        "{err}"
    );
    assert!(lines[0].ends_with(&label), "{err}");
    assert!(
        lines[1].starts_with("watchlock: \"x\" stayed busy for "),
        "{err}"
    );
    let json = said(&mut at(&server, &["run", "-nv", "--json", "x", "true"])).err;
    let events: Vec<_> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let events: Vec<HashMap<String, serde_json::Value>> = events;
    assert_eq!(
        [&events[0]["event"], &events[1]["event"]],
        ["waiting", "busy"]
    );
    assert_eq!(events[0]["holders"][0]["hold_count"], 1);
    assert!(events[1]["waited_ms"].is_u64());
    job.close();
    assert_eq!(job.end().0, 0);
}

#[tokio::test]
async fn show_shows_one_lock() {
    let server = many().await;
    let mut all = String::new();
    for name in [
        "orders", "fenced", "fair", "prices", "written", "stuck", "free",
    ] {
        let shown = said(&mut at(&server, &["show", name]));
        assert_eq!(
            shown.status,
            i32::from(name == "free"),
            "{name}: {}",
            shown.err
        );
        all.push_str(&shown.out);
        all.push('\n');
    }
    snapshot("show", &all);
    let mut json = String::new();
    for name in ["prices", "fair", "free"] {
        json.push_str(&said(&mut at(&server, &["show", "--json", name])).out);
    }
    snapshot("show-json", &without_times(&json));
    for name in ["user:1", "user:2"] {
        let shown = said(&mut at(&server, &["show", name]));
        assert_eq!((shown.status, shown.out.as_str()), (78, ""), "{name}");
    }
}

/// Runs `release` and answers its question.
fn answered(server: &RedisServer, name: &str, answer: &str) -> Said {
    let mut job = Job::start(&mut at(server, &["release", name]));
    job.send(answer);
    job.close();
    let (status, err) = job.end();
    Said {
        status,
        out: String::new(),
        err,
    }
}

#[tokio::test]
async fn release_shows_the_holder_asks_and_releases() {
    let server = RedisServer::start();
    hash(&server, "x", &[(&format!("{JAVA}:57"), "1")]).await;
    for no in ["n", "", "what?"] {
        let kept = answered(&server, "x", no);
        assert_eq!(kept.status, 1, "{no}");
        assert!(
            kept.err.contains(&format!("holder    {JAVA}:57, count 1")),
            "{}",
            kept.err
        );
        assert!(kept.err.ends_with("nothing was released\n"), "{}", kept.err);
        assert!(server.exists("x").await);
    }
    assert_eq!(answered(&server, "x", "y").status, 0);
    assert!(!server.exists("x").await);
    let free = said(&mut at(&server, &["release", "--yes", "x"]));
    assert_eq!(
        (free.status, free.err.as_str()),
        (1, "watchlock: \"x\" is free\n")
    );
}

#[tokio::test]
async fn release_ends_the_hold_of_each_kind() {
    let server = RedisServer::start();
    for kind in ["plain", "fair", "fenced", "read", "write", "simple"] {
        let run = ["run", "--kind", kind, "--watchdog", "3", kind];
        let mut job = Job::start(at(&server, &run).args(UNTIL_EOF));
        assert_eq!(job.line(), "ready");
        // Only a queue distinguishes a fair lock from a plain one, so somebody waits. A reader does not wait for a reader.
        let other = if kind == "read" { "write" } else { kind };
        let waits = ["run", "--kind", other, kind, "echo", "in"];
        let mut waiter = Job::start(&mut at(&server, &waits));
        eventually("it waits", PATIENCE, async || {
            !server.channels().await.is_empty()
        })
        .await;
        let mut release = at(&server, &["release", "--yes", kind]);
        if kind == "simple" {
            assert_eq!(said(&mut release).status, 78);
            assert!(server.exists(kind).await);
            release.args(["--kind", "simple"]);
        }
        let released = said(&mut release);
        assert_eq!(released.status, 0, "{kind}: {}", released.err);
        assert_eq!(waiter.line(), "in");
        assert_eq!(waiter.end().0, 0, "{kind}");
        assert_eq!(job.end().0, 75, "{kind}");
    }
}

#[tokio::test]
async fn ls_without_a_right_fails_and_skips_only_keys_of_others() {
    let server = many().await;
    server.cmd(&["SET", "permits", "1"]).await;
    let record = [
        "ZADD",
        "{permits}:timeout",
        "9999999999999",
        "abcdefghijklmnop",
    ];
    server.cmd(&record).await;
    let listing =
        "+scan +hlen +hkeys +hscan +hget +exists +pttl +get +type +time +zcount +zrangebyscore";
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let list = async |rules: &[&str]| {
        let user = ["ACL", "SETUSER", "app", "reset", "on", ">pw"];
        let rights = listing
            .split(' ')
            .chain(["+llen", "+pubsub", "allchannels"]);
        let rules: Vec<_> = user
            .into_iter()
            .chain(rights)
            .chain(rules.iter().copied())
            .collect();
        server.cmd(&rules).await;
        said(watchlock(&["ls"]).env("WATCHLOCK_URL", &url))
    };
    let all = list(&["~*"]).await;
    assert_eq!((all.status, all.err.as_str()), (0, ""));
    assert!(
        all.out.contains("\norders ") && all.out.contains("\npermits "),
        "{}",
        all.out
    );
    for right in listing.split(' ') {
        let command = &right[1..];
        let denied = list(&["~*", &format!("-{command}")]).await;
        assert_eq!((denied.status, denied.out.as_str()), (77, ""), "{right}");
        assert!(denied.err.contains(command), "{right}: {}", denied.err);
    }
    // Who waits is shown as unknown.
    let silent = list(&["~*", "-pubsub", "-llen"]).await;
    assert_eq!((silent.status, silent.err.as_str()), (0, ""));
    assert!(silent.out.contains(" ?\n"), "{}", silent.out);
    let some = list(&[
        "~o*",
        "~redisson_lock_queue:{o*",
        "~redisson_lock_token:{o*",
    ])
    .await;
    assert_eq!((some.status, some.err.as_str()), (0, ""));
    assert_eq!(some.out.lines().count(), 2, "{}", some.out);
}

#[tokio::test]
async fn what_redis_denies_is_77_and_what_is_out_of_reach_69() {
    let server = RedisServer::start();
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-scan", "-type", "-info", "-acl",
        "-config",
    ];
    server.cmd(&rules).await;
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    for (arguments, status) in [
        (&["ls"] as &[&str], 77),
        (&["show", "x"], 77),
        (&["release", "--yes", "x"], 77),
        (&["doctor"], 0),
    ] {
        let tried = said(watchlock(arguments).env("WATCHLOCK_URL", &url));
        assert_eq!(tried.status, status, "{arguments:?}: {}", tried.err);
        let closed = "redis://127.0.0.1:1/";
        let tried = said(watchlock(arguments).env("WATCHLOCK_URL", closed));
        assert_eq!(tried.status, 69, "{arguments:?}: {}", tried.err);
        let none = said(&mut watchlock(arguments));
        assert_eq!(none.status, 64, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_name_is_shown_alike_whether_or_not_it_is_held() {
    let server = RedisServer::start();
    let name = "a\\b\u{1b}";
    let show = || said(&mut at(&server, &["show", "--json", name])).out;
    let name_of = |line: String| {
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON")["name"].clone()
    };
    let free = name_of(show());
    let job = Job::start(at(&server, &["run", name]).args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    let held = name_of(show());
    assert_eq!(free, held);
}
