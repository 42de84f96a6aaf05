//! Parts of the texts of errors.

/// How many characters of a name are shown.
const SHOWN: usize = 80;

/// The prefix of a text about a lock: its name.
pub(super) fn about(lock: Option<&str>) -> String {
    let Some(name) = lock else {
        return String::new();
    };
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("lock {:?}…: ", &name[..end]),
        None => format!("lock {name:?}: "),
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
