//! `doctor`: its verdicts.

use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::job::{PATIENCE, at, said, watchlock};

/// The verdict and the value of one check.
fn check(json: &str, name: &str) -> (String, String) {
    let lines = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let id = name.replace([' ', '-'], "_");
    let mut found = lines.filter(|line| line["check"] == id.as_str());
    let found = found.next().unwrap_or_else(|| panic!("{name} in {json}"));
    (text(&found["verdict"]), text(&found["value"]))
}

fn verdict(json: &str, name: &str) -> String {
    check(json, name).0
}

#[tokio::test]
async fn a_safe_server_is_0() {
    let server = RedisServer::options().aof().start();
    let page = said(&mut at(&server, &["doctor"]));
    assert_eq!(page.status, 0, "{}", page.out);
    assert!(
        page.out
            .starts_with(&format!("127.0.0.1:{}\n", server.port())),
        "{}",
        page.out
    );
    let json = said(&mut at(&server, &["doctor", "--json"])).out;
    for name in [
        "version",
        "role",
        "maxmemory-policy",
        "append-only file",
        "replicas",
        "clock",
        "round trip",
        "rights",
    ] {
        let (verdict, value) = check(&json, name);
        // A busy machine may be slow.
        assert!(verdict == "ok" || name == "round trip", "{name}: {value}");
        assert!(page.out.contains(name), "{}", page.out);
    }
    assert_eq!(check(&json, "append-only file").1, "on, fsync always");
    server
        .cmd(&["CONFIG", "SET", "appendfsync", "everysec"])
        .await;
    let json = said(&mut at(&server, &["doctor", "--json"]));
    assert_eq!(json.status, 0);
    assert_eq!(verdict(&json.out, "append-only file"), "advice");
}

#[test]
fn a_server_that_cannot_be_asked_is_named() {
    let nobody = "redis://127.0.0.1:1/";
    for more in [
        &["--url", nobody][..],
        &["--url", nobody, "--sentinel", "mymaster"],
    ] {
        for looks in [&["doctor"][..], &["ls"], &["show", "x"]] {
            let refused = said(watchlock(looks).args(more));
            assert_eq!(refused.status, 69, "{}", refused.err);
            assert!(
                refused.err.starts_with("watchlock: 127.0.0.1:1: "),
                "{looks:?}: {}",
                refused.err
            );
        }
    }
    let wrong = said(&mut watchlock(&["doctor", "--url", "redis.internal"]));
    assert_eq!(wrong.status, 78, "{}", wrong.err);
    assert!(
        wrong.err.contains("redis://, rediss:// or unix:"),
        "{}",
        wrong.err
    );
}

#[tokio::test]
async fn what_can_let_two_in_is_1() {
    let server = RedisServer::start();
    let json = said(&mut at(&server, &["doctor", "--json"]));
    assert_eq!(
        (json.status, verdict(&json.out, "append-only file").as_str()),
        (1, "bad")
    );

    let server = RedisServer::options().aof().start();
    server
        .cmd(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"])
        .await;
    let json = said(&mut at(&server, &["doctor", "--json"]));
    assert_eq!(
        (json.status, verdict(&json.out, "maxmemory-policy").as_str()),
        (0, "ok")
    );
    server.cmd(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    let json = said(&mut at(&server, &["doctor", "--json"]));
    assert_eq!(
        (json.status, verdict(&json.out, "maxmemory-policy").as_str()),
        (1, "bad")
    );
}

#[tokio::test]
async fn replicas_are_counted_and_one_is_no_place_for_locks() {
    let server = RedisServer::options().aof().start();
    let replica = RedisServer::options().replica_of(&server).start();
    replica.synced().await;
    let json = said(&mut at(&replica, &["doctor", "--json"]));
    assert_eq!(
        (json.status, verdict(&json.out, "role").as_str()),
        (1, "bad")
    );
    eventually("it acknowledges", PATIENCE, async || {
        let json = said(&mut at(&server, &["doctor", "--json"])).out;
        check(&json, "replicas") == ("advice".to_owned(), "1, 1 acknowledge".to_owned())
    })
    .await;
    replica.freeze();
    eventually("it lags", PATIENCE, async || {
        let json = said(&mut at(&server, &["doctor", "--json"])).out;
        check(&json, "replicas").1 == "1, 0 acknowledge"
    })
    .await;
    replica.resume();
}

#[tokio::test]
async fn rights_that_are_missing_are_named_and_what_is_hidden_is_unknown() {
    let server = RedisServer::options().aof().start();
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pw", "~app:*", "&*", "+@all", "-pexpire", "-hset",
    ];
    server.cmd(&rules).await;
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let mut doctor = watchlock(&["doctor", "--json", "--prefix", "app:"]);
    let json = said(doctor.env("WATCHLOCK_URL", &url));
    let rights = check(&json.out, "rights");
    assert_eq!(
        rights,
        ("bad".to_owned(), "app: no pexpire, hset".to_owned())
    );
    assert_eq!(json.status, 1);
    server
        .cmd(&["ACL", "SETUSER", "app", "-info", "-config", "-acl"])
        .await;
    let json = said(doctor.env("WATCHLOCK_URL", &url));
    assert_eq!(json.status, 0, "{}", json.out);
    for name in [
        "version",
        "role",
        "maxmemory-policy",
        "append-only file",
        "replicas",
        "rights",
    ] {
        assert_eq!(verdict(&json.out, name), "unknown", "{name}");
    }
}

/// As docs/acl.md narrows them for names that contain a `{`.
#[tokio::test]
async fn the_channel_of_a_prefix_in_braces_is_that_of_its_locks() {
    let server = RedisServer::options().aof().start();
    let channel = "&redisson_lock__channel:{app}:*";
    let rules = [
        "ACL", "SETUSER", "app", "on", ">pw", "~{app}:*", channel, "+@all",
    ];
    server.cmd(&rules).await;
    let url = format!("redis://app:pw@127.0.0.1:{}/", server.port());
    let mut doctor = watchlock(&["doctor", "--json", "--prefix", "{app}:"]);
    let json = said(doctor.env("WATCHLOCK_URL", &url));
    assert_eq!(check(&json.out, "rights"), ("ok".into(), "app".into()));
    assert_eq!(json.status, 0, "{}", json.out);
}

#[tokio::test]
async fn an_address_that_asks_for_resp3_changes_no_verdict() {
    let server = RedisServer::options().aof().start();
    let by_resp3 = format!("{}?protocol=resp3", server.url());
    let examine = |url: &str| {
        let json = said(watchlock(&["doctor", "--json"]).env("WATCHLOCK_URL", url));
        let names = ["version", "append-only file", "replicas", "rights"];
        names.map(|name| check(&json.out, name))
    };
    assert_eq!(examine(&by_resp3), examine(&server.url()));
}
