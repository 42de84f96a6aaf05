//! Each row of the table of exit statuses.

use std::process::Command;

use watchlock_support::server::RedisServer;

use crate::job::{Job, Said, UNTIL_EOF, at, said, watchlock};

#[test]
fn the_status_of_the_command_is_passed_on() {
    let server = RedisServer::start();
    let run = |script: &str| said(&mut at(&server, &["run", "x", "sh", "-c", script])).status;
    assert_eq!(run("exit 0"), 0);
    assert_eq!(run("exit 7"), 7);
    assert_eq!(run("exit 255"), 255);
    assert_eq!(run("kill -TERM $$"), 128 + 15);
    assert_eq!(run("kill -KILL $$"), 128 + 9);
}

#[tokio::test]
async fn busy_is_1_or_what_was_chosen_and_the_command_does_not_run() {
    let server = RedisServer::start();
    let mut holder = Job::start(at(&server, &["run", "x"]).args(UNTIL_EOF));
    assert_eq!(holder.line(), "ready");
    for (options, status) in [
        (&["-n"] as &[&str], 1),
        (&["--nonblock"], 1),
        (&["-w", "0"], 1),
        (&["--wait", "100ms"], 1),
        (&["-n", "-E", "9"], 9),
        (&["-n", "--conflict-exit-code", "0"], 0),
        (&["-w", "0.1", "-E", "255"], 255),
    ] {
        let tried = said(
            at(&server, &["run"])
                .args(options)
                .args(["x", "echo", "ran"]),
        );
        assert_eq!(
            (tried.status, tried.out.as_str()),
            (status, ""),
            "{options:?}"
        );
        assert_eq!(tried.err, "", "{options:?}");
    }
    holder.close();
    assert_eq!(holder.end().0, 0);
    assert_eq!(
        said(&mut at(&server, &["run", "-n", "x", "true"])).status,
        0
    );
    assert_eq!(server.keys().await, [] as [&str; 0]);
}

#[tokio::test]
async fn usage_is_64_and_nothing_is_written() {
    let server = RedisServer::start();
    let nested = r#"["y","x"]"#;
    let wrong: [&[&str]; 23] = [
        &[],
        &["run"],
        &["run", "x"],
        &["nothing"],
        &["run", "--nothing", "x", "true"],
        &["run", "-w", "soon", "x", "true"],
        &["run", "-w", "-1", "x", "true"],
        &["run", "-n", "-w", "1", "x", "true"],
        &["run", "-E", "256", "x", "true"],
        &["run", "-E", "-1", "x", "true"],
        &["run", "--kind", "odd", "x", "true"],
        &["run", "--watchdog", "499ms", "x", "true"],
        &["run", "--watchdog", "25h", "x", "true"],
        &["run", "--at-least", "1ms", "x", "true"],
        &["run", "--at-least", "366d", "x", "true"],
        &["run", "--grace", "15.001", "x", "true"],
        &["run", "--watchdog", "2", "--grace", "1001ms", "x", "true"],
        &["run", "--cluster", "--quorum", "x", "true"],
        &["run", "--sentinel", "s", "--cluster", "x", "true"],
        &["run", "--server-url", "redis://master/", "x", "true"],
        &["run", "--tls-cert", "/dev/null", "x", "true"],
        &["run", "--quorum", "--kind", "fair", "x", "true"],
        &["run", "", "true"],
    ];
    for arguments in wrong {
        let tried = said(&mut at(&server, arguments));
        assert_eq!(tried.status, 64, "{arguments:?}: {}", tried.err);
        assert!(!tried.err.is_empty(), "{arguments:?}");
    }
    let tried = said(at(&server, &["run", "x", "true"]).env("WATCHLOCK_HELD", nested));
    assert_eq!(tried.status, 64, "{}", tried.err);
    let tried = said(at(&server, &["run", "x", "true"]).env("WATCHLOCK_HELD", "x"));
    assert_eq!(tried.status, 64, "{}", tried.err);
    let two = [
        "run",
        "--url",
        "redis://127.0.0.1:1/",
        "--url",
        "redis://127.0.0.1:2/",
        "x",
        "true",
    ];
    assert_eq!(said(&mut watchlock(&two)).status, 64);
    // The password in it would go unheard.
    let tried = said(at(&server, &["ls"]).env("WATCHLOCK_SERVER_URL", "redis://:x@master/"));
    assert_eq!(tried.status, 64, "{}", tried.err);
    // The second one would go unheard.
    let two = format!("{} redis://127.0.0.1:1/", server.url());
    for arguments in [
        &["ls"] as &[&str],
        &["show", "x"],
        &["release", "--yes", "x"],
        &["doctor"],
    ] {
        let tried = said(watchlock(arguments).env("WATCHLOCK_URL", &two));
        assert_eq!(tried.status, 64, "{arguments:?}: {}", tried.err);
    }
    let long = "x".repeat(513);
    assert_eq!(said(&mut at(&server, &["run", &long, "true"])).status, 64);
    // Without an address nothing is guessed.
    assert_eq!(said(&mut watchlock(&["run", "x", "true"])).status, 64);
    assert_eq!(server.keys().await, [] as [&str; 0]);
}

#[test]
fn help_and_version_are_0() {
    for arguments in [
        &["--help"] as &[&str],
        &["run", "--help"],
        &["-V"],
        &["help", "run"],
    ] {
        let shown = said(&mut watchlock(arguments));
        assert_eq!((shown.status, shown.err.as_str()), (0, ""), "{arguments:?}");
        assert!(!shown.out.is_empty());
    }
}

