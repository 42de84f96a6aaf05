//! The program under test as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use watchlock_support::server::RedisServer;
use watchlock_support::{process, wait_until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A command that says that it runs, and ends with status 0 when its input does.
pub(crate) const UNTIL_EOF: [&str; 3] = ["sh", "-c", "echo ready; cat >/dev/null"];

/// A shell that runs tests in the background makes them ignore these, and `run` leaves ignored what it finds ignored.
pub(crate) const HEEDING_SIGNALS: [&str; 2] = ["env", "--default-signal=INT,QUIT"];

/// `watchlock` with these arguments, without a terminal, and without variables of the caller.
pub(crate) fn watchlock(arguments: &[&str]) -> Command {
    let mut command = Command::new("setsid");
    command.args(HEEDING_SIGNALS);
    command.arg(env!("CARGO_BIN_EXE_watchlock")).args(arguments);
    for name in ["URL", "SERVER_URL", "NAME", "HOLD", "TOKEN", "HELD"] {
        command.env_remove(format!("WATCHLOCK_{name}"));
    }
    command.stdin(Stdio::null());
    command
}

/// `watchlock COMMAND` at a server.
pub(crate) fn at(server: &RedisServer, arguments: &[&str]) -> Command {
    let mut command = watchlock(arguments);
    command.env("WATCHLOCK_URL", server.url());
    command
}

/// What a program said and ended with.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a program to its end.
pub(crate) fn said(command: &mut Command) -> Said {
    let output = command.output().expect("it starts");
    Said {
        status: number(output.status),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

/// As shells show it.
fn number(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.signal().map(|signal| signal + 1000);
    status.code().or(signal).expect("it ended")
}

/// A program that runs; killed when dropped.
pub(crate) struct Job {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    err: Option<JoinHandle<String>>,
}

impl Job {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stderr(Stdio::piped());
        let mut job = Self::start_with_stderr(command);
        let mut err = job.child.stderr.take().expect("piped");
        job.err = Some(std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        }));
        job
    }

    /// With the stderr that `command` has already.
    pub(crate) fn start_with_stderr(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let out = child.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            lines,
            err: None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("a line of output")
    }

    /// The next line that it has printed already.
    pub(crate) fn next_line(&self) -> Option<String> {
        self.lines.recv_timeout(Duration::from_secs(1)).ok()
    }

    /// A process id that it prints, behind lines that begin with a `t`.
    pub(crate) fn pid_line(&self) -> u32 {
        loop {
            let line = self.line();
            if !line.starts_with('t') {
                return line.parse().expect("a process id");
            }
        }
    }

    pub(crate) fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("open");
        writeln!(input, "{line}").expect("it reads");
    }

    /// Ends its input.
    pub(crate) fn close(&mut self) {
        self.input = None;
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        !process::is_alive(self.pid())
    }

    /// Waits for its end; its status, and what it said on stderr.
    pub(crate) fn end(&mut self) -> (i32, String) {
        wait_until("the program ends", PATIENCE, || {
            self.child.try_wait().expect("it is ours").is_some()
        });
        let status = number(self.child.wait().expect("it is ours"));
        let err = self.err.take().map(|err| err.join().expect("it reads"));
        (status, err.unwrap_or_default())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("sh")
        .args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()])
        .status();
    assert!(status.expect("a shell").success(), "kill -{name} {pid}");
}

pub(crate) fn gone(pid: u32) {
    wait_until("the process is gone", PATIENCE, || !process::is_alive(pid));
}
