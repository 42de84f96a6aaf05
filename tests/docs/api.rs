//! What is public: types can be shared and sent, and their documentation shows how to use them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use watchlock::{
    Backoff, Client, ClientBuilder, Clock, ClockDriver, ConfigError, Ended, Error, GuardError,
    HoldView, Lease, LeaseError, Lock, LockExt, LockGuard, LockInfo, LostReason, MultiLock, Owner,
    Quorum, ReentrantLock, SetError, ShutdownReport, Ttl,
};

fn shared<T: Send + Sync + 'static>() {}

fn sent<T: Send>(_: T) {}

#[test]
fn every_public_type_is_send_and_sync() {
    shared::<Backoff>();
    shared::<Client>();
    shared::<ClientBuilder>();
    shared::<Clock>();
    shared::<ClockDriver>();
    shared::<ConfigError>();
    shared::<Ended>();
    shared::<Error>();
    shared::<GuardError>();
    shared::<HoldView>();
    shared::<Lease>();
    shared::<LeaseError>();
    shared::<Box<dyn Lock>>();
    shared::<LockGuard>();
    shared::<LostReason>();
    shared::<LockInfo>();
    shared::<MultiLock>();
    shared::<Owner>();
    shared::<ReentrantLock>();
    shared::<SetError>();
    shared::<ShutdownReport>();
    shared::<Ttl>();
}

/// Never called: the test is that it compiles.
#[expect(dead_code, reason = "what is looked at is its types")]
fn every_future_can_be_spawned(client: &Client, lock: &ReentrantLock, guard: LockGuard) {
    let second = Duration::from_secs(1);
    sent(Client::connect(""));
    sent(client.scope(async {}));
    sent(client.new_owner().scope(async {}));
    sent(client.shutdown(second));
    sent(client.shutting_down());
    sent(lock.lock());
    sent(lock.lock_with_lease(second));
    sent(lock.try_lock(second, second));
    sent(lock.unlock());
    sent(lock.is_locked());
    sent(lock.remain_time_to_live());
    sent(lock.force_unlock());
    sent(guard.lost());
    sent(guard.hold().lost());
    sent(guard.hold().ended());
    sent(guard.verify());
    sent(guard.reenter(second));
    sent(guard.extend(second));
    sent(guard.unlock());
}

/// Never called, either.
#[expect(dead_code, reason = "what is looked at is its types")]
fn every_future_of_several_locks_can_be_spawned(several: &MultiLock) {
    let second = Duration::from_secs(1);
    sent(several.lock());
    sent(several.lock_with_lease(second));
    sent(several.try_lock(second, second));
    sent(several.unlock());
    sent(several.is_locked());
    sent(several.remain_time_to_live());
    sent(several.force_unlock());
}

/// The sources of `folder`, joined. Without what blocks, which is named as what waits, and documented there.
fn sources(folder: &Path) -> String {
    let mut code = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            code.push_str(&sources(&path));
        } else if !path.ends_with("blocking.rs") {
            code.push_str(&fs::read_to_string(path).expect("a source"));
        }
    }
    code
}

/// The documentation of each public type of `code`, by the type's name.
fn documented(code: &str) -> BTreeMap<String, String> {
    let mut documented = BTreeMap::new();
    let mut docs = String::new();
    for line in code.lines() {
        if let Some(doc) = line.strip_prefix("///") {
            docs.push_str(doc);
            docs.push('\n');
        } else if let Some(item) = line.strip_prefix("pub ") {
            let mut words = item.split(|c: char| !c.is_alphanumeric());
            let kind = words.next().unwrap_or_default();
            if ["struct", "enum", "trait", "type"].contains(&kind) {
                let name = words.next().unwrap_or_default().to_owned();
                documented.insert(name, std::mem::take(&mut docs));
            }
        } else if !line.starts_with('#') && !line.starts_with([' ', ')']) {
            docs.clear();
        }
    }
    documented
}

#[test]
fn what_people_search_for_is_found() {
    let code = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for word in [
        "acquire",
        "leader",
        "mutex",
        "redlock",
        "semaphore",
        "timeout",
    ] {
        let alias = format!("#[doc(alias = \"{word}\")]");
        assert!(code.contains(&alias), "{word}");
    }
}

/// Code that asks only whether it got in drops the guard, and the compiler says nothing.
#[test]
fn every_try_lock_says_to_bind_the_guard() {
    let code = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let mut checked = 0;
    for (at, _) in code.match_indices("async fn try_lock(") {
        let docs = code[..at].rsplit("\n\n").next().unwrap_or_default();
        let is_code = !docs
            .lines()
            .last()
            .is_some_and(|line| line.starts_with("///"));
        if is_code && docs.contains("///") {
            assert!(docs.contains("let Some(guard)"), "{docs}");
            checked += 1;
        }
    }
    assert_eq!(checked, 2, "handle and trait");
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/porting-from-redisson.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    assert!(guide.contains("?.is_some() {") && guide.contains("let Some(guard) ="));
}

/// Never called: the test is that it compiles.
#[expect(dead_code, reason = "what is looked at is its types")]
fn names_are_any_text(client: &Client, quorum: &Quorum, name: String, shared: Arc<str>) {
    sent(Client::connect(format!("redis://{name}/")));
    let _ = Client::builder(&name).key_prefix(name.clone());
    drop((client.get_lock("x"), client.get_lock(&name)));
    drop((
        client.get_fair_lock(&shared),
        client.new_owner().get_lock(&*shared),
    ));
    drop((
        quorum.get_lock(Arc::clone(&shared)),
        quorum.new_owner().get_lock(shared),
    ));
    drop(client.get_read_write_lock(name));
}

/// Never called, either: `run` for every lock, in a task, too.
#[expect(dead_code, reason = "what is looked at is its types")]
async fn every_lock_runs(any: Arc<dyn Lock>, boxed: Box<dyn Lock>, own: impl Lock) {
    let body = async |guard: &LockGuard| guard.name().len();
    let second = Duration::from_secs(1);
    sent(any.run(body));
    sent(any.try_run(second, Lease::Watchdog, body));
    sent((*boxed).run(body));
    sent(boxed.run(body));
    sent(own.run(body));
    let task = tokio::spawn(async move { any.run(async |_| ()).await });
    drop(task.await);
}

#[test]
fn every_public_type_has_an_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documented = documented(&sources(&root.join("src")));
    let table = fs::read_to_string(root.join("src/lib.rs")).expect("the table of contents");
    let exports = table.split("pub use ").skip(1);
    let names = exports.flat_map(|export| {
        let list = export.split(';').next().unwrap_or_default();
        let words = list.split(|c: char| !c.is_alphanumeric());
        words.filter(|word| word.starts_with(char::is_uppercase))
    });
    let mut checked = 0;
    for name in names {
        let docs = documented.get(name);
        let docs = docs.unwrap_or_else(|| panic!("{name} is not found"));
        assert!(docs.contains("```"), "{name} has no example");
        checked += 1;
    }
    assert!(checked >= 18, "the types were found");
}
