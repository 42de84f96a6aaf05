//! The state that remains when the ACL denies one command inside a script.

use redis::{RedisResult, Value};

use super::{
    ACQUIRE, CLIENT, FORCE, LATER, LOCK, MINE, REENTER, RELEASE, Scene, VERIFY, is_refused,
};
use crate::common::channel;

/// Every command that any script calls.
const COMMANDS: [&str; 10] = [
    "-pttl", "-hset", "-hlen", "-hgetall", "-pexpire", "-hdel", "-hexists", "-publish", "-del",
    "-@write",
];

async fn eval(scene: &Scene, denied: &str, script: &str, args: &[&str]) -> RedisResult<Value> {
    let mut user = scene.user_without(&[denied]).await;
    let mut call = redis::cmd("EVAL");
    call.arg(script).arg(1).arg(LOCK).arg(args);
    call.query_async(&mut user).await
}

#[tokio::test]
async fn i4_whichever_command_is_denied_acquire_leaves_no_key_without_a_lease() {
    let scene = Scene::new().await;
    for denied in COMMANDS {
        let answer = eval(&scene, denied, ACQUIRE, &[MINE, "30000"]).await;

        let needed = ["-pttl", "-hset", "-pexpire", "-@write"].contains(&denied);
        assert_eq!(is_refused(&answer), needed, "{denied}: {answer:?}");
        if needed {
            scene.assert_free().await;
        } else {
            scene.assert_held(MINE, "1", (20_000, 30_000)).await;
        }
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

#[tokio::test]
async fn i4_whichever_command_is_denied_a_hold_keeps_its_lease() {
    let scene = Scene::new().await;
    let channel = channel(LOCK);
    let scripts: [(&str, &[&str]); 5] = [
        (ACQUIRE, &[MINE, "60000"]),
        (REENTER, &[MINE, "2", "60000"]),
        (VERIFY, &[MINE, "60000"]),
        (RELEASE, &[MINE, "1", &channel]),
        (RELEASE, &[LATER, "0", &channel]),
    ];
    for denied in COMMANDS {
        for (script, args) in scripts {
            scene.acquire(MINE, "30000").await.unwrap();
            let answer = eval(&scene, denied, script, args).await;
            let (hash, ttl) = scene.state().await;
            assert_eq!(hash[0].0, MINE, "{denied}: {answer:?}");
            assert!((20_000..=60_000).contains(&ttl), "{denied}: {ttl}");
            scene.server.cmd(&["DEL", LOCK]).await;
        }
    }
}

#[tokio::test]
async fn a_denied_wake_up_is_reported_and_the_lock_is_free_all_the_same() {
    let mut scene = Scene::new().await;
    let channel = channel(LOCK);
    for denied in ["-publish", "resetchannels"] {
        scene.acquire(MINE, "30000").await.unwrap();
        let answer = eval(&scene, denied, RELEASE, &[MINE, "0", &channel]).await;
        assert_eq!(answer.unwrap(), Value::Int(-8), "{denied}");
        scene.assert_free().await;

        scene.acquire(MINE, "30000").await.unwrap();
        let answer = eval(&scene, denied, FORCE, &[CLIENT, &channel]).await;
        let ended = Value::Array(vec![Value::Int(-8), Value::Int(7)]);
        assert_eq!(answer.unwrap(), ended, "{denied}");
        scene.assert_free().await;
    }
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn a_denied_last_release_leaves_the_hold_to_its_lease() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    let answer = eval(&scene, "-hdel", RELEASE, &[MINE, "0", &channel(LOCK)]).await;
    assert!(is_refused(&answer), "{answer:?}");
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    let answer = eval(&scene, "-del", FORCE, &[CLIENT, &channel(LOCK)]).await;
    assert!(is_refused(&answer), "{answer:?}");
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_denied_renewal_says_unknown_not_lost() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    for (denied, needed) in [
        ("-hexists", true),
        ("-pttl", true),
        ("-pexpire", true),
        ("-hset", false),
    ] {
        let answer = eval(&scene, denied, VERIFY, &[MINE, "60000"]).await;
        assert_eq!(is_refused(&answer), needed, "{denied}: {answer:?}");
        assert_eq!(answer.is_ok(), !needed, "{denied}");
    }
}
