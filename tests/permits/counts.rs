//! How many permits there are, and who may have them.

use std::time::Duration;

use watchlock::{Error, Lease};

use crate::common::{both, ms, script, soon};
use crate::{CHANNEL, Kind, NAME, Scene, once};

for_both! {
    as_many_permits_as_there_are_are_taken_and_given_back,
    permits_that_nobody_set_are_set_by_who_knows_their_number,
    without_a_number_an_acquire_waits_for_one,
    many_permits_are_taken_all_or_none,
    in_a_scope_each_acquire_takes_a_permit,
    bad_numbers_are_refused_and_nothing_is_written,
    keys_of_another_kind_are_left_alone,
    only_a_guard_gives_back,
    a_permit_that_is_gone_is_lost_and_its_release_adds_nothing,
    of_several_permits_one_that_is_gone_loses_all_and_the_others_are_given_back,
    the_number_can_be_changed_and_deleted,
    a_run_has_a_permit_and_gives_it_back,
    sixty_five_acquires_at_once_share_five_permits,
    permits_have_the_life_of_their_number,
}

async fn as_many_permits_as_there_are_are_taken_and_given_back<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    assert!(of.try_set_permits(3).await.unwrap());
    assert!(!of.try_set_permits(9).await.unwrap(), "it is set");
    let mut permits = Vec::new();
    for free in [2, 1, 0] {
        permits.push(of.acquire().await.unwrap());
        assert_eq!(of.available_permits().await.unwrap(), free);
    }
    assert!(once(&of).await.is_none());
    let other = K::of(&scene.other().await, NAME);
    assert!(once(&other).await.is_none());
    assert!(permits.iter().all(watchlock::Permit::is_valid));
    permits.pop().unwrap().release().await.unwrap();
    let fourth = once(&other).await.expect("one is free");
    assert!(once(&of).await.is_none());
    for permit in permits {
        permit.verify().await.unwrap();
        permit.release().await.unwrap();
    }
    drop(fourth);
    scene.all_are_free::<K>(3).await;
}

async fn permits_that_nobody_set_are_set_by_who_knows_their_number<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let permits = [of.acquire().await.unwrap(), of.acquire().await.unwrap()];
    assert!(once(&of).await.is_none());
    let larger = of.clone().with_permits(7);
    assert!(once(&larger).await.is_none(), "the number is there");
    drop(permits);
    scene.all_are_free::<K>(2).await;
}

async fn without_a_number_an_acquire_waits_for_one<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    assert!(once(&of).await.is_none());
    assert_eq!(of.available_permits().await.unwrap(), 0);
    let waits = tokio::spawn({
        let of = of.clone();
        async move { of.acquire().await }
    });
    scene.listens().await;
    K::of(&scene.other().await, NAME)
        .try_set_permits(1)
        .await
        .unwrap();
    let permit = soon(waits).await.unwrap().unwrap();
    permit.release().await.unwrap();
    scene.all_are_free::<K>(1).await;
}

async fn many_permits_are_taken_all_or_none<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(1_500);
    let many = of.acquire_many(1_024).await.unwrap();
    assert_eq!(many.num_permits(), 1_024);
    assert_eq!(scene.state::<K>().await, (Some(476), 1_024));
    let more = of.try_acquire_many(477, ms(50), Lease::Watchdog).await;
    assert!(more.unwrap().is_none());
    assert_eq!(scene.state::<K>().await, (Some(476), 1_024));
    let rest = of.acquire_many(476).await.unwrap();
    many.verify().await.unwrap();
    many.release().await.unwrap();
    rest.release().await.unwrap();
    scene.all_are_free::<K>(1_500).await;
}

async fn in_a_scope_each_acquire_takes_a_permit<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let taken = scene.client.scope(async {
        let both = [of.acquire().await.unwrap(), of.acquire().await.unwrap()];
        assert!(once(&of).await.is_none());
        both
    });
    drop(taken.await);
    scene.all_are_free::<K>(2).await;
}

