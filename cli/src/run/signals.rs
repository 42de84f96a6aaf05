//! The signals that `run` gets: while it waits they end the wait, later most of them are for its command.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const CAUGHT: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

pub(super) struct Signals(UnboundedReceiver<Signal>);

impl Signals {
    /// Catches signals from now on, except those that this process was started to ignore, as by `nohup`: its command ignores
    /// them too.
    pub(super) fn catch() -> io::Result<Self> {
        let (sender, receiver) = unbounded_channel();
        let ignored = ignored();
        for caught in CAUGHT {
            if ignored >> (caught.as_raw() - 1) & 1 == 1 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(caught.as_raw()))?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() && sender.send(caught).is_ok() {}
            });
        }
        // All may be ignored; the channel must not end then.
        tokio::spawn(async move { sender.closed().await });
        Ok(Self(receiver))
    }

    /// The next one. Cancel safe: none gets lost.
    pub(super) async fn next(&mut self) -> Signal {
        match self.0.recv().await {
            Some(signal) => signal,
            // Never: the tasks live as long as the runtime.
            None => std::future::pending().await,
        }
    }

    /// The next one that ends a program which does not catch it.
    pub(super) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::WINCH {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores, a bit each; none where the system does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
