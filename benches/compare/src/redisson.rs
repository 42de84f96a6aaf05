//! Real Redisson, through the Java peer of the interop tests: it measures itself and reports.
//!
//! One JVM for the whole run, so that its compiler has warmed up.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Result;
use crate::load::contended::{Contended, Work};
use crate::load::pairs::Pairs;

/// The name of its rows.
pub(crate) const NAME: &str = "Redisson";
/// Its commands, as far as the calls of its scripts show them. The DEL that ends each unlock
/// comes on top.
pub(crate) const COMMANDS: &[&str] = &["evalsha", "eval", "subscribe", "unsubscribe"];

/// A running Java peer.
pub(crate) struct Redisson {
    process: Child,
    lines: RefCell<Lines>,
}

struct Lines {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    last_id: u64,
}

impl Redisson {
    /// Starts the peer and connects it; the reason when it cannot.
    pub(crate) fn start(url: &str) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let script = root.join("scripts/interop-peer.sh").canonicalize()?;
        let mut process = Command::new(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let lines = RefCell::new(Lines {
            input: process.stdin.take().ok_or("no standard input")?,
            output: BufReader::new(process.stdout.take().ok_or("no standard output")?),
            last_id: 0,
        });
        let peer = Self { process, lines };
        peer.call(json!({"op": "open", "url": url}))?;
        Ok(peer)
    }

    /// Uncontended pairs.
    pub(crate) fn pairs(&self, kind: &str, tasks: usize, window: Duration) -> Result<Pairs> {
        let answer = self.call(json!({
            "op": "bench_pairs", "kind": kind, "prefix": format!("bench:java:{kind}:"),
            "tasks": tasks, "ms": millis(window),
        }))?;
        Ok(Pairs {
            per_second: number(&answer, "pairs") / window.as_secs_f64(),
            p50_us: number(&answer, "p50_us"),
            p99_us: number(&answer, "p99_us"),
            cpu_us: 0.0,
            server_us: 0.0,
        })
    }

    /// All tasks on one name.
    pub(crate) fn contended(
        &self,
        kind: &str,
        name: &str,
        tasks: usize,
        work: Work,
        window: Duration,
    ) -> Result<Contended> {
        let answer = self.call(json!({
            "op": "bench_contended", "kind": kind, "name": name,
            "tasks": tasks, "ms": millis(window),
            "hold_us": work.hold_us, "pause_us": work.pause_us, "busy": true,
        }))?;
        let sections = number(&answer, "sections");
        Ok(Contended {
            sections: sections as usize,
            per_second: sections / window.as_secs_f64(),
            handoff_p50_us: number(&answer, "handoff_p50_us"),
            handoff_p99_us: number(&answer, "handoff_p99_us"),
            cross: number(&answer, "cross"),
            worst_wait_ms: number(&answer, "worst_wait_ms"),
            overlaps: number(&answer, "overlaps") as usize,
            gave_up: 0,
        })
    }

    fn call(&self, mut request: Value) -> Result<Value> {
        let mut lines = self.lines.borrow_mut();
        lines.last_id += 1;
        let id = lines.last_id;
        request["id"] = json!(id);
        writeln!(lines.input, "{request}")?;
        loop {
            let mut line = String::new();
            if lines.output.read_line(&mut line)? == 0 {
                return Err("the Java peer ended".into());
            }
            let mut answer: Value = serde_json::from_str(&line)?;
            if answer["id"] != json!(id) {
                continue;
            }
            if answer["ok"] != json!(true) {
                return Err(format!("the Java peer said {answer}").into());
            }
            return Ok(answer["result"].take());
        }
    }
}

impl Drop for Redisson {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn millis(window: Duration) -> u64 {
    window.as_millis() as u64
}

fn number(answer: &Value, field: &str) -> f64 {
    answer[field].as_f64().unwrap_or(0.0)
}
