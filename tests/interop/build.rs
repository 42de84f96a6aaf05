//! Builds the Java peer, once.
//!
//! Where there is no JDK or no Maven every test says so and does nothing, except with `CI=true`: there it fails.

use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;

/// Builds the peer, or becomes it: the first argument is the Redisson version.
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/interop-peer.sh");
/// What it ends with when tools are missing.
const TOOLS_MISSING: i32 = 69;

/// Whether the peer can be run here; always with the same version.
pub(crate) fn is_built(redisson: &str) -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| build(redisson))
}

fn build(redisson: &str) -> bool {
    let output = Command::new(SCRIPT)
        .args([redisson, "--build"])
        .output()
        .expect("the build script can be run");
    if output.status.success() {
        return true;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let strict = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(
        output.status.code() == Some(TOOLS_MISSING) && !strict,
        "the Java peer could not be built:\n{said}"
    );
    // Not by `eprintln!`, which the test harness keeps for itself.
    let _ = writeln!(
        std::io::stderr(),
        "\nSKIPPED, all tests against Redisson: {said}"
    );
    false
}
