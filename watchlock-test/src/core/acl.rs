//! Users and their rights.

use std::collections::{BTreeMap, BTreeSet};

use super::commands::{self, CATEGORIES, Command};
use super::{Bytes, glob};

/// The user that connections have from the beginning, unless it has a password.
pub(super) const DEFAULT: &str = "default";

/// What a user may not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Denied {
    Command,
    Key,
    Channel,
}

/// Keys that a user may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyRule {
    pattern: Bytes,
    reads: bool,
    writes: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct User {
    pub(super) is_on: bool,
    /// Any password will do.
    is_open: bool,
    passwords: BTreeSet<Bytes>,
    allowed: BTreeSet<&'static str>,
    /// The rules about commands as they were given.
    rules: Vec<String>,
    keys: Vec<KeyRule>,
    channels: Vec<Bytes>,
}

impl User {
    fn superuser() -> Self {
        let mut user = Self::default();
        for rule in ["on", "nopass", "~*", "&*", "+@all"] {
            // Known rules are not refused.
            let _ = user.apply(rule.as_bytes());
        }
        user
    }

    /// Applies a rule of `ACL SETUSER`; an error says what is wrong with it.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), &'static str> {
        let lower = String::from_utf8_lossy(rule).to_ascii_lowercase();
        match lower.as_str() {
            "on" => self.is_on = true,
            "off" => self.is_on = false,
            "nopass" => {
                self.is_open = true;
                self.passwords.clear();
            }
            "resetpass" => {
                self.is_open = false;
                self.passwords.clear();
            }
            "reset" => *self = Self::default(),
            "allkeys" => self.allow_keys(b"*", true, true),
            "resetkeys" => self.keys.clear(),
            "allchannels" => self.channels = vec![b"*".to_vec()],
            "resetchannels" => self.channels.clear(),
            "allcommands" => self.change_commands("+@all")?,
            "nocommands" => self.change_commands("-@all")?,
            "" | "clearselectors" | "sanitize-payload" | "skip-sanitize-payload" => {}
            _ => self.apply_pattern(rule, &lower)?,
        }
        Ok(())
    }

    fn apply_pattern(&mut self, rule: &[u8], lower: &str) -> Result<(), &'static str> {
        match rule {
            [b'>', password @ ..] => {
                self.is_open = false;
                self.passwords.insert(password.to_vec());
            }
            [b'<', password @ ..] => {
                let removed = self.passwords.remove(password);
                return removed
                    .then_some(())
                    .ok_or("The password you are trying to remove from the user does not exist");
            }
            [b'~', pattern @ ..] => self.allow_keys(pattern, true, true),
            [b'&', pattern @ ..] => {
                if !self.channels.iter().any(|channel| channel == pattern) {
                    self.channels.push(pattern.to_vec());
                }
            }
            [b'%', ..] => {
                let (kinds, _) = lower.split_once('~').ok_or("Syntax error")?;
                let kinds = &kinds[1..];
                if kinds.is_empty() || !kinds.chars().all(|kind| matches!(kind, 'r' | 'w')) {
                    return Err("Syntax error");
                }
                let pattern = rule.iter().position(|byte| *byte == b'~');
                let pattern = &rule[pattern.map_or(rule.len(), |at| at + 1)..];
                self.allow_keys(pattern, kinds.contains('r'), kinds.contains('w'));
            }
            [b'+' | b'-', ..] => self.change_commands(lower)?,
            _ => return Err("Syntax error"),
        }
        Ok(())
    }

    fn allow_keys(&mut self, pattern: &[u8], reads: bool, writes: bool) {
        let rule = KeyRule {
            pattern: pattern.to_vec(),
            reads,
            writes,
        };
        if !self.keys.contains(&rule) {
            self.keys.push(rule);
        }
    }

    /// `+get`, `-@dangerous`, `+client|id`
    fn change_commands(&mut self, rule: &str) -> Result<(), &'static str> {
        const UNKNOWN: &str = "Unknown command or category name in ACL";
        let (sign, name) = rule.split_at(1);
        let names: Vec<_> = if let Some(category) = name.strip_prefix('@') {
            if category != "all" && !CATEGORIES.iter().any(|(known, _)| *known == category) {
                return Err(UNKNOWN);
            }
            let commands = commands::everything();
            let commands = commands.filter(|command| command.flags.is_in(category));
            commands.map(|command| command.name).collect()
        } else {
            let command = commands::find(name.as_bytes()).ok_or(UNKNOWN)?;
            let commands = commands::everything();
            let commands = commands.filter(|other| {
                other.name == command.name || other.container() == Some(command.name)
            });
            commands.map(|command| command.name).collect()
        };
        for name in names {
            if sign == "+" {
                self.allowed.insert(name);
            } else {
                self.allowed.remove(name);
            }
        }
        if name == "@all" {
            self.rules.clear();
        }
        self.rules.retain(|old| old[1..] != *name);
        self.rules.push(rule.to_owned());
        Ok(())
    }

    /// Whether it may run this command with these arguments.
    pub(super) fn check(&self, command: &Command, arguments: &[Bytes]) -> Result<(), Denied> {
        if command.flags.needs_password() && !self.allowed.contains(command.name) {
            return Err(Denied::Command);
        }
        if !self
            .keys
            .iter()
            .any(|rule| rule.pattern == b"*" && rule.reads && rule.writes)
        {
            let writes = command.flags.writes();
            let keys = command.keys(arguments);
            if !keys.iter().all(|key| self.reaches(key, writes)) {
                return Err(Denied::Key);
            }
        }
        let channels = match command.name {
            "publish" | "spublish" => arguments.get(1..2),
            "subscribe" | "ssubscribe" | "psubscribe" => arguments.get(1..),
            _ => None,
        };
        let is_pattern = command.name == "psubscribe";
        let mut channels = channels.unwrap_or_default().iter();
        if !channels.all(|channel| self.hears(channel, is_pattern)) {
            return Err(Denied::Channel);
        }
        Ok(())
    }

    fn reaches(&self, key: &[u8], writes: bool) -> bool {
        self.keys.iter().any(|rule| {
            let fits = if writes { rule.writes } else { rule.reads };
            fits && glob::matches(&rule.pattern, key)
        })
    }

    /// A pattern to listen to must be one of the user's own.
    pub(super) fn hears(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.channels.iter().any(|allowed| {
            allowed == b"*" || *allowed == channel || !is_pattern && glob::matches(allowed, channel)
        })
    }

    fn accepts(&self, password: &[u8]) -> bool {
        self.is_on && (self.is_open || self.passwords.contains(password))
    }

    /// Whether any password will do.
    pub(super) fn takes_any_password(&self) -> bool {
        self.is_open
    }

    /// The rules for commands in one line.
    pub(super) fn commands(&self) -> String {
        let all = self.rules.iter().any(|rule| rule.ends_with("@all"));
        let start = if all { None } else { Some("-@all") };
        let rules = start
            .into_iter()
            .chain(self.rules.iter().map(String::as_str));
        rules.collect::<Vec<_>>().join(" ")
    }

    /// `~app:* %R~other`
    pub(super) fn key_patterns(&self) -> String {
        let patterns = self.keys.iter().map(|rule| {
            let kind = match (rule.reads, rule.writes) {
                (true, false) => "%R",
                (false, true) => "%W",
                _ => "",
            };
            format!("{kind}~{}", String::from_utf8_lossy(&rule.pattern))
        });
        patterns.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn channel_patterns(&self) -> String {
        let patterns = self.channels.iter();
        let patterns = patterns.map(|pattern| format!("&{}", String::from_utf8_lossy(pattern)));
        patterns.collect::<Vec<_>>().join(" ")
    }
}

