//! Where the workers' binaries are.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

static RUST_WORKER: LazyLock<PathBuf> =
    LazyLock::new(|| named().unwrap_or_else(|| EXAMPLE.beside_or_built()));
static PLAIN_WORKER: LazyLock<PathBuf> = LazyLock::new(|| PLAIN.beside_or_built());

/// The name of a binary that cargo builds, and its folder below that of the profile.
struct Target {
    folder: &'static str,
    name: &'static str,
    selected_by: [&'static str; 4],
}

/// `cargo test` builds the examples as well: `target/debug/examples/worker`, for a test in `target/debug/deps`.
const EXAMPLE: Target = Target {
    folder: "examples",
    name: "worker",
    selected_by: ["--package", "watchlock", "--example", "worker"],
};
const PLAIN: Target = Target {
    folder: "",
    name: "plain-worker",
    selected_by: ["--package", "watchlock-support", "--bin", "plain-worker"],
};

pub(super) fn rust_worker() -> &'static Path {
    &RUST_WORKER
}

pub(super) fn plain_worker() -> &'static Path {
    &PLAIN_WORKER
}

fn named() -> Option<PathBuf> {
    let path = PathBuf::from(env::var_os("WATCHLOCK_WORKER")?);
    let shown = path.display();
    assert!(path.is_file(), "WATCHLOCK_WORKER names no file: {shown}");
    Some(path)
}

impl Target {
    fn beside_or_built(&self) -> PathBuf {
        self.beside().unwrap_or_else(|| self.build())
    }

    fn beside(&self) -> Option<PathBuf> {
        let exe = env::current_exe().ok()?;
        let folders = exe.ancestors().skip(1).take(2);
        folders
            .map(|folder| folder.join(self.folder).join(self.name))
            .find(|worker| worker.is_file())
    }

    fn build(&self) -> PathBuf {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet"]).args(self.selected_by);
        command.args(["--message-format", "json"]).current_dir(root);
        if !cfg!(debug_assertions) {
            command.arg("--release");
        }
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{} cannot be built", self.name);
        let messages = String::from_utf8_lossy(&output.stdout);
        messages
            .lines()
            .find_map(|message| self.executable(message))
            .expect("cargo says where the worker is")
    }

    fn executable(&self, message: &str) -> Option<PathBuf> {
        let message: Value = serde_json::from_str(message).ok()?;
        (message["target"]["name"] == self.name)
            .then(|| message["executable"].as_str().map(PathBuf::from))
            .flatten()
    }
}