#[tokio::test]
async fn configuration_and_wrong_types_are_78() {
    let server = RedisServer::start();
    server.cmd(&["SET", "text", "1"]).await;
    server.cmd(&["RPUSH", "list", "1"]).await;
    let replica = RedisServer::options().replica_of(&server).start();
    replica.synced().await;
    let file = "/nonexistent/ca.pem";
    let tried: [Said; 8] = [
        said(&mut at(&server, &["run", "text", "true"])),
        said(&mut at(
            &server,
            &["run", "--kind", "write", "list", "true"],
        )),
        said(&mut at(&server, &["run", "--tls-ca", file, "x", "true"])),
        said(&mut at(&server, &["run", "--cluster", "x", "true"])),
        said(&mut at(&replica, &["run", "x", "true"])),
        said(watchlock(&["run", "x", "true"]).env("WATCHLOCK_URL", "what is this")),
        said(watchlock(&["run", "x", "true"]).env("WATCHLOCK_URL", "")),
        said(&mut at(&server, &["ls", "--cluster"])),
    ];
    for (at, tried) in tried.iter().enumerate() {
        let expected = if at == 5 { 64 } else { 78 };
        assert_eq!(tried.status, expected, "{at}: {}", tried.err);
        assert!(tried.err.starts_with("watchlock: "), "{}", tried.err);
    }
    assert!(tried[2].err.contains(file), "{}", tried[2].err);
}

#[test]
fn an_unreachable_redis_is_69_after_the_wait_or_five_seconds() {
    let closed = || {
        let mut command = watchlock(&["run"]);
        command.env("WATCHLOCK_URL", "redis://127.0.0.1:1/");
        command
    };
    let run = |command: &mut Command| {
        let tried = said(command.args(["x", "true"]));
        assert_eq!(tried.status, 69, "{}", tried.err);
        assert!(tried.err.starts_with("watchlock: "), "{}", tried.err);
    };
    run(closed().arg("-n"));
    let start = std::time::Instant::now();
    run(closed().args(["-w", "0.3"]));
    assert!(start.elapsed().as_millis() >= 300);
    let start = std::time::Instant::now();
    run(&mut closed());
    assert!(start.elapsed().as_secs() >= 5);
}

#[tokio::test]
async fn a_redis_that_refuses_is_69() {
    let server = RedisServer::start();
    server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let tried = said(&mut at(&server, &["run", "-w", "0.2", "x", "true"]));
    assert_eq!(tried.status, 69, "{}", tried.err);
    server.freeze();
    let tried = said(&mut at(&server, &["run", "-w", "0.2", "x", "true"]));
    assert_eq!(tried.status, 69, "{}", tried.err);
    server.resume();
}

#[tokio::test]
async fn denied_is_77() {
    let server = RedisServer::options().password("right").start();
    let wrong = server.url().replace("right", "wrong");
    let tried = said(watchlock(&["run", "x", "true"]).env("WATCHLOCK_URL", wrong));
    assert_eq!(tried.status, 77, "{}", tried.err);
    let rules = ["ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all"];
    server.cmd(&rules).await;
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let tried = said(watchlock(&["run", "x", "true"]).env("WATCHLOCK_URL", &url));
    assert_eq!(tried.status, 77, "{}", tried.err);
    assert!(!tried.err.contains("pw"), "{}", tried.err);
    let run = ["run", "--prefix", "app:", "x", "true"];
    assert_eq!(said(watchlock(&run).env("WATCHLOCK_URL", &url)).status, 0);
}

#[tokio::test]
async fn a_command_that_cannot_run_is_126_or_127_and_releases_at_once() {
    let server = RedisServer::start();
    let run = |command: &str| said(&mut at(&server, &["run", "--at-least", "1h", "x", command]));
    let missing = run("no-such-command");
    assert_eq!(missing.status, 127);
    let text =
        "watchlock: cannot execute \"no-such-command\": No such file or directory (os error 2)\n";
    assert_eq!(missing.err, text);
    let file = run("/etc/passwd");
    assert_eq!(file.status, 126);
    assert!(file.err.contains("/etc/passwd"), "{}", file.err);
    assert_eq!(run("/").status, 126);
    assert_eq!(server.keys().await, [] as [&str; 0]);
    // What the command itself ends with is no such thing.
    let own = said(&mut at(
        &server,
        &["run", "--at-least", "1h", "x", "sh", "-c", "exit 127"],
    ));
    assert_eq!((own.status, own.err.as_str()), (127, ""));
    assert_eq!(server.keys().await, ["x"]);
}

/// As in a unit of systemd with `ReadOnlyPaths=/`, or in a sandbox whose /proc takes no names.
#[tokio::test]
async fn a_read_only_proc_hides_nothing() {
    let server = RedisServer::start();
    let program = env!("CARGO_BIN_EXE_watchlock");
    let script = format!(
        "mount --bind /proc /proc && mount -o remount,ro,bind /proc && exec '{program}' run x sh -c 'echo ran; exit 7'"
    );
    let mut command = Command::new("unshare");
    command.args(["-Urm", "sh", "-c", &script]);
    let said = said(command.env("WATCHLOCK_URL", server.url()));
    assert_eq!((said.status, said.out.as_str()), (7, "ran\n"), "{said:?}");
}
