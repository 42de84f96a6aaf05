//! The lines of a worker: one thread writes them, another reads them and hands each to its receiver.

use std::collections::HashMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::wait::now_ns;

/// An answer with its times.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Just before the call into the library, nanoseconds of `CLOCK_MONOTONIC`; 0 if the worker does not say.
    pub t_inv: u64,
    /// Just after it returned; 0 if the worker does not say.
    pub t_ret: u64,
    /// The result, or what went wrong.
    pub outcome: Result<Value, WorkerError>,
}

impl Reply {
    pub(super) fn dead() -> Self {
        Self {
            t_inv: 0,
            t_ret: now_ns(),
            outcome: Err(WorkerError {
                kind: "dead".to_owned(),
                message: "the worker ended before it answered".to_owned(),
            }),
        }
    }

    fn of(line: &Value) -> Self {
        let outcome = if line["ok"] == Value::Bool(true) {
            Ok(line["result"].clone())
        } else {
            let text = |field: &str| line["error"][field].as_str().unwrap_or_default().to_owned();
            Err(WorkerError {
                kind: text("kind"),
                message: text("message"),
            })
        };
        Self {
            t_inv: line["t_inv"].as_u64().unwrap_or(0),
            t_ret: line["t_ret"].as_u64().unwrap_or(0),
            outcome,
        }
    }
}

/// An error that a worker answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerError {
    /// `not_owner`, `lost`, `unavailable`, …; `dead` if there was no answer.
    pub kind: String,
    /// For people.
    pub message: String,
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for WorkerError {}

/// A hold that the worker's client reports as lost.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lost {
    /// The owner's label.
    pub owner: String,
    /// The kind of lock.
    pub kind: String,
    /// The lock's name; those of several locks as one, with a comma between them.
    #[serde(deserialize_with = "name_or_names")]
    pub name: String,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub t: u64,
    /// Why.
    #[serde(default)]
    pub reason: String,
}

fn name_or_names<'de, D: Deserializer<'de>>(json: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(json)? {
        Value::Array(names) => {
            let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
            names.join(", ")
        }
        Value::String(name) => name,
        other => other.to_string(),
    })
}

impl Lost {
    /// `None` if it is another event, or malformed.
    #[must_use]
    pub fn from_event(event: &Value) -> Option<Self> {
        (event["event"] == "lost")
            .then(|| Self::deserialize(event).ok())
            .flatten()
    }
}

/// Lines on their way to the worker; its input ends when this is dropped.
#[derive(Debug)]
pub(super) struct Lines(Sender<String>);

impl Lines {
    /// A thread writes, because a frozen worker does not read and its pipe fills up.
    pub(super) fn to(mut stdin: ChildStdin) -> Self {
        let (sender, lines) = channel::<String>();
        spawn("worker-lines", move || {
            for line in lines {
                let written = stdin.write_all(line.as_bytes());
                if written.and_then(|()| stdin.flush()).is_err() {
                    return;
                }
            }
        });
        Self(sender)
    }

    pub(super) fn send(&self, line: &str) {
        let _ = self.0.send(format!("{line}\n"));
    }
}

/// Who waits for which answer, and what came unasked.
#[derive(Debug, Default)]
pub(super) struct Router(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, oneshot::Sender<Reply>>,
    events: Vec<Value>,
    seen: usize,
    strays: Vec<String>,
    is_over: bool,
}

impl Router {
    /// A receiver without a sender, when the worker's output has ended: it is dead.
    pub(super) fn expect(&self, id: u64) -> oneshot::Receiver<Reply> {
        let (answer, answered) = oneshot::channel();
        let mut state = self.0.lock();
        if !state.is_over {
            state.waiting.insert(id, answer);
        }
        answered
    }

    pub(super) fn events(&self) -> Vec<Value> {
        self.0.lock().events.clone()
    }

    pub(super) fn new_events(&self) -> Vec<Value> {
        let mut state = self.0.lock();
        let events = state.events[state.seen..].to_vec();
        state.seen = state.events.len();
        events
    }

    pub(super) fn strays(&self) -> Vec<String> {
        self.0.lock().strays.clone()
    }

    /// A thread reads until the worker's output ends.
    pub(super) fn read(self: Arc<Self>, stdout: ChildStdout) {
        spawn("worker-answers", move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                self.take(line);
            }
            let mut state = self.0.lock();
            state.is_over = true;
            state.waiting.clear();
        });
    }

    fn take(&self, line: String) {
        let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
        let mut state = self.0.lock();
        if parsed["event"].is_string() {
            state.events.push(parsed);
            return;
        }
        let id = parsed["id"].as_u64();
        match id.and_then(|id| state.waiting.remove(&id)) {
            // The caller that asked may have gone.
            Some(answer) => drop(answer.send(Reply::of(&parsed))),
            None => state.strays.push(line),
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .expect("a thread for a worker's lines");
}
