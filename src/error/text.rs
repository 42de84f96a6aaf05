//! Parts of the texts of errors.

use std::fmt;
use std::sync::Arc;

/// The prefix of a text about a lock: its name.
pub(super) struct LockPrefix<'a>(pub(super) &'a Option<Arc<str>>);

/// How many characters of a name are shown.
const SHOWN: usize = 80;

impl fmt::Display for LockPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(name) = self.0 else {
            return Ok(());
        };
        match name.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "lock {:?}…: ", &name[..end]),
            None => write!(f, "lock {name:?}: "),
        }
    }
}

/// What works without a command.
pub(super) fn without(command: &str) -> &'static str {
    match command {
        "TIME" => "plain, spin and simple locks work there",
        "PEXPIRE" => {
            "behind TIME or PTTL in a script (lua-replicate-commands no), so no kind of lock works there"
        }
        _ => "no kind of lock works there",
    }
}

pub(super) fn name_problem(lock: Option<&str>, bytes: usize) -> String {
    if lock == Some("") {
        return "a lock's name must not be empty".into();
    }
    format!("{bytes} bytes with the key prefix, but at most 512 are allowed")
}
