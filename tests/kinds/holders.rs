//! Who holds a lock and how many wait, as Redis has it.

use std::time::Duration;

use watchlock::{Error, Holder, Lease, LostReason};
use watchlock_support::eventually;
use watchlock_support::proxy::{Fault, Match};
use watchlock_support::server::RedisServer;

use crate::common::{LONG, soon};
use crate::scene::{MINUTE, Scene};
use crate::table::Kind;

for_every_kind! {
    a_holder_is_shown_with_its_client_its_label_and_its_levels,
    a_stranger_is_shown_as_it_is,
    f12_a_key_that_is_no_lock_has_no_holders,
    f20_an_invalid_name_has_neither_holders_nor_waiters,
    a_waiter_that_listens_is_counted_until_it_stops,
    f11_without_the_rights_labels_are_missing_and_waiters_are_denied,
    an_answer_that_is_cut_off_is_asked_for_again,
}

const LABEL: &str = "billing@host-7 ü";

async fn holders(scene: &Scene, name: &str) -> Result<Vec<Holder>, Error> {
    soon((scene.kind.made.holders)(&scene.client, name)).await
}

async fn waiters(scene: &Scene, name: &str) -> Result<u64, Error> {
    soon((scene.kind.made.waiters)(&scene.client, name)).await
}

/// The only holder, once the label is shown.
async fn labelled(scene: &Scene, name: &str) -> Holder {
    eventually("the label is shown", LONG, async || {
        let holders = holders(scene, name).await.unwrap();
        holders.iter().all(|holder| holder.label.is_some())
    })
    .await;
    let mut holders = holders(scene, name).await.unwrap();
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders.remove(0)
}

async fn a_holder_is_shown_with_its_client_its_label_and_its_levels(kind: &'static Kind) {
    let scene = Scene::with(kind, |builder| builder.label(LABEL)).await;
    assert_eq!(holders(&scene, "x").await.unwrap(), []);
    let outer = scene.lock("x").lock().await.unwrap();
    let inner = outer.reenter(Lease::Watchdog).await.unwrap();
    let holder = labelled(&scene, "x").await;
    assert_eq!(holder.client, Some(scene.client.id()));
    assert_eq!(holder.label.as_deref(), Some(LABEL));
    let id = scene.client.id().to_string();
    let number = holder.hold_id.strip_prefix(&format!("{id}:"));
    assert!(
        number.is_some_and(|number| number.parse::<u64>().is_ok()),
        "{holder:?}"
    );
    let levels = if kind.differs(kind.local_levels) {
        1
    } else {
        2
    };
    assert_eq!(holder.hold_count, levels);
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    assert_eq!(holders(&scene, "x").await.unwrap(), []);
    scene.client.shutdown(Duration::ZERO).await;
    let closed = (kind.made.holders)(&scene.client, "x").await;
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
}

async fn a_stranger_is_shown_as_it_is(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    scene.put_stranger("x", MINUTE).await;
    let lock = scene.rival(&scene.client, "x");
    let excluded = lock.is_locked().await.unwrap();
    assert!(excluded);
    let shown = holders(&scene, "x").await.unwrap();
    if kind.differs(kind.shared) {
        // The stranger is a writer, and readers are asked for.
        return assert_eq!(shown, []);
    }
    let [holder] = &shown[..] else {
        panic!("{shown:?}")
    };
    assert!(
        ["stranger:1", "kR3b+token/=="].contains(&&*holder.hold_id),
        "{holder:?}"
    );
    assert_eq!(
        (holder.client, &holder.label, holder.hold_count),
        (None, &None, 1)
    );
}

async fn f12_a_key_that_is_no_lock_has_no_holders(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for put in kind.foreign {
        scene.put(put, "key").await;
        let before = scene.dump("key").await;
        let asked = holders(&scene, "key").await;
        let reported =
            matches!(&asked, Err(error @ Error::WrongType { .. }) if error.lock() == Some("key"));
        assert!(reported, "{put:?}: {asked:?}");
        assert!(scene.dump("key").await == before, "{put:?}");
        scene.server.cmd(&["FLUSHALL"]).await;
    }
}

async fn f20_an_invalid_name_has_neither_holders_nor_waiters(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    for error in [
        holders(&scene, "").await.err(),
        waiters(&scene, "").await.err(),
    ] {
        assert!(
            matches!(error, Some(Error::InvalidName { .. })),
            "{error:?}"
        );
    }
}

async fn a_waiter_that_listens_is_counted_until_it_stops(kind: &'static Kind) {
    let scene = Scene::new(kind).await;
    let other = scene.listener().await;
    assert_eq!(waiters(&scene, "x").await.unwrap(), 0);
    let held = scene.rival(&scene.client, "x").lock().await.unwrap();
    let waiting = tokio::spawn({
        let lock = scene.of(&other, "x");
        async move { lock.lock().await }
    });
    scene.waited_for(1).await;
    let count = u64::from(!kind.differs(kind.deaf));
    assert_eq!(waiters(&scene, "x").await.unwrap(), count);
    held.unlock().await.unwrap();
    soon(waiting)
        .await
        .unwrap()
        .unwrap()
        .unlock()
        .await
        .unwrap();
    eventually("nobody listens", LONG, async || {
        waiters(&scene, "x").await.unwrap() == 0
    })
    .await;
}

async fn f11_without_the_rights_labels_are_missing_and_waiters_are_denied(kind: &'static Kind) {
    let server = RedisServer::start();
    let user = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">secret",
        "allkeys",
        "allchannels",
        "+@all",
    ];
    server
        .cmd(&[&user[..], &["-pubsub", "-llen"]].concat())
        .await;
    let url = server.url().replace("//", "//app:secret@");
    let client = watchlock::Client::builder(&url)
        .label(LABEL)
        .connect()
        .await
        .unwrap();
    let scene = Scene::of_client(kind, server, client);
    let guard = scene.lock("x").lock().await.unwrap();
    assert_eq!(labelled(&scene, "x").await.label.as_deref(), Some(LABEL));
    let denied = waiters(&scene, "x").await;
    let about_it =
        matches!(&denied, Err(error @ Error::Denied { .. }) if error.lock() == Some("x"));
    assert!(about_it, "{denied:?}");
    let limits = ["ACL", "SETUSER", "app", "resetkeys", "~x", "~{x*", "~*:{x}"];
    scene.server.cmd(&limits).await;
    let shown = holders(&scene, "x").await.unwrap();
    assert_eq!(shown[0].client, Some(scene.client.id()));
    assert_eq!(shown[0].label, None, "it cannot be read");
    let lost = tokio::time::timeout(Duration::ZERO, guard.lost()).await;
    assert_ne!(lost, Ok(LostReason::Missing), "a label costs no hold");
    guard.unlock().await.unwrap();
}

async fn an_answer_that_is_cut_off_is_asked_for_again(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |builder| builder).await;
    let guard = scene.lock("x").lock().await.unwrap();
    let asks = Match::when(|command| ["HLEN", "GET"].contains(&command.name().as_str()));
    proxy.inject(Fault::ResetAfter).on(asks).arm();
    let shown = holders(&scene, "x").await.unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(proxy.fault_count(), 1);
    guard.unlock().await.unwrap();
}
