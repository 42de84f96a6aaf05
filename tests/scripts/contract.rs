//! What each script does, and that a repeat changes nothing.

use super::{
    ACQUIRE, CLIENT, FORCE, LATER, LOCK, MINE, REENTER, RELEASE, Scene, VERIFY, code, is_wrong_type,
};

#[tokio::test]
async fn the_server_knows_each_script_by_the_digest_that_it_is_called_by() {
    let scene = Scene::new().await;
    for script in [ACQUIRE, REENTER, VERIFY, RELEASE, FORCE] {
        let digest: String = scene.server.query(&["SCRIPT", "LOAD", script]).await;
        assert_eq!(redis::Script::new(script).get_hash(), digest);
    }
}

#[tokio::test]
async fn acquire_takes_a_free_lock_and_a_repeat_takes_it_again() {
    let mut scene = Scene::new().await;
    for _ in 0..2 {
        assert_eq!(scene.acquire(MINE, "30000").await.unwrap(), -2);
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
    assert!(scene.messages().await.is_empty());
    assert_eq!(scene.server.keys().await, [LOCK]);
}

#[tokio::test]
async fn t1_a_repeated_acquire_lengthens_the_lease_and_never_shortens_it() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "60000").await.unwrap();
    assert_eq!(scene.acquire(MINE, "1000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (50_000, 60_000)).await;
    assert_eq!(scene.acquire(MINE, "90000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (80_000, 90_000)).await;
}

#[tokio::test]
async fn acquire_of_a_held_lock_says_for_how_long_and_touches_nothing() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    for _ in 0..2 {
        let busy = scene.acquire(LATER, "90000").await.unwrap();
        assert!((20_000..=30_000).contains(&busy), "{busy}");
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.acquire(LATER, "30000").await.unwrap(), -1);
}

#[tokio::test]
async fn acquire_gives_its_own_field_a_lease_when_somebody_took_it_away() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.acquire(MINE, "30000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn a_key_that_is_no_plain_lock_is_recognised_and_left_alone() {
    let foreign: [&[&str]; 6] = [
        &["SET", LOCK, "x"],
        &["RPUSH", LOCK, "x"],
        &["HSET", LOCK, "mode", "read"],
        &["HSET", LOCK, "mode", "1"],
        &["HSET", LOCK, MINE, "1", LATER, "1"],
        &["HSET", LOCK, "colour", "red"],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        scene.server.cmd(write).await;
        let before = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;

        let acquired = scene.acquire(MINE, "30000").await;
        let forced = scene.force().await;

        let no_hash = write[0] != "HSET";
        assert!(is_wrong_type(&acquired) == no_hash, "{acquired:?}");
        assert!(acquired.is_err() || acquired.unwrap() == -3, "{write:?}");
        assert!(is_wrong_type(&forced) == no_hash, "{forced:?}");
        assert!(forced.is_err() || forced.unwrap() == (-3, 0), "{write:?}");
        let after = scene.server.query::<Vec<u8>>(&["DUMP", LOCK]).await;
        assert_eq!(before, after, "{write:?}");
        assert_eq!(scene.server.pttl(LOCK).await, -1);
    }
}

#[tokio::test]
async fn reenter_writes_the_count_and_lengthens_the_lease() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    for _ in 0..2 {
        assert_eq!(scene.reenter(MINE, "2", "60000").await.unwrap(), -2);
        scene.assert_held(MINE, "2", (50_000, 60_000)).await;
    }
    assert_eq!(scene.reenter(MINE, "3", "1000").await.unwrap(), -2);
    scene.assert_held(MINE, "3", (50_000, 60_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.reenter(MINE, "3", "60000").await.unwrap(), -2);
    scene.assert_held(MINE, "3", (50_000, 60_000)).await;
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn reenter_of_a_hold_that_is_not_there_starts_none() {
    let scene = Scene::new().await;
    assert_eq!(scene.reenter(MINE, "2", "60000").await.unwrap(), -5);
    scene.assert_free().await;
    scene.acquire(LATER, "30000").await.unwrap();
    assert_eq!(scene.reenter(MINE, "2", "60000").await.unwrap(), -5);
    scene.assert_held(LATER, "1", (20_000, 30_000)).await;
}

#[tokio::test]
async fn t1_verify_lengthens_the_lease_and_never_shortens_it() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    for _ in 0..2 {
        assert_eq!(scene.verify(MINE, "1000").await.unwrap(), -2);
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (50_000, 60_000)).await;
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.verify(MINE, "30000").await.unwrap(), -2);
    scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn verify_of_a_hold_that_is_not_there_starts_none() {
    let scene = Scene::new().await;
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -5);
    scene.assert_free().await;
    scene.acquire(LATER, "30000").await.unwrap();
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -5);
    scene.assert_held(LATER, "1", (20_000, 30_000)).await;
    scene.server.cmd(&["SET", LOCK, "x"]).await;
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -5);
    assert_eq!(scene.server.pttl(LOCK).await, -1);
}

