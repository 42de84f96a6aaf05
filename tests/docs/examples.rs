//! The examples do what they say. They are built along with the tests; here each runs to its end against a server of
//! its own.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use watchlock_support::cluster::RedisCluster;
use watchlock_support::sentinel::SentinelDeployment;
use watchlock_support::server::RedisServer;

/// By when an example has ended on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The binary of an example.
fn binary(name: &str) -> PathBuf {
    built(&format!("examples/{name}"), &["--example", name])
}

/// The binary that cargo built beside this test, `target/debug/PATH` for a test in `target/debug/deps`; built now when this
/// test is run alone.
fn built(path: &str, options: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("a test is two folders down");
    let binary = profile.join(path);
    if !binary.is_file() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = std::process::Command::new(cargo);
        command.args(["build", "--quiet"]).args(options);
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let status = command.status().expect("cargo runs");
        assert!(status.success(), "{path} cannot be built");
    }
    assert!(binary.is_file(), "{} is not there", binary.display());
    binary
}

fn command(name: &str, server: &RedisServer) -> Command {
    let mut command = Command::new(binary(name));
    command
        .env("REDIS_URL", server.url())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Its output, after it has ended well and left nothing behind.
async fn said(name: &str, server: &RedisServer) -> String {
    let said = ended_well(name, server).await;
    assert_eq!(server.keys().await, [] as [String; 0], "{name} leaves keys");
    said
}

/// Its output, after it has ended well.
async fn ended_well(name: &str, server: &RedisServer) -> String {
    let running = command(name, server).output();
    let output: Output = tokio::time::timeout(LONG, running)
        .await
        .expect("it ends")
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}: {}\n{said}\n{errors}",
        output.status
    );
    said
}

#[tokio::test]
async fn quickstart_gets_in_and_finds_busy() {
    let said = said("quickstart", &RedisServer::start()).await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "in: nobody else is here");
    assert_eq!(lines[1], "a second try while it is held: busy");
    assert_eq!(lines[2], "out");
    assert!(lines[3].starts_with("in again, for 10s"), "{said}");
}

#[tokio::test]
async fn nested_counts_one_two_one_in_all_three_ways() {
    let said = said("nested", &RedisServer::start()).await;
    let expected =
        ["guard", "owner", "scope"].map(|by| format!("by {by}: 1\nby {by}: 2\nby {by}: 1\n"));
    assert_eq!(said, expected.concat());
}

