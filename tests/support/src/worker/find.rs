//! Where the Rust worker's binary is.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

static RUST_WORKER: LazyLock<PathBuf> =
    LazyLock::new(|| named().or_else(beside).unwrap_or_else(build));

pub(super) fn rust_worker() -> &'static Path {
    &RUST_WORKER
}

fn named() -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os("WATCHLOCK_WORKER")?);
    let shown = path.display();
    assert!(path.is_file(), "WATCHLOCK_WORKER names no file: {shown}");
    Some(path)
}

/// `cargo test` builds the examples along: `target/debug/examples/worker`, for a test in `target/debug/deps`.
fn beside() -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let folders = exe.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join("examples").join("worker"))
        .find(|worker| worker.is_file())
}

fn build() -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--example", "worker"]);
    command.args(["--message-format", "json"]).current_dir(root);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "the worker cannot be built");
    let messages = String::from_utf8_lossy(&output.stdout);
    messages
        .lines()
        .find_map(executable)
        .expect("cargo says where the worker is")
}

fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    (message["target"]["name"] == "worker")
        .then(|| message["executable"].as_str().map(PathBuf::from))
        .flatten()
}
