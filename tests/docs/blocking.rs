//! What blocks is all that waits: every async method has a blocking one, and every method that makes something of these.

use std::collections::BTreeSet;

use crate::text;

/// The public functions of these files that `is_meant` accepts, by the text from their name to their body.
fn functions(files: &[&str], is_meant: fn(&str) -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files {
        let text = text(file);
        let lines = text.lines().map(str::trim_start);
        let code = lines.collect::<Vec<_>>().join("\n");
        for line in code.split("\npub ").skip(1) {
            let head = line.split(['{', ';']).next().unwrap_or_default();
            let name = head.split("fn ").nth(1).and_then(|rest| {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
                // That of a macro has a `$`.
                (end > 0).then(|| rest[..end].to_owned())
            });
            if is_meant(head) {
                found.extend(name);
            }
        }
    }
    found
}

#[test]
fn every_method_that_waits_has_one_that_blocks() {
    let files = [
        "src/client/mod.rs",
        "src/client/quorum.rs",
        "src/client/builder.rs",
        "src/lock/election.rs",
        "src/lock/guard.rs",
        "src/lock/handle.rs",
        "src/lock/inspect.rs",
        "src/lock/latch.rs",
        "src/lock/owner.rs",
        "src/lock/semaphore.rs",
        "src/lock/view.rs",
        "src/lock/kinds/guard_of.rs",
        "src/lock/kinds/plain.rs",
        "src/lock/kinds/read_write.rs",
        "src/lock/quorum/handle.rs",
    ];
    let mut waits = functions(&files, |head| {
        let makes = ["fn get_", "fn new_owner", "fn read_lock", "fn write_lock"];
        let waits = head.contains("async fn") || head.contains("impl Future");
        // They give the guard away.
        let takes = head.contains("-> Result<(), GuardError>");
        waits || takes || makes.iter().any(|word| head.contains(word))
    });
    // A thread is no owner.
    assert!(waits.remove("scope"));
    let blocks = functions(&["src/blocking.rs"], |_| true);
    let mut own: BTreeSet<_> = blocks.difference(&waits).map(String::as_str).collect();
    for known in [
        "connect_blocking",
        "into_async",
        "lost_within",
        "wait_within",
        "with_permits",
    ] {
        assert!(own.remove(known), "{known}");
    }
    assert!(own.is_empty(), "without an async one: {own:?}");
    let missing: Vec<_> = waits.difference(&blocks).collect();
    assert!(missing.is_empty(), "without a blocking one: {missing:?}");
}