#[tokio::test]
async fn closure_returns_values_and_ends_with_its_lock() {
    let said = said("closure", &RedisServer::start()).await;
    let lines: Vec<_> = said.lines().skip(1).collect();
    let expected = [
        "the body returned 2026",
        "the task returned 2026",
        "while it is busy: None",
        "taken away: lock \"closure:invoices\": the hold was lost: it was released by force",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn cluster_takes_locks_at_several_nodes() {
    let cluster = RedisCluster::masters().await;
    let mut example = command("cluster", cluster.node(0));
    let running = example.env("REDIS_URLS", cluster.urls().join(" ")).output();
    let output = tokio::time::timeout(LONG, running).await;
    let output = output.expect("it ends").expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "10 orders are ours\nstock and till are ours\nstock is locked: true\n";
    assert_eq!(said, expected, "{output:?}");
    assert!(cluster.keys().await.is_empty());
}

/// It prints where the cluster is, and ends with its servers, here when its terminal is closed.
#[tokio::test]
async fn the_script_for_it_starts_a_cluster() {
    let first = 12_000 + std::process::id() % 9_000;
    let (script, urls) = started("scripts/cluster.sh", first).await;
    let client = watchlock::ClientBuilder::cluster(urls.split(' ')).connect();
    let client = client.await.expect("a client");
    for name in ["a", "b", "c"] {
        let guard = client.get_lock(name).lock().await.expect("a lock");
        guard.unlock().await.expect("it is given back");
    }
    ends(script, "-HUP", &urls).await;
}

/// A script that starts servers, and the addresses that it prints.
async fn started(script: &str, first: u32) -> (Child, String) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(root.join(script));
    let script = script.arg(first.to_string()).stdout(Stdio::piped());
    let mut script = script.kill_on_drop(true).spawn().expect("it starts");
    let mut lines = BufReader::new(script.stdout.take().expect("piped")).lines();
    let line = tokio::time::timeout(LONG, lines.next_line()).await;
    let line = line.expect("it is ready").expect("a text").expect("a line");
    let (_, urls) = line.split_once(": ").expect("it says where");
    (script, urls.to_owned())
}

/// A signal ends the script and its servers.
async fn ends(mut script: Child, signal: &str, urls: &str) {
    let pid = script.id().expect("it runs").to_string();
    let killed = Command::new("kill").args([signal, &pid]).status().await;
    assert!(killed.expect("kill runs").success());
    let ended = tokio::time::timeout(LONG, script.wait()).await;
    ended.expect("it ends").expect("a status");
    for url in urls.split(' ') {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let there = tokio::net::TcpStream::connect(address).await;
        assert!(there.is_err(), "{signal} leaves a server at {url}");
    }
}

async fn by_sentinels(name: &str, deployment: &SentinelDeployment) -> Output {
    let mut example = command(name, &deployment.servers()[0]);
    let running = example.env("SENTINEL_URLS", deployment.urls().join(" "));
    let output = tokio::time::timeout(LONG, running.output()).await;
    output.expect("it ends").expect("it runs")
}

#[tokio::test]
async fn sentinel_outlives_its_master() {
    let deployment = SentinelDeployment::start().await;
    let (old, name) = (&deployment.servers()[0], "sentinel:nightly");
    let failing = async {
        let replica = &deployment.servers()[1];
        watchlock_support::eventually("the replica has it", LONG, async || {
            replica.exists(name).await
        })
        .await;
        old.kill();
        deployment.master_after(old, deployment.sentinels()).await
    };
    let (output, new) = tokio::join!(by_sentinels("sentinel", &deployment), failing);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "the job begins\nthe job is done\n", "{output:?}");
    assert!(new.keys().await.is_empty());
}

#[tokio::test]
async fn acknowledged_is_granted_with_the_replica_and_refused_without() {
    let deployment = SentinelDeployment::start().await;
    let [master, replica] = deployment.servers() else {
        panic!("two servers")
    };
    master.acknowledged(1).await;
    let output = by_sentinels("acknowledged", &deployment).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "granted: the replica has it\n", "{output:?}");
    replica.cut_off_from(master).await;
    let output = by_sentinels("acknowledged", &deployment).await;
    let said = String::from_utf8_lossy(&output.stdout);
    let expected = "refused: 0 of 1 replicas acknowledged it in time\n";
    assert_eq!(said, expected, "{output:?}");
    assert!(master.keys().await.is_empty());
}

#[tokio::test]
async fn the_script_for_both_starts_sentinels() {
    let first = 12_000 + (std::process::id() + 4_500) % 9_000;
    let (script, urls) = started("scripts/sentinel.sh", first).await;
    let client = watchlock::ClientBuilder::sentinel(urls.split(' '), "locks").connect();
    let client = client.await.expect("a client");
    let guard = client.get_lock("a").lock().await.expect("a lock");
    guard.unlock().await.expect("it is given back");
    ends(script, "-INT", &urls).await;
}

#[tokio::test]
async fn transfer_goes_both_ways_at_once() {
    let said = said("transfer", &RedisServer::start()).await;
    let expected = "20 transfers, nobody waits for anybody for ever\n\
                    while account:2 is held: busy\naccount:1 is held meanwhile: false\n";
    assert_eq!(said, expected);
}

#[tokio::test]
async fn shared_pool_works_beside_the_application() {
    let said = said("shared_pool", &RedisServer::start()).await;
    let expected = "one sold, 9 left\nconnections in the application's pool: 1\n";
    assert_eq!(said, expected);
}

#[tokio::test]
async fn long_job_outlives_its_lease() {
    let said = said("long_job", &RedisServer::start()).await;
    assert!(said.contains("step 5 of 5\nthe job is done\n"), "{said}");
    assert!(
        said.ends_with("the upload ended after 30 parts\n"),
        "{said}"
    );
}

