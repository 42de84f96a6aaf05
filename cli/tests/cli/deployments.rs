//! Clusters, sentinels with TLS, quorums.

use std::process::Command;
use std::sync::Arc;

use watchlock_support::cluster::RedisCluster;
use watchlock_support::sentinel::{SERVICE, SentinelDeployment};
use watchlock_support::server::RedisServer;
use watchlock_support::tls::Certificates;
use watchlock_support::{eventually, process};

use crate::job::{Job, PATIENCE, UNTIL_EOF, at, said, watchlock};

const JAVA: &str = "0b2d6cc1-6fc0-4f4b-a9f3-0f4a6bb2dd57";

/// Runs a command under a lock, looks at it by all commands, and takes it away.
async fn all_commands(name: &str, command: impl Fn(&[&str]) -> Command) {
    let mut job = Job::start(
        command(&["run", "--watchdog", "3"])
            .arg(name)
            .args(UNTIL_EOF),
    );
    assert_eq!(job.line(), "ready", "{name}");
    let label = format!(" {} sh", job.pid());
    eventually("it is listed with its label", PATIENCE, async || {
        let listed = said(&mut command(&["ls"]));
        assert_eq!((listed.status, listed.err.as_str()), (0, ""), "{name}");
        let rows: Vec<_> = listed.out.lines().skip(1).collect();
        assert_eq!(rows.len(), 1, "{name}: {}", listed.out);
        assert!(rows[0].starts_with(name));
        rows[0].contains(&label)
    })
    .await;
    assert_eq!(said(command(&["run", "-n"]).args([name, "true"])).status, 1);
    let shown = said(&mut command(&["show", name]));
    assert_eq!((shown.status, shown.err.as_str()), (0, ""), "{name}");
    assert!(shown.out.contains(&label), "{name}: {}", shown.out);
    let released = said(&mut command(&["release", "--yes", name]));
    assert_eq!(released.status, 0, "{name}: {}", released.err);
    assert_eq!(job.end().0, 75, "{name}");
    assert_eq!(said(&mut command(&["show", name])).status, 1, "{name}");
    let doctor = said(&mut command(&["doctor"]));
    assert!([0, 1].contains(&doctor.status), "{}", doctor.err);
}

#[tokio::test]
async fn a_cluster_by_its_nodes_or_by_one_address() {
    let cluster = RedisCluster::masters().await;
    let by_nodes = |arguments: &[&str]| {
        let mut command = watchlock(arguments);
        command.env("WATCHLOCK_URL", cluster.urls().join(" "));
        if arguments[0] == "run" {
            // The option stands before the name.
            command = watchlock(&["run", "--cluster"]);
            command
                .env("WATCHLOCK_URL", cluster.urls().join(" "))
                .args(&arguments[1..]);
        } else {
            command.arg("--cluster");
        }
        command
    };
    let by_one = |arguments: &[&str]| {
        let mut command = watchlock(arguments);
        command.env("WATCHLOCK_URL", cluster.url());
        command
    };
    // Names of different nodes.
    for name in ["a", "b", "c", "d"] {
        all_commands(name, by_nodes).await;
    }
    all_commands("e", by_one).await;
    for url in [cluster.url(), format!("{}?protocol=resp3", cluster.url())] {
        let mut doctor = watchlock(&["doctor", "--json"]);
        let servers = said(doctor.env("WATCHLOCK_URL", url)).out;
        assert_eq!(
            servers
                .lines()
                .filter(|line| line.contains("\"version\""))
                .count(),
            3
        );
    }
}

