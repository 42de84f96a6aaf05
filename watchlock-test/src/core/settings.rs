//! What `CONFIG` knows.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::glob;

/// What a setting takes.
#[derive(Debug, Clone, Copy)]
enum SettingKind {
    Text,
    Number,
    Memory,
    YesNo,
    Events,
}

/// Settings by name, with what they are at the start. Those that are not mentioned elsewhere change nothing.
const KNOWN: [(&str, SettingKind, &str); 27] = [
    ("acl-pubsub-default", SettingKind::Text, "resetchannels"),
    ("appendfsync", SettingKind::Text, "everysec"),
    ("appendonly", SettingKind::YesNo, "no"),
    ("bind", SettingKind::Text, "127.0.0.1"),
    ("busy-reply-threshold", SettingKind::Number, "5000"),
    ("client-output-buffer-limit", SettingKind::Text, ""),
    ("cluster-enabled", SettingKind::YesNo, "no"),
    ("databases", SettingKind::Number, "16"),
    ("hz", SettingKind::Number, "10"),
    ("lua-time-limit", SettingKind::Number, "5000"),
    ("masterauth", SettingKind::Text, ""),
    ("maxclients", SettingKind::Number, "10000"),
    ("maxmemory", SettingKind::Memory, "0"),
    ("maxmemory-policy", SettingKind::Text, "noeviction"),
    ("min-replicas-max-lag", SettingKind::Number, "10"),
    ("min-replicas-to-write", SettingKind::Number, "0"),
    ("min-slaves-to-write", SettingKind::Number, "0"),
    ("notify-keyspace-events", SettingKind::Events, ""),
    ("proto-max-bulk-len", SettingKind::Memory, "536870912"),
    ("repl-timeout", SettingKind::Number, "60"),
    ("replica-read-only", SettingKind::YesNo, "yes"),
    ("requirepass", SettingKind::Text, ""),
    ("save", SettingKind::Text, ""),
    ("slowlog-log-slower-than", SettingKind::Number, "10000"),
    ("slowlog-max-len", SettingKind::Number, "128"),
    ("tcp-keepalive", SettingKind::Number, "300"),
    ("timeout", SettingKind::Number, "0"),
];

/// Classes of `notify-keyspace-events`.
const EVENTS: &str = "AKE$glshzxentmd";

#[derive(Debug)]
pub(super) struct Settings {
    values: BTreeMap<&'static str, String>,
    notified: String,
    most_memory: u64,
}

impl Settings {
    pub(super) fn new(databases: usize) -> Self {
        let values = KNOWN
            .iter()
            .map(|(name, _, value)| (*name, (*value).to_owned()));
        let mut values: BTreeMap<_, _> = values.collect();
        values.insert("databases", databases.to_string());
        Self {
            values,
            notified: String::new(),
            most_memory: 0,
        }
    }

    pub(super) fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.get(name).parse().unwrap_or(0)
    }

    /// Classes of events that are published; empty for none.
    pub(super) fn notified(&self) -> String {
        self.notified.clone()
    }

    /// 0 for no limit.
    pub(super) fn most_memory(&self) -> u64 {
        self.most_memory
    }

    pub(super) fn matching(&self, pattern: &[u8]) -> impl Iterator<Item = (&str, &str)> {
        let pattern = pattern.to_ascii_lowercase();
        let values = self
            .values
            .iter()
            .map(|(name, value)| (*name, value.as_str()));
        values.filter(move |(name, _)| glob::matches(&pattern, name.as_bytes()))
    }

    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let name = name.to_ascii_lowercase();
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        let (name, kind, _) = known.ok_or_else(|| {
            let text =
                format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'");
            Failure::new(text)
        })?;
        let failed = |why: &str| {
            let text = "ERR CONFIG SET failed (possibly related to argument";
            Failure::new(format!("{text} '{name}') - {why}"))
        };
        let value = match kind {
            SettingKind::Text => value.to_owned(),
            SettingKind::Number => {
                let number: i64 = value
                    .parse()
                    .map_err(|_| failed("argument couldn't be parsed into an integer"))?;
                number.to_string()
            }
            SettingKind::YesNo => {
                let value = value.to_ascii_lowercase();
                if value != "yes" && value != "no" {
                    return Err(failed("argument must be 'yes' or 'no'"));
                }
                value
            }
            SettingKind::Memory => {
                let bytes =
                    memory(value).ok_or_else(|| failed("argument must be a memory value"))?;
                bytes.to_string()
            }
            SettingKind::Events => {
                if !value.chars().all(|class| EVENTS.contains(class)) {
                    return Err(failed(
                        "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.",
                    ));
                }
                // Without K or E there is no channel to publish to.
                let is_on = value.contains(['K', 'E']);
                self.notified = if is_on {
                    value.to_owned()
                } else {
                    String::new()
                };
                value.to_owned()
            }
        };
        if *name == "maxmemory" {
            self.most_memory = value.parse().unwrap_or(0);
        }
        self.values.insert(name, value);
        Ok(())
    }
}

/// `100mb`
fn memory(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    if text.is_empty() {
        return Some(0);
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