async fn bad_numbers_are_refused_and_nothing_is_written<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    let range = |refused: Result<(), Error>| match refused {
        Err(error @ Error::InvalidCount { .. }) => {
            assert_eq!(error.lock(), Some(NAME));
            assert!(!error.was_sent() && !error.is_transient());
            let Error::InvalidCount {
                given,
                smallest,
                largest,
                ..
            } = error
            else {
                unreachable!()
            };
            (given, smallest, largest)
        }
        other => panic!("{other:?}"),
    };
    for given in [0, 1_025, u32::MAX] {
        let refused = of.acquire_many(given).await.map(drop);
        assert_eq!(range(refused), (given.into(), 1, 1_024));
        let refused = of
            .try_acquire_many(given, Duration::ZERO, Lease::Watchdog)
            .await;
        assert_eq!(range(refused.map(drop)), (given.into(), 1, 1_024));
    }
    let five = of.clone().with_permits(5);
    let refused = five.acquire_many(6).await.map(drop);
    assert_eq!(range(refused), (6, 1, 5));
    for given in [0, u32::MAX] {
        let refused = of.clone().with_permits(given).acquire().await.map(drop);
        assert_eq!(range(refused).1, 1);
    }
    let refused = of.try_set_permits(1 << 31).await.map(drop);
    assert_eq!(range(refused), (1 << 31, 0, (1 << 31) - 1));
    let wrong = of.try_acquire(ms(1), ms(9)).await;
    assert!(matches!(wrong, Err(Error::InvalidLease { .. })));
    assert!(scene.server.keys().await.is_empty());

    of.try_set_permits((1 << 31) - 1).await.unwrap();
    assert_eq!(range(of.add_permits(1).await).0, 1 << 31);
    assert_eq!(scene.state::<K>().await, (Some((1 << 31) - 1), 0));
    let nameless = K::of(&scene.client, "").acquire().await;
    assert!(matches!(nameless, Err(Error::InvalidName { .. })));
}

async fn keys_of_another_kind_are_left_alone<K: Kind>() {
    let foreign: [&[&str]; 5] = [
        &["SET", NAME, "no number"],
        &["SET", NAME, "1.5"],
        &["SET", NAME, "9007199254740993"],
        &["HSET", NAME, "a", "1"],
        &["RPUSH", K::RECORDS, "x"],
    ];
    for write in foreign {
        let scene = Scene::new().await;
        let of = K::of(&scene.client, NAME).with_permits(2);
        scene.server.cmd(write).await;
        let dump = async || scene.server.query::<Vec<u8>>(&["DUMP", write[1]]).await;
        let before = dump().await;
        let wrong = |result: Result<(), Error>| matches!(result, Err(Error::WrongType { .. }));
        assert!(wrong(of.acquire().await.map(drop)), "{write:?}");
        assert!(wrong(of.available_permits().await.map(drop)), "{write:?}");
        assert!(wrong(of.try_set_permits(3).await.map(drop)), "{write:?}");
        assert!(wrong(of.add_permits(3).await), "{write:?}");
        assert!(wrong(of.delete().await.map(drop)), "{write:?}");
        assert_eq!(dump().await, before, "{write:?}");
        assert_eq!(scene.server.keys().await.len(), 1, "{write:?}");
    }
}

/// Redisson's `release` of more than was taken adds permits (redisson/redisson#5066).
async fn only_a_guard_gives_back<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    drop(of.acquire().await.unwrap());
    scene.all_are_free::<K>(2).await;
    let release = script("permits/release.lua");
    let call = [
        "EVAL",
        &release,
        "2",
        NAME,
        K::RECORDS,
        CHANNEL,
        "given",
        "1",
        "x",
    ];
    assert_eq!(both(scene.server.cmd(&call).await), (-5, 0));
    assert_eq!(of.available_permits().await.unwrap(), 2);
}

async fn a_permit_that_is_gone_is_lost_and_its_release_adds_nothing<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    for verifies in [false, true] {
        let permit = of.acquire().await.unwrap();
        scene.server.cmd(&["DEL", K::RECORDS]).await;
        if verifies {
            assert!(permit.verify().await.is_err_and(|error| error.is_lost()));
            assert!(!permit.is_valid() && permit.check().is_err());
        }
        let released = permit.release().await;
        assert!(released.is_err_and(|error| error.is_lost()), "{verifies}");
    }
    assert_eq!(
        scene.state::<K>().await,
        (Some(0), 0),
        "somebody deleted two"
    );
}

async fn of_several_permits_one_that_is_gone_loses_all_and_the_others_are_given_back<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    for verifies in [false, true] {
        let permit = of.acquire_many(3).await.unwrap();
        scene
            .server
            .cmd(&["ZREMRANGEBYRANK", K::RECORDS, "0", "0"])
            .await;
        scene.server.cmd(&["INCR", NAME]).await;
        if verifies {
            assert!(permit.verify().await.is_err_and(|error| error.is_lost()));
        }
        let released = permit.release().await;
        assert!(released.is_err_and(|error| error.is_lost()));
        scene.all_are_free::<K>(5).await;
    }
}