#[tokio::test]
async fn sentinels_and_servers_behind_tls() {
    let certificates = Arc::new(Certificates::make());
    let deployment = SentinelDeployment::options()
        .encrypted(&certificates)
        .start()
        .await;
    let path = |file: &str| certificates.path(file).display().to_string();
    let (ca, cert, key) = (path("ca.crt"), path("server.crt"), path("server.key"));
    let command = |arguments: &[&str]| {
        let options = [
            "--sentinel",
            SERVICE,
            "--tls-ca",
            &ca,
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
        ];
        let (first, rest) = arguments.split_first().expect("a command");
        let mut command = watchlock(&[first]);
        command.args(options).args(rest);
        command.env("WATCHLOCK_URL", deployment.urls().join(" "));
        command.env("WATCHLOCK_SERVER_URL", deployment.server_url());
        command
    };
    all_commands("x", command).await;
    let unknown = said(
        watchlock(&[
            "run",
            "--sentinel",
            "other",
            "--tls-ca",
            &ca,
            "--tls-cert",
            &cert,
            "--tls-key",
            &key,
            "x",
            "true",
        ])
        .env("WATCHLOCK_URL", deployment.urls().join(" ")),
    );
    assert_eq!(unknown.status, 78, "{}", unknown.err);
}

#[tokio::test]
async fn a_majority_of_servers_grants_and_shows_a_lock() {
    let servers = [
        RedisServer::start(),
        RedisServer::start(),
        RedisServer::start(),
    ];
    let urls = servers.each_ref().map(RedisServer::url).join(" ");
    // A server votes once it has been up for a lease.
    let command = |arguments: &[&str]| {
        let (first, rest) = arguments.split_first().expect("a command");
        let mut command = watchlock(&[first]);
        command
            .arg("--quorum")
            .args(rest)
            .env("WATCHLOCK_URL", &urls);
        command
    };
    eventually("they vote", PATIENCE, async || {
        said(&mut command(&[
            "run",
            "--watchdog",
            "2",
            "-w",
            "5",
            "first",
            "true",
        ]))
        .status
            == 0
    })
    .await;
    all_commands("x", command).await;
    servers[0].kill();
    all_commands("y", command).await;
    servers[1].kill();
    for arguments in [
        &["run", "-n", "z", "true"] as &[&str],
        &["ls"],
        &["show", "z"],
    ] {
        let tried = said(&mut command(arguments));
        assert_eq!(tried.status, 69, "{arguments:?}: {}", tried.err);
    }
    let doctor = said(&mut command(&["doctor"]));
    assert_eq!(doctor.status, 1);
    assert_eq!(doctor.out.matches("connect ").count(), 2, "{}", doctor.out);
    assert!(process::is_alive(servers[2].pid()));
}

#[tokio::test]
async fn a_sentinel_that_fails_is_passed_over() {
    let deployment = SentinelDeployment::options().start().await;
    // It knows no such command.
    let broken = RedisServer::start();
    let mut urls = vec![broken.url()];
    urls.extend(deployment.urls());
    let urls = urls.join(" ");
    for arguments in [
        &["ls"] as &[&str],
        &["show", "x"],
        &["doctor"],
        &["release", "x"],
    ] {
        let mut command = watchlock(arguments);
        command.args(["--sentinel", SERVICE]);
        let tried = said(command.env("WATCHLOCK_URL", &urls));
        assert!(
            [0, 1].contains(&tried.status),
            "{arguments:?}: {}",
            tried.err
        );
    }
    let mut none = watchlock(&["ls", "--sentinel", SERVICE]);
    let none = said(none.env("WATCHLOCK_URL", broken.url()));
    assert_eq!(none.status, 69, "{}", none.err);
    assert!(none.err.contains("unknown command"), "{}", none.err);
}

#[tokio::test]
async fn a_node_that_fails_is_passed_over() {
    let cluster = RedisCluster::masters().await;
    // It is in no cluster.
    let broken = RedisServer::start();
    let urls = format!("{} {}", broken.url(), cluster.urls().join(" "));
    for arguments in [&["ls"] as &[&str], &["show", "x"], &["doctor"]] {
        let mut command = watchlock(arguments);
        let tried = said(command.arg("--cluster").env("WATCHLOCK_URL", &urls));
        assert!(
            [0, 1].contains(&tried.status),
            "{arguments:?}: {}",
            tried.err
        );
    }
}

