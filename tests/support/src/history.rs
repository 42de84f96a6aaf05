//! What happened to the locks, line by line.
//!
//! A history is a list of [`Record`]s: an operation has one at its invoke and one at its return; the signals, the
//! faults and what was found in Redis are records in between. All times are nanoseconds of `CLOCK_MONOTONIC`, which on
//! Linux is the same clock in every process, so that records of different processes can be compared.
//!
//! 1. Operations of one owner on one name follow each other; those of different owners overlap.
//! 2. An operation without a return is *unknown*: its process was killed, or the history ended.
//! 3. The interval of a fault covers all the time in which it could disturb: from before it was set up to after it was
//!    removed.

mod kind;

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use kind::LockKind;

use crate::now_ns;

/// A moment or a length: nanoseconds, of `CLOCK_MONOTONIC` for a moment.
pub type Nanos = u64;

/// A millisecond.
pub const MS: Nanos = 1_000_000;

/// What an operation asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// A lock or a re-entry.
    Acquire {
        /// How long it may wait, ms; `None`: for ever.
        wait_ms: Option<u64>,
        /// The fixed lease, ms; `None`: kept alive by the watchdog.
        lease_ms: Option<u64>,
    },
    /// Gives a level back and waits for the answer.
    Release,
    /// Gives a level back without waiting, as a dropped guard does.
    Drop,
}

/// How an operation returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A level was acquired; the hold count with it.
    Acquired(u32),
    /// Somebody else holds the lock.
    Busy,
    /// A level was given back; the levels left.
    Released(u32),
    /// An error, by its kind: `lost`, `not_owner`, `unavailable`, …
    Failed(String),
    /// The caller gave up waiting for the answer (dropped the future).
    Cancelled,
}

/// Whom a fault disturbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Every client: a fault of the server.
    All,
    /// Every client: a server did not answer for so long. If a fault of a server is recorded for that time, it was the
    /// cause; otherwise whatever is due by the clock may be late by as much.
    Answer,
    /// Every client: the machine stood still, and whatever is due by the clock may be late by as much.
    Machine,
    /// One client: a fault of its process or its link.
    Client(u32),
}

/// One line of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// An operation starts.
    Invoke {
        /// When it was asked for.
        t: Nanos,
        /// Its number, unique in the history.
        op: u64,
        /// The client (one incarnation of a process) it runs in.
        client: u32,
        /// The owner within the client.
        owner: u32,
        /// What kind of lock it is.
        #[serde(default)]
        kind: LockKind,
        /// The lock.
        name: String,
        /// What it asks for.
        call: Call,
    },
    /// An operation ends.
    Return {
        /// When it returned.
        t: Nanos,
        /// Its number.
        op: u64,
        /// When it really began, if the client reports it more exactly than the invoke.
        since: Option<Nanos>,
        /// How it ended.
        outcome: Outcome,
        /// The fencing token of a hold that was acquired, if it has one.
        #[serde(default)]
        token: Option<u64>,
    },
    /// A client reports that a hold is no longer certain.
    Lost {
        /// When it was reported.
        t: Nanos,
        /// The client.
        client: u32,
        /// The owner within the client.
        owner: u32,
        /// What kind of lock it is.
        #[serde(default)]
        kind: LockKind,
        /// The lock.
        name: String,
        /// The reason given.
        reason: String,
    },
    /// A client was killed.
    Killed {
        /// Just before the kill.
        t: Nanos,
        /// The client.
        client: u32,
    },
    /// A client did not run.
    Frozen {
        /// Just before it was stopped.
        from: Nanos,
        /// Just after it was resumed.
        until: Nanos,
        /// The client.
        client: u32,
    },
    /// A caller did not poll its future.
    Unpolled {
        /// From when on.
        from: Nanos,
        /// Until then.
        until: Nanos,
        /// The operation.
        op: u64,
    },
    /// Something was disturbed.
    Fault {
        /// When it began, or earlier.
        from: Nanos,
        /// When it was over, or later.
        until: Nanos,
        /// Its kind, for people.
        kind: String,
        /// Whom it disturbs.
        scope: Scope,
    },
    /// Redis lost data that the locks rely on: an operator's `DEL`, a forced release, a flush.
    Deleted {
        /// Before it.
        from: Nanos,
        /// After it.
        until: Nanos,
        /// The lock; `None`: all of them.
        name: Option<String>,
    },
    /// A holder wrote the protected record, waited, and read it again.
    Pair {
        /// The acquire that began the hold.
        op: u64,
        /// Before the write.
        from: Nanos,
        /// After the write.
        wrote: Nanos,
        /// After the second look.
        until: Nanos,
        /// The acquire whose record was seen at the second look.
        seen: u64,
    },
    /// A holder that shares its lock read the protected record, waited, and read it again.
    Look {
        /// The acquire that began the hold.
        op: u64,
        /// Before the first look.
        from: Nanos,
        /// After the second.
        until: Nanos,
        /// The acquire whose record was seen first.
        first: u64,
        /// The acquire whose record was seen at the second look.
        seen: u64,
    },
    /// A lock's key as Redis showed it.
    Sample {
        /// When it was read.
        t: Nanos,
        /// The lock.
        name: String,
        /// `PTTL` of the key.
        ttl_ms: i64,
    },
    /// Something found in Redis after everything was released.
    Leftover {
        /// When it was found.
        t: Nanos,
        /// What it is.
        what: String,
    },
}