#[tokio::test]
async fn long_job_stops_when_its_lock_is_taken_away() {
    let server = RedisServer::start();
    let name = "long_job:nightly";
    let job = tokio::spawn(command("long_job", &server).stdout(Stdio::piped()).output());
    watchlock_support::eventually("it holds", LONG, async || server.exists(name).await).await;
    server.cmd(&["DEL", name]).await;
    let output = tokio::time::timeout(LONG, job).await;
    let output = output
        .expect("it ends")
        .expect("no panic")
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("the job stops: the lock is lost, Redis does not have it any more\n"),
        "{said}"
    );
    assert!(
        said.contains("the upload stops: lock \"long_job:nightly\": the hold was lost"),
        "{said}"
    );
    assert!(!said.contains("the job is done"), "{said}");
}

/// The resource refuses the late writer, which only then learns of its loss. The newest token stays in Redis.
async fn refuses_a_late_write(example: &str, lock: &str, resource: &str) {
    let server = RedisServer::start();
    let said = ended_well(example, &server).await;
    let expected = [
        "A is in, and has just checked that the lock is its own",
        "A is frozen, as by a long pause of its machine",
        &format!("B is in, and writes, and {resource} takes it: true"),
        &format!("A writes, and {resource} takes it: false"),
        "A gives the lock back, and hears that it was lost: true",
        "the report is by B",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let token = format!("redisson_lock_token:{{{lock}}}");
    assert_eq!(server.keys().await, [token]);
}

#[tokio::test]
async fn fencing_sql_refuses_a_late_write() {
    refuses_a_late_write("fencing_sql", "fencing_sql:report", "the database").await;
}

#[tokio::test]
async fn fencing_redis_refuses_a_late_write() {
    refuses_a_late_write("fencing_redis", "fencing_redis:lock", "Redis").await;
}

/// Somebody else's server on one of its ports is left alone, and the script ends with what it started.
#[tokio::test]
async fn the_script_for_quorum_uses_no_server_but_its_own() {
    let others = RedisServer::start();
    let first = u32::from(others.port()) - 2;
    let folder = std::env::temp_dir().join(format!("quorum-script-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(root.join("scripts/quorum.sh"));
    script.arg(first.to_string()).env("TMPDIR", &folder);
    let running = script.kill_on_drop(true).output();
    let output = tokio::time::timeout(LONG, running).await;
    let output = output.expect("it ends").expect("it runs");
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(
        others.calls_of("evalsha").await + others.calls_of("eval").await,
        0
    );
    assert_eq!(others.keys().await, [] as [String; 0]);
    std::fs::remove_dir(&folder).expect("it leaves nothing there");
}

/// The demo clears the keys that it left in somebody's Redis on purpose, also when its terminal is closed.
#[tokio::test]
async fn the_demo_leaves_nothing_when_it_is_ended() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        let server = RedisServer::start();
        let mut demo = Command::new(built(
            "watchlock-demo",
            &[
                "--package",
                "watchlock-demo",
                "--package",
                "watchlock-worker",
            ],
        ));
        demo.env("REDIS_URL", server.url()).stdout(Stdio::piped());
        let mut demo = demo.kill_on_drop(true).spawn().expect("it starts");
        let mut said = BufReader::new(demo.stdout.take().expect("piped")).lines();
        let counted = async {
            while let Some(line) = said.next_line().await.expect("a text") {
                if line.starts_with("(b)") {
                    return;
                }
            }
            panic!("it ended");
        };
        tokio::time::timeout(LONG, counted)
            .await
            .expect("it counts");
        assert!(!server.keys().await.is_empty(), "the counter is there");
        let pid = demo.id().expect("it runs").to_string();
        let killed = Command::new("kill").args([signal, &pid]).status().await;
        assert!(killed.expect("kill runs").success());
        let ended = tokio::time::timeout(LONG, demo.wait()).await;
        let status = ended.expect("it ends").expect("a status");
        assert!(!status.success(), "{signal}: {status}");
        assert_eq!(server.keys().await, [] as [String; 0], "{signal}");
    }
}