#[tokio::test]
async fn a_majority_answers_though_a_server_fails() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let urls = servers.each_ref().map(RedisServer::url).join(" ");
    let command = |arguments: &[&str]| {
        let mut command = watchlock(arguments);
        said(command.arg("--quorum").env("WATCHLOCK_URL", &urls))
    };
    let deny = ["ACL", "SETUSER", "default", "-scan", "-type"];
    servers[0].cmd(&deny).await;
    for server in &servers {
        server.cmd(&["HSET", "x", &format!("{JAVA}:1"), "1"]).await;
    }
    let listed = command(&["ls"]);
    assert_eq!(
        (listed.status, listed.out.lines().count()),
        (0, 2),
        "{}",
        listed.err
    );
    assert_eq!(command(&["show", "x"]).status, 0);
    assert_eq!(command(&["show", "y"]).status, 1);
    servers[1].cmd(&deny).await;
    for arguments in [&["ls"] as &[&str], &["show", "x"]] {
        let tried = command(arguments);
        assert_eq!(tried.status, 77, "{arguments:?}: {}", tried.err);
    }
}

#[tokio::test]
async fn a_lock_is_shown_though_another_master_fails() {
    let cluster = RedisCluster::masters().await;
    let show = |name: &str| {
        let mut show = watchlock(&["show", name]);
        said(show.env("WATCHLOCK_URL", cluster.url()))
    };
    // Names of each node.
    let names = ["a", "b", "c", "d"];
    for name in names {
        let lock = ["HSET", name, &format!("{JAVA}:1"), "1"];
        cluster.server_of(name).await.cmd(&lock).await;
    }
    let broken = cluster.owner_of("a").await;
    cluster
        .node(broken)
        .cmd(&["ACL", "SETUSER", "default", "-type"])
        .await;
    for name in names {
        let on_broken = cluster.owner_of(name).await == broken;
        let shown = show(name);
        let expected = if on_broken { 77 } else { 0 };
        assert_eq!(shown.status, expected, "{name}: {}", shown.err);
    }
}

#[test]
fn a_cluster_without_slots_has_no_locks_to_speak_of() {
    let server = RedisServer::options().config("cluster-enabled", "yes");
    let server = server.start();
    for arguments in [
        &["ls"] as &[&str],
        &["show", "x"],
        &["release", "--yes", "x"],
        &["doctor"],
    ] {
        let tried = said(&mut at(&server, arguments));
        assert_eq!(
            (tried.status, tried.out.as_str()),
            (69, ""),
            "{arguments:?}"
        );
        assert!(tried.err.contains("slots"), "{}", tried.err);
    }
}

/// Each server walks over its keys in an order of its own.
#[tokio::test]
async fn ls_at_a_quorum_says_when_there_are_more() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let urls = servers.each_ref().map(RedisServer::url).join(" ");
    for server in &servers {
        for number in 0..20 {
            let key = format!("x:{number:02}");
            server.cmd(&["HSET", &key, &format!("{JAVA}:1"), "1"]).await;
        }
    }
    let ls = ["ls", "--quorum", "--limit", "3"];
    let listed = said(watchlock(&ls).env("WATCHLOCK_URL", &urls));
    let rows: Vec<_> = listed.out.lines().skip(1).map(|row| &row[..4]).collect();
    assert_eq!(rows, ["x:00", "x:01", "x:02"], "{}", listed.out);
    assert_eq!(listed.err, "watchlock: there are more; --limit is 3\n");
}

#[tokio::test]
async fn a_lock_is_shown_while_its_slot_migrates() {
    let cluster = RedisCluster::masters().await;
    let lock = ["HSET", "a", &format!("{JAVA}:1"), "1"];
    cluster.server_of("a").await.cmd(&lock).await;
    let (slot, from) = (cluster.slot_of("a").await, cluster.owner_of("a").await);
    let to = (from + 1) % cluster.nodes().len();
    cluster.begin_move(slot, to).await;
    for moved in [false, true] {
        if moved {
            cluster.move_key("a", to).await;
        }
        for arguments in [&["ls"] as &[&str], &["show", "a"]] {
            let tried = said(watchlock(arguments).env("WATCHLOCK_URL", cluster.url()));
            let context = format!("{arguments:?}, moved: {moved}");
            assert_eq!((tried.status, tried.err.as_str()), (0, ""), "{context}");
            assert!(tried.out.contains(JAVA), "{context}: {}", tried.out);
        }
    }
}
