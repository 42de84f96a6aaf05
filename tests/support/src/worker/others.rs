//! The workers on other libraries, the Java one on the real Redisson and the Go one on the real redsync; each is built
//! once.
//!
//! Where a tool is missing (a JDK, Maven, Go) a test that wants one says so and skips, except with `CI=true`: there
//! it fails.

use std::io::Write as _;
use std::process::Command;
use std::sync::LazyLock;

/// The script that builds the peer, or runs it: its first argument is the Redisson version.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/interop-peer.sh");
/// The same for redsync.
const REDSYNC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/redsync-peer.sh");
/// Its exit status when tools are missing.
const TOOLS_MISSING: i32 = 69;

/// The command that runs the worker, on the Redisson that `INTEROP_REDISSON` names (4).
static JAVA_WORKER: LazyLock<Option<[String; 2]>> = LazyLock::new(|| {
    let redisson = std::env::var("INTEROP_REDISSON").unwrap_or_else(|_| "4".to_owned());
    build("Redisson", SCRIPT, &[&redisson]).then(|| [SCRIPT.to_owned(), redisson])
});

static REDSYNC_WORKER: LazyLock<Option<[&str; 1]>> =
    LazyLock::new(|| build("redsync", REDSYNC, &[]).then_some([REDSYNC]));

pub(super) fn redsync_worker() -> Option<&'static [&'static str; 1]> {
    REDSYNC_WORKER.as_ref()
}

pub(super) fn java_worker() -> Option<&'static [String; 2]> {
    JAVA_WORKER.as_ref()
}

fn build(library: &str, script: &str, which: &[&str]) -> bool {
    let output = Command::new(script)
        .args(which)
        .arg("--build")
        .output()
        .expect("the build script can be run");
    if output.status.success() {
        return true;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let strict = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        output.status.code() == Some(TOOLS_MISSING) && !strict,
        "the peer on {library} could not be built:\n{said}"
    );
    // Not with `eprintln!`, whose output the test harness captures.
    let _ = writeln!(
        std::io::stderr(),
        "\nSKIPPED, all tests against {library}: {said}"
    );
    false
}
