//! What distinguishes one run from another: every piece that reached a server, when, and from whom.

use std::hash::{DefaultHasher, Hash, Hasher};

use watchlock_test::core::{Reply, Store};

/// A running sum over everything, and the lines themselves if they are kept.
#[derive(Default)]
pub(crate) struct Trace {
    sum: DefaultHasher,
    lines: Option<Vec<String>>,
    /// A command, and its last answer.
    watched: Option<(Vec<String>, String)>,
}

impl Trace {
    /// Keeps the lines from now on, and those of a watched command.
    pub(crate) fn keep(&mut self, watched: Option<&str>) {
        self.lines.get_or_insert_default();
        let words = |command: &str| command.split(' ').map(str::to_owned).collect();
        self.watched = watched.map(|command| (words(command), String::new()));
    }

    /// Notes the answer of the watched command if it is a new one.
    pub(crate) fn watch(&mut self, at: u64, server: usize, store: &mut Store) {
        let (Some(lines), Some((command, last))) = (&mut self.lines, &mut self.watched) else {
            return;
        };
        let words: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
        let answer = text(&store.run(&words));
        if answer != *last {
            lines.push(format!("{at:>10} {server} = {answer}"));
            *last = answer;
        }
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

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(" "),
        Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => format!("{other:?}"),
    }
}