/// Collects records from many tasks and threads; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    inner: Arc<Mutex<Recording>>,
}

#[derive(Debug, Default)]
struct Recording {
    records: Vec<Record>,
    next_op: u64,
}

impl Recorder {
    /// An empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that an operation starts now, and returns its number.
    #[must_use]
    pub fn invoke(&self, client: u32, owner: u32, kind: LockKind, name: &str, call: Call) -> u64 {
        let mut inner = self.inner.lock();
        let op = inner.next_op;
        inner.next_op += 1;
        inner.records.push(Record::Invoke {
            t: now_ns(),
            op,
            client,
            owner,
            kind,
            name: name.to_owned(),
            call,
        });
        op
    }

    /// Records that an operation returned now.
    pub fn returned(&self, op: u64, outcome: Outcome) {
        self.granted(op, outcome, None);
    }

    /// The same, with a fencing token.
    pub fn granted(&self, op: u64, outcome: Outcome, token: Option<u64>) {
        self.push(Record::Return {
            t: now_ns(),
            op,
            since: None,
            outcome,
            token,
        });
    }

    /// Records a line.
    pub fn push(&self, record: Record) {
        self.inner.lock().records.push(record);
    }

    /// Takes what was recorded so far; numbers of operations go on.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.inner.lock().records)
    }
}

/// Writes a history as JSON lines.
///
/// # Errors
/// When the writer fails.
pub fn write_history(records: &[Record], mut to: impl Write) -> io::Result<()> {
    for record in records {
        serde_json::to_writer(&mut to, record)?;
        to.write_all(b"\n")?;
    }
    to.flush()
}

/// Reads a history from JSON lines; empty lines are skipped.
///
/// # Errors
/// When the reader fails or a line is no record.
pub fn read_history(from: impl BufRead) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    for line in from.lines() {
        let line = line?;
        if !line.trim().is_empty() {
            records.push(serde_json::from_str(&line)?);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_survives_json_lines() {
        let recorder = Recorder::new();
        let call = Call::Acquire {
            wait_ms: Some(5),
            lease_ms: None,
        };
        let op = recorder.invoke(1, 2, LockKind::Fenced, "a \"name\"\n", call);
        recorder.granted(op, Outcome::Acquired(1), Some(u64::MAX));
        let op = recorder.invoke(1, 2, LockKind::Read, "b", Call::Release);
        recorder.returned(op, Outcome::Failed("lost".to_owned()));
        recorder.push(Record::Fault {
            from: 1,
            until: 2,
            kind: "reset".to_owned(),
            scope: Scope::Client(1),
        });
        let records = recorder.take();
        let mut lines = Vec::new();
        write_history(&records, &mut lines).expect("a vector takes everything");
        assert_eq!(lines.split_inclusive(|byte| *byte == b'\n').count(), 5);
        let read = read_history(lines.as_slice()).expect("what was written can be read");
        assert_eq!(read, records);
    }

    #[test]
    fn a_line_that_is_no_record_is_an_error() {
        assert!(read_history(&b"{\"record\":\"nonsense\"}\n"[..]).is_err());
    }
}
