//! What is public: types can be shared and sent, and their documentation shows how to use them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use watchlock::{
    Backoff, Client, ClientBuilder, Clock, ClockDriver, ConfigError, Error, GuardError, HoldView,
    Lease, LeaseError, Lock, LockGuard, LockInfo, LostReason, MultiLock, Owner, ReentrantLock,
    SetError, ShutdownReport, Ttl,
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
    sent(lock.lock());
    sent(lock.lock_with_lease(second));
    sent(lock.try_lock(second, second));
    sent(lock.unlock());
    sent(lock.is_locked());
    sent(lock.remain_time_to_live());
    sent(lock.force_unlock());
    sent(guard.lost());
    sent(guard.hold().lost());
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

/// The sources of `folder`, joined.
fn sources(folder: &Path) -> String {
    let mut code = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            code.push_str(&sources(&path));
        } else {
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