#[tokio::test]
async fn verify_always_writes() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    scene.server.cmd(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let answer = scene.verify(MINE, "1000").await;
    assert!(answer.is_err(), "{answer:?}");
}

#[tokio::test]
async fn t4_giving_a_level_back_writes_the_count_and_no_lease() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    scene.reenter(MINE, "2", "30000").await.unwrap();
    for _ in 0..2 {
        assert_eq!(scene.release(MINE, "1").await.unwrap(), (-2, 0));
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
    scene.server.cmd(&["PERSIST", LOCK]).await;
    assert_eq!(scene.release(MINE, "1").await.unwrap(), (-2, 0));
    assert_eq!(scene.server.pttl(LOCK).await, -1);
    assert!(scene.messages().await.is_empty());
}

#[tokio::test]
async fn the_last_release_frees_the_lock_and_wakes_one_waiter_once() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    // The scene is the one listener.
    assert_eq!(scene.release(MINE, "0").await.unwrap(), (-7, 1));
    scene.assert_free().await;
    assert_eq!(scene.messages().await, ["0"]);
    assert_eq!(scene.release(MINE, "0").await.unwrap(), (-5, 0));
    assert_eq!(scene.release(MINE, "1").await.unwrap(), (-5, 0));
    scene.assert_free().await;
    assert!(scene.messages().await.is_empty());
}

/// For a key without a TTL, Lua's `max` would return -1, and Redis would delete the lock.
#[tokio::test]
async fn i4_verify_by_what_is_no_number_deletes_nothing() {
    let scene = Scene::new().await;
    for lease in ["nan", "-nan", "-1", "1e3", "0x10", "", " 5"] {
        scene.server.cmd(&["HSET", LOCK, MINE, "1"]).await;
        assert!(scene.verify(MINE, lease).await.is_err(), "{lease}");
        let fields: usize = scene.server.query(&["HLEN", LOCK]).await;
        assert_eq!(fields, 1, "{lease}");
    }
}

#[tokio::test]
async fn verify_says_what_the_server_is_in_trouble_with() {
    let troubles: [(&[&str], &[&str], &str); 2] = [
        (
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
            "READONLY",
        ),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    for (trouble, mended, expected) in troubles {
        let scene = Scene::new().await;
        scene.acquire(MINE, "10000").await.unwrap();
        scene.server.cmd(trouble).await;
        for _ in 0..2 {
            // Also with a lease below the TTL: the server may have an older state than the master.
            for lease in ["30000", "1000"] {
                let refused = scene.verify(MINE, lease).await.unwrap_err();
                assert_eq!(code(&refused), Some(expected), "{refused}");
            }
            assert_eq!(scene.verify(LATER, "30000").await.unwrap(), -5);
            scene.assert_held(MINE, "1", (0, 10_000)).await;
        }
        scene.server.cmd(mended).await;
        assert_eq!(scene.verify(MINE, "30000").await.unwrap(), -2);
        scene.assert_held(MINE, "1", (20_000, 30_000)).await;
    }
}

#[tokio::test]
async fn force_release_ends_whoever_holds_and_says_whether_it_was_the_caller() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.force().await.unwrap(), (-5, 0));
    let foreign = CLIENT.replace('6', "7") + ":12";
    for (holder, number) in [(MINE, 7), (foreign.as_str(), 0), ("anything", 0)] {
        scene.acquire(holder, "30000").await.unwrap();
        assert_eq!(scene.force().await.unwrap(), (-2, number), "{holder}");
        scene.assert_free().await;
        assert_eq!(scene.messages().await, ["0"]);
        assert_eq!(scene.force().await.unwrap(), (-5, 0));
        assert!(scene.messages().await.is_empty());
    }
}

#[tokio::test]
async fn i3_late_commands_of_an_old_hold_do_not_touch_a_new_one() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "30000").await.unwrap();
    scene.release(MINE, "0").await.unwrap();
    scene.acquire(LATER, "30000").await.unwrap();
    scene.messages().await;

    assert!(scene.acquire(MINE, "90000").await.unwrap() > 0);
    assert_eq!(scene.reenter(MINE, "2", "90000").await.unwrap(), -5);
    assert_eq!(scene.verify(MINE, "90000").await.unwrap(), -5);
    assert_eq!(scene.release(MINE, "1").await.unwrap(), (-5, 0));
    assert_eq!(scene.release(MINE, "0").await.unwrap(), (-5, 0));

    scene.assert_held(LATER, "1", (20_000, 30_000)).await;
    assert!(scene.messages().await.is_empty());
}