async fn the_number_can_be_changed_and_deleted<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME);
    assert!(!of.delete().await.unwrap());
    of.try_set_permits(1).await.unwrap();
    let first = of.acquire().await.unwrap();
    of.add_permits(2).await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), 2);
    of.add_permits(-5).await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), -3);
    assert!(once(&of).await.is_none());
    of.add_permits(3).await.unwrap();
    let waits = tokio::spawn({
        let of = of.clone();
        async move { of.acquire().await }
    });
    scene.listens().await;
    of.add_permits(1).await.unwrap();
    let second = soon(waits).await.unwrap().unwrap();
    second.release().await.unwrap();
    assert!(of.delete().await.unwrap());
    assert!(scene.server.keys().await.is_empty());
    assert!(first.verify().await.is_err_and(|error| error.is_lost()));
    drop(first);
    of.try_set_permits(1).await.unwrap();
    drop(of.acquire().await.unwrap());
    scene.all_are_free::<K>(1).await;
}

async fn a_run_has_a_permit_and_gives_it_back<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    let free = of.run(async |permit| {
        assert!(permit.is_valid());
        of.available_permits().await
    });
    assert_eq!(free.await.unwrap().unwrap(), 1);
    scene.all_are_free::<K>(2).await;
    let ran = of.run(async |_| {
        scene.server.cmd(&["DEL", NAME]).await;
    });
    assert!(ran.await.is_err_and(|error| error.is_lost()));
}

async fn sixty_five_acquires_at_once_share_five_permits<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(5);
    let inside = std::sync::atomic::AtomicI64::new(0);
    let section = async |_: usize| {
        let permit = of.acquire().await.unwrap();
        let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert!(others < 5, "{others}");
        tokio::time::sleep(ms(2)).await;
        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
        permit.release().await.unwrap();
    };
    soon(futures_util::future::join_all((0..65).map(section))).await;
    scene.all_are_free::<K>(5).await;
}

async fn permits_have_the_life_of_their_number<K: Kind>() {
    let scene = Scene::new().await;
    let of = K::of(&scene.client, NAME).with_permits(2);
    drop(of.acquire().await.unwrap());
    scene.all_are_free::<K>(2).await;
    scene.server.cmd(&["PEXPIRE", NAME, "60000"]).await;
    let permit = of.acquire().await.unwrap();
    let ttl = scene.server.pttl(K::RECORDS).await;
    assert!((30_000..=60_000).contains(&ttl), "{ttl}");
    // As Java's addPermits does.
    scene.server.cmd(&["PERSIST", NAME]).await;
    permit.verify().await.unwrap();
    assert_eq!(scene.server.pttl(K::RECORDS).await, -1);
    permit.release().await.unwrap();
    scene.all_are_free::<K>(2).await;
}

#[tokio::test]
async fn ids_and_totals_of_expirable_permits_are_redissons() {
    let scene = Scene::new().await;
    let of = scene.client.get_permit_expirable_semaphore(NAME);
    of.set_permits(3).await.unwrap();
    let permit = of.acquire_many(2).await.unwrap();
    let members: Vec<Vec<u8>> = scene
        .server
        .query(&["ZRANGE", "{imports}:timeout", "0", "-1"])
        .await;
    let hex = |member: &Vec<u8>| {
        let bytes = <[u8; 16]>::try_from(&member[..]).unwrap();
        format!("{:032x}", u128::from_be_bytes(bytes))
    };
    let mut members: Vec<_> = members.iter().map(hex).collect();
    members.sort();
    let ids: Vec<_> = permit.ids().iter().map(ToString::to_string).collect();
    assert_eq!(members, ids);
    assert_eq!(of.total_permits().await.unwrap(), 3);
    assert_eq!(of.acquired_permits().await.unwrap(), 2);
    of.set_permits(1).await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), -1);
    of.set_permits(4).await.unwrap();
    assert_eq!(of.available_permits().await.unwrap(), 2);

    assert!(of.release_permit(permit.ids()[0]).await.unwrap());
    assert!(!of.release_permit(permit.ids()[0]).await.unwrap());
    assert_eq!(of.acquired_permits().await.unwrap(), 1);
    assert!(permit.verify().await.is_err_and(|error| error.is_lost()));
    drop(permit);
    scene.all_are_free::<watchlock::kind::Expirable>(4).await;
    let plain = scene.client.get_semaphore("other").with_permits(1);
    assert!(plain.acquire().await.unwrap().ids().is_empty());
}
