//! A command that runs.

use std::time::Duration;

use super::commands::Command;
use super::failure::Failure;
use super::keyspace::Database;
use super::session::{Session, SessionId};
use super::state::State;
use super::value::{Kind, Value};

/// Who calls a command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) session: SessionId,
    /// The selected database.
    pub(super) db: usize,
    /// Within `EXEC`.
    pub(super) is_in_transaction: bool,
    /// Nothing that the server's owner runs is counted.
    pub(super) is_owner: bool,
}

/// What a command works with.
pub(super) struct Call<'a> {
    pub(super) state: &'a mut State,
    pub(super) command: &'static Command,
    pub(super) caller: Caller,
    /// How long a real server would wait before it replies.
    pub(super) blocks: Duration,
}

impl Call<'_> {
    pub(super) fn db(&mut self) -> &mut Database {
        &mut self.state.databases[self.caller.db]
    }

    /// The caller's session; the server's owner has none.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.state.sessions.get_mut(&self.caller.session)
    }

    /// The value of the key, if there is one and it is of this kind.
    pub(super) fn read<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&K>, Failure> {
        self.db().read(key)
    }

    /// The same, cloned, or an empty one.
    pub(super) fn copy<K: Kind + Clone>(&mut self, key: &[u8]) -> Result<K, Failure> {
        Ok(self.read::<K>(key)?.cloned().unwrap_or_default())
    }

    /// Replaces the value and keeps its expiry.
    pub(super) fn replace(&mut self, key: &[u8], value: Value) {
        let expires_at = self.db().expires_at(key);
        self.db().put(key, value, expires_at);
    }

    /// Tells those who listen what happened to a key of the selected database. `class` is the letter of
    /// `notify-keyspace-events`.
    pub(super) fn notify(&mut self, class: char, event: &str, key: &[u8]) {
        self.state.notify(class, event, self.caller.db, key);
    }

    /// Removes the key if it holds an empty container, and says so.
    pub(super) fn tidy(&mut self, key: &[u8]) {
        if self.db().tidy(key) {
            self.notify('g', "del", key);
        }
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.state.now_ms()
    }
}

/// Whether an argument is this word, in any case.
pub(super) fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// For comparisons and messages.
pub(super) fn upper(argument: &[u8]) -> String {
    String::from_utf8_lossy(argument).to_ascii_uppercase()
}

/// Text for messages.
pub(super) fn text(argument: &[u8]) -> String {
    String::from_utf8_lossy(argument).into_owned()
}

/// The part of a sequence of `len` that a range with indexes from either end means.
pub(super) fn span(len: usize, start: i64, stop: i64) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |index: i64| {
        if index < 0 {
            len.saturating_add(index)
        } else {
            index
        }
    };
    let start = place(start).max(0);
    let stop = place(stop).min(len - 1);
    if start > stop {
        return 0..0;
    }
    let index = |place: i64| usize::try_from(place).unwrap_or(0);
    index(start)..index(stop + 1)
}

/// The index that one from either end means.
pub(super) fn place(len: usize, index: i64) -> Option<usize> {
    let from_end = index.unsigned_abs();
    let index = if index < 0 {
        len.checked_sub(usize::try_from(from_end).ok()?)?
    } else {
        usize::try_from(index).ok()?
    };
    (index < len).then_some(index)
}

/// A count of replies that fits into memory.
pub(super) fn reasonable(count: u64) -> Result<usize, Failure> {
    const MOST: u64 = 1 << 24;
    let count = usize::try_from(count.min(MOST + 1)).unwrap_or(usize::MAX);
    if count as u64 > MOST {
        return Err(Failure::fixed("ERR value is out of range"));
    }
    Ok(count)
}
