//! The command that `run` runs.
//!
//! On Linux the command does not outlive `run`. `run` starts itself as a *shim*, which asks the kernel for KILL at the death
//! of the thread that started it (so only the main thread may start it), makes sure that `run` is still its parent, and
//! executes the command in its own place. The shim has a name of its own until then: a process that ends under this name
//! has executed nothing, and its status is the number of the error.
//!
//! Without a terminal the command leads a process group, and gets signals together with its children. With one it stays in
//! the group of `run`, or else the shell's job control would stop it.

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, Command, ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::process::{getpgid, kill_process, kill_process_group, waitid};

/// The first argument of the shim.
const SHIM: &str = "__execute-under";
/// What the kernel calls the shim: 15 bytes at most.
const SHIM_NAME: &CStr = c"watchlock:shim";

/// Becomes the command, if this process was started as a shim. Returns only when that fails.
pub(crate) fn shim() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != SHIM {
        return None;
    }
    let parent = arguments.next()?.into_string().ok()?.parse().ok()?;
    let command = arguments.next()?;
    let error = execute(parent, &command, arguments);
    let number = error.raw_os_error().and_then(|raw| u8::try_from(raw).ok());
    Some(number.unwrap_or(u8::MAX).into())
}

fn execute(
    parent: i32,
    command: &OsString,
    arguments: impl Iterator<Item = OsString>,
) -> io::Error {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getppid, set_parent_process_death_signal};
        // Not by /proc, which may be read-only.
        if let Err(error) = rustix::thread::set_name(SHIM_NAME) {
            return error.into();
        }
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return error.into();
        }
        // It may have died before, and then nobody would send the signal.
        if getppid().is_none_or(|pid| pid.as_raw_nonzero().get() != parent) {
            return rustix::io::Errno::SRCH.into();
        }
    }
    let _ = parent;
    Command::new(command).args(arguments).exec()
}

/// A command that runs.
pub(super) struct Child {
    process: Process,
    pid: Pid,
    leads_group: bool,
}

/// What changes in the environment; without a value a variable is removed.
pub(super) type Environment = [(&'static str, Option<String>)];

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Exited(i32),
    Killed(i32),
    /// It could not be executed: the number of the error.
    NotStarted(i32),
}

/// Whether this process has a terminal, which may stop and end groups of processes.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

impl Child {
    /// Call it from the main thread.
    pub(super) fn start(command: &[OsString], environment: &Environment) -> io::Result<Self> {
        let leads_group = !has_terminal();
        let mut starting = under_shim(command);
        for (name, value) in environment {
            match value {
                Some(value) => starting.env(name, value),
                None => starting.env_remove(name),
            };
        }
        if leads_group {
            starting.process_group(0);
        }
        let process = starting.spawn()?;
        Ok(Self {
            pid: Pid::from_child(&process),
            process,
            leads_group,
        })
    }

    /// Sends a signal to the command, and to its group if it leads one.
    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended: then there is nothing left to do.
        if self.leads_group {
            let _ = kill_process_group(self.pid, signal);
        }
        // It may have left the group.
        if !self.leads_group || getpgid(Some(self.pid)) != Ok(self.pid) {
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Passes on a signal that `run` got. The terminal sends some of them to both.
    pub(super) fn pass(&self, signal: Signal) {
        let both = [Signal::INT, Signal::QUIT, Signal::WINCH].contains(&signal);
        if self.leads_group || !both {
            self.signal(signal);
        }
    }

    /// Whether it has ended. It stays a zombie until [`Self::end`], so nobody else gets its id.
    pub(super) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that it is gone.
        !matches!(waitid(WaitId::Pid(self.pid), options), Ok(None))
    }

    /// Whether others of the group that it leads run on.
    pub(super) fn leaves_others(&self) -> bool {
        let group = self.pid.as_raw_nonzero().to_string();
        let Ok(processes) = std::fs::read_dir("/proc") else {
            // They may: the system does not say.
            return self.leads_group;
        };
        self.leads_group
            && processes.flatten().any(|process| {
                let stat = std::fs::read_to_string(process.path().join("stat"));
                stat.is_ok_and(|stat| runs_in(&stat, &group))
            })
    }

    /// How it ended; waits for it. With `leftovers` what is left of its group is killed.
    pub(super) fn end(mut self, leftovers: bool) -> io::Result<End> {
        if leftovers && self.leads_group {
            self.signal(Signal::KILL);
        }
        let name = std::fs::read(format!("/proc/{}/comm", self.process.id()));
        // What cannot be read belongs to somebody else, so it was executed.
        let executed =
            name.is_err() || name.is_ok_and(|name| name.trim_ascii_end() != SHIM_NAME.to_bytes());
        Ok(end_of(self.process.wait()?, executed))
    }
}

/// Whether a process with this `/proc/PID/stat` runs in a group.
fn runs_in(stat: &str, group: &str) -> bool {
    // Behind the name, which may hold anything: state, parent, group.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let fields: Vec<_> = behind.split_whitespace().take(3).collect();
    matches!(fields.as_slice(), [state, _, of] if *of == group && !matches!(*state, "Z" | "X"))
}

fn end_of(status: ExitStatus, executed: bool) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) if executed => End::Exited(code),
        (Some(number), _) => End::NotStarted(number),
        (None, signal) => End::Killed(signal.unwrap_or(0)),
    }
}

fn under_shim(command: &[OsString]) -> Command {
    if cfg!(target_os = "linux") {
        // The program of this process, also when another one has its path by now.
        let mut shim = Command::new("/proc/self/exe");
        shim.arg0("watchlock").arg(SHIM);
        shim.arg(std::process::id().to_string()).args(command);
        return shim;
    }
    let mut words = command.iter();
    let mut plain = Command::new(words.next().map_or(&OsString::new(), |word| word));
    plain.args(words);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_in_a_group_unless_it_is_a_zombie() {
        assert!(runs_in("12 (a) b) S 1 7 7 0 -1", "7"));
        assert!(!runs_in("12 (sh) S 7 8 7 0 -1", "7"));
        assert!(!runs_in("12 (sh) Z 1 7 7 0 -1", "7"));
        assert!(!runs_in("", "7"));
    }
}
