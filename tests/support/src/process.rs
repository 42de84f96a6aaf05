//! Signals to processes of ours, and the leash that ends them together with their owner.
//!
//! A test may be killed with -9, so no destructor can be relied on. The kernel closes a dead process's pipes, though:
//! a tiny shell reads from a pipe whose other end only the owner holds, and kills the process when the pipe closes.
//! (`PR_SET_PDEATHSIG` would fire when the *thread* that started the process ends, which a test's thread may do early.)
//! It ignores what a closed terminal, or the kernel for a group without parents, sends to the owner and to all it started.

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_until;

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Sends SIGKILL; nothing happens if the process has ended.
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Sends SIGSTOP and returns when the process has stopped.
///
/// # Panics
/// If the process does not stop within five seconds.
pub fn freeze(pid: u32) {
    send(pid, Signal::STOP);
    wait_until("the process stands still", STOP_DEADLINE, || {
        matches!(state(pid), Some('T' | 'Z') | None)
    });
}

/// Sends SIGCONT.
pub fn resume(pid: u32) {
    send(pid, Signal::CONT);
}

/// Whether the process exists and is not a zombie.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The process may have ended by itself: then there is nothing left to do.
        let _ = kill_process(pid, signal);
    }
}

/// The state letter of `/proc/<pid>/stat`, which follows the name in brackets.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A command that runs `program` and dies with the owner of its standard input.
///
/// The shell becomes the program, so the child's id is the program's: there is no moment at which it runs unleashed.
pub(crate) fn leashed(program: &std::path::Path) -> Command {
    const SCRIPT: &str = r#"
        exec 3<&0
        (trap "" HUP INT TERM; read _ <&3; kill -9 $$) &
        exec 3<&-
        exec "$0" "$@" </dev/null"#;
    let mut command = Command::new("sh");
    command.arg("-c").arg(SCRIPT).arg(program);
    command.stdin(Stdio::piped());
    command
}

/// Kills a process when its owner is gone, for processes whose standard input is needed otherwise.
#[derive(Debug)]
pub(crate) struct Leash(Child);

impl Leash {
    pub(crate) fn on(pid: u32) -> io::Result<Self> {
        Command::new("sh")
            .args([
                "-c",
                r#"trap "" HUP INT TERM; read _; kill -9 "$0""#,
                &pid.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
    }
}

impl Drop for Leash {
    /// Lets go without killing; drop it before the process is reaped, while nobody else can have its id.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
