//! The process of a server: found, started, killed.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use parking_lot::Mutex;

use crate::process::leashed;

/// What is needed to start the process again and again.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) binary: PathBuf,
    pub(super) config: PathBuf,
    /// The arguments after the configuration's path.
    pub(super) arguments: &'static [&'static str],
    pub(super) log: PathBuf,
}

/// The process of a server; killed and launched through a shared reference, for threads that inject faults.
#[derive(Debug)]
pub(super) struct Process {
    launch: Launch,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    leash: Option<ChildStdin>,
}

impl Process {
    pub(super) fn new(launch: Launch) -> Self {
        Self {
            launch,
            running: Mutex::new(None),
        }
    }

    pub(super) fn launch(&self) {
        let mut running = self.running.lock();
        assert!(running.is_none(), "the server is running already");
        let log = self.log_file();
        let mut child = leashed(&self.launch.binary)
            .arg(&self.launch.config)
            .args(self.launch.arguments)
            .stdout(log.try_clone().expect("the log can be shared"))
            .stderr(log)
            .spawn()
            .expect("a shell starts redis-server");
        let leash = child.stdin.take();
        *running = Some(Running { child, leash });
    }

    pub(super) fn kill(&self) {
        if let Some(mut running) = self.running.lock().take() {
            // Until the child is reaped, nobody else can have its id.
            let _ = running.child.kill();
            drop(running.leash.take());
            let _ = running.child.wait();
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.running
            .lock()
            .as_ref()
            .map(|running| running.child.id())
    }

    pub(super) fn is_running(&self) -> bool {
        let mut running = self.running.lock();
        running
            .as_mut()
            .is_some_and(|running| matches!(running.child.try_wait(), Ok(None)))
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.launch.log).unwrap_or_default()
    }

    fn log_file(&self) -> File {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.launch.log)
            .expect("the log of redis-server can be written")
    }
}

/// The server binary: `REDIS_SERVER`, else on the `PATH`, else in the usual folders.
pub(super) fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("REDIS_SERVER") {
        let named = PathBuf::from(named);
        assert!(
            named.is_file(),
            "REDIS_SERVER names no file: {}",
            named.display()
        );
        return named;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin", "/usr/local/bin"].map(PathBuf::from))
        .map(|folder| folder.join("redis-server"))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("{}", missing()))
}

pub(super) fn version() -> String {
    let output = Command::new(binary())
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .expect("redis-server --version runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub(super) fn is_before_7() -> bool {
    version().contains("v=6.")
}

fn missing() -> String {
    let line = "=".repeat(72);
    let advice = "These tests need a real redis-server, and there is none.\n\
                  Install it (apt-get install redis-server), or set REDIS_SERVER to the binary.";
    format!("\n{line}\n{advice}\n{line}")
}
