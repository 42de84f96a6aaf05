//! What `run` says on stderr.
//!
//! Whoever reads stderr may stop reading, and a write then blocks for ever. `run` must end its command in time all the same,
//! so a thread of its own writes, from a queue that drops what does not fit.

use std::io::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::status::Failure;
use crate::text::printable;

/// How many messages may wait to be written.
const QUEUE: usize = 64;
/// How long the end of the program waits for messages to be written.
const LAST_WRITES: Duration = Duration::from_millis(500);

pub(crate) struct Messages {
    /// None: no thread could be started, and nothing is written.
    lines: Option<(SyncSender<String>, Receiver<()>)>,
    json: bool,
    verbose: bool,
}

impl Messages {
    pub(crate) fn new(json: bool, verbose: bool) -> Self {
        let (lines, queue) = sync_channel::<String>(QUEUE);
        let (done, end) = sync_channel(1);
        let writer = move || {
            for line in queue {
                // There is nobody else to report a failure to.
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            let _ = done.send(());
        };
        let started = thread::Builder::new().name("messages".into()).spawn(writer);
        Self {
            lines: started.ok().map(|_| (lines, end)),
            json,
            verbose,
        }
    }

    /// Something went wrong.
    pub(crate) fn warn(&self, event: &str, text: &str) {
        self.write(event, text, Map::new());
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        self.warn("failed", &failure.message);
    }

    /// What only `--verbose` says. `fields` are for `--json`.
    pub(crate) fn tell<const N: usize>(&self, event: &str, text: &str, fields: [(&str, Value); N]) {
        if self.verbose {
            let fields = fields.map(|(name, value)| (name.to_owned(), value));
            self.write(event, text, fields.into_iter().collect());
        }
    }

    pub(crate) fn verbose(&self) -> bool {
        self.verbose
    }

    fn write(&self, event: &str, text: &str, mut fields: Map<String, Value>) {
        let text = printable(text);
        let line = if self.json {
            fields.insert("event".into(), event.into());
            fields.insert("message".into(), text.into());
            format!("{}\n", Value::Object(fields))
        } else {
            format!("watchlock: {text}\n")
        };
        if let Some((lines, _)) = &self.lines {
            let _ = lines.try_send(line);
        }
    }

    /// Waits until all is written, but not for long.
    pub(crate) fn finish(self) {
        if let Some((lines, end)) = self.lines {
            drop(lines);
            let _ = end.recv_timeout(LAST_WRITES);
        }
    }
}
