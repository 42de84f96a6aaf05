//! The commands, and what the server must know about each before it runs.

// They stand in one table, so they all have the same signature.
#![allow(clippy::unnecessary_wraps)]

mod acl;
mod client;
mod connection;
mod expiry;
mod flags;
mod hashes;
mod keys;
mod lists;
mod pubsub;
mod ranges;
mod scan;
mod server;
mod sets;
mod sorted_sets;
mod strings;
mod table;
mod transactions;

use std::collections::HashMap;
use std::sync::LazyLock;

pub(super) use flags::{CATEGORIES, Flags};

use super::call::Call;
use super::failure::Outcome;
use super::number::integer;
use super::{Bytes, Reply};
use table::COMMANDS;

/// One command.
pub(super) struct Command {
    /// In lower case; `client|list` for a subcommand.
    pub(super) name: &'static str,
    /// Number of arguments with the name; the least number if it is negative.
    arity: i32,
    pub(super) flags: Flags,
    keys: Keys,
    pub(super) action: Action,
}

/// How a command runs.
pub(super) enum Action {
    /// By itself.
    Plain(fn(&mut Call<'_>, &[Bytes]) -> Outcome),
    /// With the compiled scripts.
    Script(Scripting),
    /// It runs what was queued.
    Exec,
    /// Only its subcommands run.
    Container,
    /// By itself, if there is no subcommand.
    Either(fn(&mut Call<'_>, &[Bytes]) -> Outcome),
}

/// A command that has to do with scripts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scripting {
    Run { by_digest: bool, is_read_only: bool },
    Load,
    Exists,
    Flush,
}

impl Scripting {
    const EVAL: Self = Self::Run {
        by_digest: false,
        is_read_only: false,
    };
    const EVALSHA: Self = Self::Run {
        by_digest: true,
        is_read_only: false,
    };
    const EVAL_RO: Self = Self::Run {
        by_digest: false,
        is_read_only: true,
    };
    const EVALSHA_RO: Self = Self::Run {
        by_digest: true,
        is_read_only: true,
    };
}

/// Which arguments are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    None,
    One,
    Two,
    All,
    /// Every other one.
    Pairs,
    /// As many as the second argument says, behind it.
    Counted,
}

const fn row(name: &'static str, arity: i32, flags: u32, keys: Keys, action: Action) -> Command {
    Command {
        name,
        arity,
        flags: Flags(flags),
        keys,
        action,
    }
}

impl Command {
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        arguments == least || self.arity < 0 && arguments > least
    }

    /// The keys among its arguments.
    pub(super) fn keys<'a>(&self, arguments: &'a [Bytes]) -> Vec<&'a Bytes> {
        let behind = |count: usize| arguments.iter().skip(1).take(count);
        match self.keys {
            Keys::None => Vec::new(),
            Keys::One => behind(1).collect(),
            Keys::Two => behind(2).collect(),
            Keys::All => behind(usize::MAX).collect(),
            Keys::Pairs => behind(usize::MAX).step_by(2).collect(),
            Keys::Counted => {
                let count = arguments.get(2).and_then(|text| integer(text));
                let count = count.and_then(|count| usize::try_from(count).ok());
                arguments.iter().skip(3).take(count.unwrap_or(0)).collect()
            }
        }
    }

    /// The command that it belongs to, if it is a subcommand.
    pub(super) fn container(&self) -> Option<&'static str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// As `COMMAND INFO` has it.
    fn described(&self) -> Reply {
        let (first, last, step) = match self.keys {
            Keys::None | Keys::Counted => (0, 0, 0),
            Keys::One => (1, 1, 1),
            Keys::Two => (1, 2, 1),
            Keys::All => (1, -1, 1),
            Keys::Pairs => (1, -1, 2),
        };
        let statuses =
            |names: Vec<String>| Reply::Set(names.iter().map(|name| Reply::status(name)).collect());
        Reply::Array(vec![
            Reply::bulk(self.name),
            Reply::Integer(self.arity.into()),
            statuses(self.flags.names()),
            Reply::Integer(first),
            Reply::Integer(last),
            Reply::Integer(step),
            statuses(self.flags.categories()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
        ])
    }
}

static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Command>> = LazyLock::new(|| {
    let commands = COMMANDS.iter();
    commands
        .map(|command| (command.name.as_bytes(), command))
        .collect()
});

/// A command or, with a bar in the name, a subcommand.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    const LONGEST: usize = 32;
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    BY_NAME.get(&*lower).copied()
}

/// The subcommand of a container.
pub(super) fn find_in(container: &Command, name: &[u8]) -> Option<&'static Command> {
    let name = [container.name.as_bytes(), b"|", name].concat();
    find(&name)
}

/// All commands without the subcommands.
pub(super) fn all() -> impl Iterator<Item = &'static Command> {
    COMMANDS
        .iter()
        .filter(|command| command.container().is_none())
}

/// All commands and subcommands.
pub(super) fn everything() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter()
}
