//! The first line of a script, which may say what the script needs.

use crate::core::Bytes;
use crate::core::failure::Failure;

/// What a script says about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::core) struct Declared {
    /// It has such a line. Scripts without it are checked less.
    pub(in crate::core) is_there: bool,
    pub(in crate::core) writes_nothing: bool,
    pub(in crate::core) allows_oom: bool,
}

impl Declared {
    /// What a text declares, if it does so rightly.
    pub(in crate::core) fn of(text: &[u8]) -> Option<Self> {
        parse(text).ok().map(|(declared, _)| declared)
    }
}

/// Returns what the first line declares, and the text with that line empty, so that its lines keep their numbers.
pub(super) fn parse(text: &[u8]) -> Result<(Declared, Bytes), Failure> {
    if !text.starts_with(b"#!") {
        return Ok((Declared::default(), text.to_vec()));
    }
    let end = text.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or(Failure::fixed("ERR Invalid script shebang"))?;
    let line = String::from_utf8_lossy(&text[2..end]);
    let mut words = line.split_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "lua" {
        let text = format!("ERR Unexpected engine in script shebang: #!{engine}");
        return Err(Failure::new(text));
    }
    let mut declared = Declared {
        is_there: true,
        ..Declared::default()
    };
    for word in words {
        let flags = word
            .strip_prefix("flags=")
            .ok_or_else(|| Failure::new(format!("ERR Unknown lua shebang option: {word}")))?;
        for flag in flags.split(',') {
            match flag {
                "no-writes" => declared.writes_nothing = true,
                "allow-oom" => declared.allows_oom = true,
                "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => {
                    let text = format!("ERR Unexpected flag in script shebang: {flag}");
                    return Err(Failure::new(text));
                }
            }
        }
    }
    Ok((declared, text[end..].to_vec()))
}
