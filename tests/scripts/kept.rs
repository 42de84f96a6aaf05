//! No argument and no lack of memory leaves a key without a lease.

use super::{LOCK, MINE, Scene, code};

/// Invalid leases, and leases that Lua and Redis read differently.
const NO_LEASES: [&str; 16] = [
    "0",
    "-1",
    "-9007199254740992",
    "0.5",
    "1.5",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "-inf",
    "",
    " ",
    "soon",
    "9007199254740993000",
    "9223372036854775807",
    "99999999999999999999999",
];

#[tokio::test]
async fn i4_acquire_with_a_lease_that_is_none_leaves_no_key() {
    let scene = Scene::new().await;
    for lease in NO_LEASES {
        assert!(scene.acquire(MINE, lease).await.is_err(), "{lease:?}");
        scene.assert_free().await;
    }
    assert!(scene.run(super::ACQUIRE, &[MINE]).await.is_err());
    scene.assert_free().await;
}

#[tokio::test]
async fn i4_a_lease_that_is_none_takes_nothing_from_a_hold() {
    let scene = Scene::new().await;
    scene.acquire(MINE, "60000").await.unwrap();
    for lease in NO_LEASES {
        let entered = scene.reenter(MINE, "2", lease).await;
        let ours = scene.acquire(MINE, lease).await;
        let asked = scene.verify(MINE, lease).await;

        let (hash, ttl) = scene.state().await;
        assert!((50_000..=60_000).contains(&ttl), "{lease:?}: {ttl}");
        assert_eq!(hash[0].0, MINE);
        // Leases that are shorter than what is left may count as what they mean.
        let means_little = lease.parse::<f64>().is_ok_and(|lease| lease >= 1.0) || lease == "0x10";
        if !means_little && lease != "nan" {
            assert!(
                entered.is_err() && ours.is_err() && asked.is_err(),
                "{lease:?}"
            );
        }
        scene.release(MINE, "1").await.unwrap();
    }
}

#[tokio::test]
async fn the_longest_lease_is_kept_exactly() {
    let scene = Scene::new().await;
    let longest = "9007199254740992";
    assert_eq!(scene.acquire(MINE, longest).await.unwrap(), -2);
    let ttl = scene.server.pttl(LOCK).await;
    assert!(ttl > 9_007_199_254_000_000, "{ttl}");
}

#[tokio::test]
async fn i4_out_of_memory_a_lock_cannot_be_taken_and_nothing_is_left() {
    let scene = Scene::new().await;
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let refused = scene.acquire(MINE, "30000").await.unwrap_err();
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    scene.assert_free().await;
}

#[tokio::test]
async fn i2_out_of_memory_a_hold_can_be_entered_renewed_and_given_back() {
    let mut scene = Scene::new().await;
    scene.acquire(MINE, "10000").await.unwrap();
    scene.server.cmd(&["CONFIG", "SET", "maxmemory", "1"]).await;

    assert_eq!(scene.acquire(MINE, "20000").await.unwrap(), -2);
    assert_eq!(scene.reenter(MINE, "2", "1000").await.unwrap(), -2);
    // The count is not written; the hold remains.
    scene.assert_held(MINE, "1", (15_000, 20_000)).await;
    assert_eq!(scene.reenter(MINE, "2", "30000").await.unwrap(), -2);
    assert_eq!(scene.verify(MINE, "60000").await.unwrap(), -2);
    assert_eq!(scene.release(MINE, "1").await.unwrap(), (-2, 0));
    let (hash, ttl) = scene.state().await;
    assert_eq!((hash.len(), &*hash[0].0), (1, MINE));
    assert!((50_000..=60_000).contains(&ttl), "{ttl}");
    assert_eq!(scene.release(MINE, "0").await.unwrap(), (-7, 1));
    scene.assert_free().await;
    assert_eq!(scene.messages().await, ["0"]);
}
