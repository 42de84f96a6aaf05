//! I2, I3 and I4: each command that a kind is seen to send, sent again, sent late, and sent with invalid arguments.
//!
//! A proxy records what a client sends. A command sent a second time at once changes nothing; sent while another hold
//! is there it touches nothing; and no argument leaves a key without a time to live.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use watchlock::Lease;
use watchlock_support::eventually;
use watchlock_support::proxy::{Aim, Match, Proxy};

use crate::common::{LONG, SHORT, ms, script};
use crate::scene::{MINUTE, Scene, about, through};
use crate::table::{Because, Kind};

for_every_kind! {
    i2_each_command_that_is_sent_twice_changes_nothing,
    i3_late_commands_of_an_old_hold_do_not_touch_a_new_one,
    i4_no_argument_leaves_a_key_without_a_lease,
    every_script_of_the_kind_is_seen,
}

type Sent = Vec<String>;

/// The commands that were sent about a lock, in order.
struct Record {
    sent: Arc<Mutex<Vec<Sent>>>,
    _counting: Aim,
}

impl Record {
    fn of(proxy: &Proxy, name: &str) -> Self {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&sent);
        let noted = Match::when(move |command| {
            let text = |arg: &Vec<u8>| String::from_utf8(arg.clone()).expect("text");
            note.lock().push(command.args.iter().map(text).collect());
            true
        });
        let counting = proxy.count(about(name).and(noted));
        Self {
            sent,
            _counting: counting,
        }
    }

    fn take(&self) -> Vec<Sent> {
        std::mem::take(&mut self.sent.lock())
    }
}

/// Sends it as any client could.
async fn send(scene: &Scene, sent: &Sent) -> redis::RedisResult<redis::Value> {
    let parts: Vec<_> = sent.iter().map(String::as_str).collect();
    scene.server.try_cmd(&parts).await
}

/// All keys, with their values and times to live.
async fn state(scene: &Scene) -> BTreeMap<String, (Option<Vec<u8>>, i64)> {
    let mut state = BTreeMap::new();
    for key in scene.server.keys().await {
        let kept = (scene.dump(&key).await, scene.server.pttl(&key).await);
        state.insert(key, kept);
    }
    state
}

/// How much time may pass between two looks.
const LATE_MS: i64 = 5_000;

/// Sends all of it, and asserts that it changes nothing and wakes nobody.
async fn changes_nothing(scene: &Scene, sent: &[Sent], when: &str) {
    let before = state(scene).await;
    let published = scene.server.calls_of("publish").await;
    for sent in sent {
        let _ = send(scene, sent).await;
        let after = state(scene).await;
        let same = before.keys().eq(after.keys());
        assert!(same, "{when}: {sent:?}: {before:?} {after:?}");
        for (key, (kept, ttl)) in &after {
            let (was, had) = &before[key];
            assert_eq!(kept, was, "{when}: {key}: {sent:?}");
            // A repeat may lengthen a lease again to what was asked for.
            let as_before = (had - LATE_MS..had + LATE_MS).contains(ttl);
            assert!(as_before, "{when}: {key}: {had} ms, {ttl} ms: {sent:?}");
        }
    }
    let now = scene.server.calls_of("publish").await;
    assert_eq!(now, published, "{when}: a message more");
}

/// The life of a lock, a step at a time, with what each step sent.
async fn life(scene: &Scene, record: &Record, mut stepped: impl AsyncFnMut(&str, Vec<Sent>)) {
    let owner = scene.client.new_owner();
    let lock = scene.owned(&owner, "life");
    for lease in [Lease::Fixed(MINUTE), Lease::Watchdog] {
        record.take();
        let tried = lock.try_lock(Duration::ZERO, lease).await.unwrap();
        let guard = tried.expect("it is free");
        stepped("acquire", record.take()).await;
        let inner = guard.reenter(MINUTE).await.unwrap();
        stepped("reenter", record.take()).await;
        let third = lock.lock_with_lease(MINUTE * 2).await.unwrap();
        stepped("enter for longer", record.take()).await;
        guard.verify().await.unwrap();
        stepped("verify", record.take()).await;
        inner.extend(MINUTE * 2).await.unwrap();
        stepped("extend", record.take()).await;
        third.unlock().await.unwrap();
        stepped("partial release", record.take()).await;
        drop(inner);
        scene.counted("life", 1).await;
        stepped("dropped level", record.take()).await;
        guard.unlock().await.unwrap();
        stepped("release", record.take()).await;
    }
    let guard = lock.lock().await.unwrap();
    record.take();
    assert!(scene.lock("life").force_unlock().await.unwrap());
    stepped("forced release", record.take()).await;
    drop(guard);
    stepped("dropped guard", record.take()).await;
}

async fn i2_each_command_that_is_sent_twice_changes_nothing(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |builder| builder).await;
    let record = Record::of(&proxy, "life");
    let mut steps = BTreeSet::new();
    life(&scene, &record, async |step, sent| {
        changes_nothing(&scene, &sent, step).await;
        if !sent.is_empty() {
            steps.insert(step.to_owned());
        }
    })
    .await;
    let least = ["acquire", "verify", "release", "forced release"];
    assert!(least.iter().all(|step| steps.contains(*step)), "{steps:?}");
    scene.clean().await;
}

