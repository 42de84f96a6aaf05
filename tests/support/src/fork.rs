//! A child by `fork`: a copy of this process without its other threads.
//!
//! The child must not use the test harness, nor anything that another thread may have locked in that moment. So
//! it reports through a pipe, and ends by a signal that runs nothing.

use std::io::{Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

use fork::{Fork, fork, waitpid};

use crate::process::kill;

/// Runs `body` in a forked child, and returns what it says.
///
/// # Errors
/// What `body` fails with; or that it panicked, or was not done within `deadline`.
///
/// # Panics
/// If there is no pipe or no child to be had.
pub fn in_child(
    deadline: Duration,
    body: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let (mut from_child, mut to_parent) = pipe().expect("a pipe");
    let child = match fork().expect("a child") {
        Fork::Parent(child) => child,
        Fork::Child => {
            let said = catch_unwind(AssertUnwindSafe(body));
            let said = said.unwrap_or_else(|_| Err("it panicked".to_owned()));
            let said = said.map_or_else(|error| format!("in the child: {error}"), |()| DONE.into());
            // The parent sees by the missing word that this failed.
            let _ = to_parent.write_all(said.as_bytes());
            kill(std::process::id());
            loop {
                std::thread::park();
            }
        }
    };
    drop(to_parent);
    let (send, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut said = String::new();
        let read = from_child.read_to_string(&mut said);
        // The test may have given up.
        let _ = send.send(read.map(|_| said));
    });
    let said = said.recv_timeout(deadline);
    kill(u32::try_from(child).expect("a process id"));
    waitpid(child).expect("our own child");
    match said {
        Ok(Ok(said)) if said == DONE => Ok(()),
        Ok(Ok(said)) => Err(said),
        Ok(Err(error)) => Err(format!("not heard: {error}")),
        Err(_) => Err(format!("not done within {deadline:?}")),
    }
}

const DONE: &str = "done";
