//! Tests that need a process of their own: they run the test program again, for one test that is otherwise ignored.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs `test` alone, with additions to its environment, and fails if it fails.
pub(crate) fn run(test: &str, environment: &[(&str, &Path)]) {
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(
            environment
                .iter()
                .map(|(name, value)| (name, OsStr::new(value))),
        )
        .stdin(Stdio::null())
        .output()
        .expect("this program starts again");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{said}\n{complained}");
    assert!(said.contains("1 passed"), "{test} did not run:\n{said}");
}
