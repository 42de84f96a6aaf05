//! What distinguishes one run from another: every piece that reached a server, when, and from whom.

use std::hash::{DefaultHasher, Hash, Hasher};

/// A running sum over everything, and the lines themselves if they are kept.
#[derive(Default)]
pub(crate) struct Trace {
    sum: DefaultHasher,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Keeps the lines from now on.
    pub(crate) fn keep(&mut self) {
        self.lines.get_or_insert_default();
    }

    pub(crate) fn note(&mut self, at: u64, process: usize, server: usize, bytes: &[u8]) {
        (at, process, server, bytes).hash(&mut self.sum);
        if let Some(lines) = &mut self.lines {
            let text = String::from_utf8_lossy(bytes).replace("\r\n", " ");
            lines.push(format!("{at:>10} {process} > {server}: {text}"));
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.finish()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.clone().unwrap_or_default()
    }
}