async fn i3_late_commands_of_an_old_hold_do_not_touch_a_new_one(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |builder| builder).await;
    let record = Record::of(&proxy, "life");
    let mut all = Vec::new();
    life(&scene, &record, async |step, sent| {
        // A forced release is meant for any holder.
        if step != "forced release" {
            all.extend(sent);
        }
    })
    .await;
    scene.clean().await;
    let other = scene.other().await;
    let rival = scene
        .rival(&other, "life")
        .lock_with_lease(MINUTE)
        .await
        .unwrap();
    changes_nothing(&scene, &all, "a rival holds it").await;
    rival.unlock().await.unwrap();
    let releases = all.iter().rev().take(1).cloned().collect::<Vec<_>>();
    changes_nothing(&scene, &releases, "nobody holds it").await;
    let stranger = scene
        .of(&other, "life")
        .lock_with_lease(MINUTE)
        .await
        .unwrap();
    changes_nothing(&scene, &releases, "one of its kind holds it").await;
    stranger.unlock().await.unwrap();
    scene.clean().await;
}

/// Invalid arguments.
const NONSENSE: [&str; 12] = [
    "",
    " ",
    "0",
    "-1",
    "1.5",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "soon",
    "9223372036854775807",
    "99999999999999999999999",
];

async fn i4_no_argument_leaves_a_key_without_a_lease(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |builder| builder).await;
    let record = Record::of(&proxy, "life");
    let mut all = BTreeMap::new();
    life(&scene, &record, async |_, sent| {
        // One call of each script is enough.
        for sent in sent {
            all.entry((sent[0].clone(), sent[1].clone()))
                .or_insert(sent);
        }
    })
    .await;
    scene.clean().await;
    let other = scene.other().await;
    for sent in all.values().filter(|sent| sent[0] == "EVALSHA") {
        let keys: usize = sent[2].parse().expect("the number of keys");
        for (index, nonsense) in (3 + keys..sent.len())
            .flat_map(|index| NONSENSE.iter().map(move |nonsense| (index, nonsense)))
        {
            let mut wrong = sent.clone();
            (*nonsense).clone_into(&mut wrong[index]);
            let _ = send(&scene, &wrong).await;
            scene.assert_leased(&format!("free: {wrong:?}")).await;
            scene.server.cmd(&["FLUSHALL"]).await;
        }
        let shorter = sent[..sent.len() - 1].to_vec();
        let _ = send(&scene, &shorter).await;
        scene.assert_leased(&format!("free: {shorter:?}")).await;
        scene.server.cmd(&["FLUSHALL"]).await;
    }

    // With a hold whose own commands they are.
    let acquire = all.values().find(|sent| sent[0] == "EVALSHA").cloned();
    let acquire = acquire.expect("an acquire");
    for sent in all.values().filter(|sent| sent[0] == "EVALSHA") {
        let keys: usize = sent[2].parse().expect("the number of keys");
        for nonsense in NONSENSE {
            for index in 3 + keys..sent.len() {
                let _ = send(&scene, &acquire).await;
                let mut wrong = sent.clone();
                nonsense.clone_into(&mut wrong[index]);
                let _ = send(&scene, &wrong).await;
                scene.assert_leased(&format!("held: {wrong:?}")).await;
                scene.server.cmd(&["FLUSHALL"]).await;
            }
        }
    }
    drop(other);
}

/// The digests of the kind's scripts, with their files.
fn scripts(kind: &Kind) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut scripts = BTreeMap::new();
    for folder in fs::read_dir(&root).expect("lua/") {
        let folder = folder.expect("a folder").path();
        for file in fs::read_dir(&folder).expect("a folder of scripts") {
            let path = file.expect("a script").path();
            let shown = path.strip_prefix(&root).expect("in lua/");
            let shown = shown.to_string_lossy().replace('\\', "/");
            if kind.lua.iter().any(|prefix| shown.starts_with(prefix)) {
                let text = redis::Script::new(&script(&shown));
                scripts.insert(text.get_hash().to_owned(), shown);
            }
        }
    }
    assert!(!scripts.is_empty(), "{} has scripts", kind.name);
    scripts
}

/// So none escapes the assertions here.
async fn every_script_of_the_kind_is_seen(kind: &'static Kind) {
    let (scene, proxy) = Scene::proxied(kind, |it| it.watchdog_lease(SHORT)).await;
    let record = Record::of(&proxy, "life");
    let mut seen = Vec::new();
    life(&scene, &record, async |_, sent| seen.extend(sent)).await;
    // One waits, gives up, and the holder's lease is renewed.
    let other = through(&proxy).connect().await.unwrap();
    let rival = scene.rival(&other, "life").lock().await.unwrap();
    let lock = scene.lock("life");
    let waited = lock.try_lock(ms(200), Lease::Watchdog).await;
    assert!(waited.unwrap().is_none());
    rival.unlock().await.unwrap();
    let guard = lock.lock().await.unwrap();
    for (digest, file) in scripts(kind) {
        let why = kind.elsewhere.iter().find(|(of, _)| *of == file);
        if let Some((_, Because(why))) = why {
            println!("{file}: {why}");
            continue;
        }
        eventually(&format!("{file} is called"), LONG, async || {
            seen.extend(record.take());
            seen.iter().any(|sent| sent[1] == digest)
        })
        .await;
    }
    guard.unlock().await.unwrap();
}