/// All users by name.
#[derive(Debug)]
pub(super) struct Users(BTreeMap<String, User>);

impl Users {
    pub(super) fn new(password: Option<&str>) -> Self {
        let mut users = Self(BTreeMap::from([(DEFAULT.to_owned(), User::superuser())]));
        users.require(password.unwrap_or_default());
        users
    }

    /// The user of a new connection, if it needs no password.
    pub(super) fn at_connect(&self) -> Option<String> {
        self.is_open().then(|| DEFAULT.to_owned())
    }

    /// Whether the default user needs no password.
    pub(super) fn is_open(&self) -> bool {
        self.get(DEFAULT)
            .is_some_and(|user| user.is_on && user.is_open)
    }

    /// Sets the password of the default user; none if it is empty.
    pub(super) fn require(&mut self, password: &str) {
        let user = self.0.entry(DEFAULT.to_owned()).or_default();
        user.passwords.clear();
        user.is_open = password.is_empty();
        if !password.is_empty() {
            user.passwords.insert(password.into());
        }
    }

    pub(super) fn accepts(&self, name: &str, password: &[u8]) -> bool {
        self.get(name).is_some_and(|user| user.accepts(password))
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Option<&User> {
        self.0.get(name)
    }

    pub(super) fn put(&mut self, name: &str, user: User) {
        self.0.insert(name.to_owned(), user);
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &User)> {
        self.0.iter()
    }
}
