//! The commands, and what the server must know about each before it runs.

mod connection;
mod keys;
mod strings;

use super::Bytes;
use super::call::Call;
use super::failure::Outcome;

/// One command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Number of arguments with the name; the least number if it is negative.
    arity: i32,
    pub(super) run: fn(&mut Call<'_>, &[Bytes]) -> Outcome,
}

impl Command {
    pub(super) fn takes(&self, arguments: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        arguments == least || self.arity < 0 && arguments > least
    }
}

const fn row(
    name: &'static str,
    arity: i32,
    run: fn(&mut Call<'_>, &[Bytes]) -> Outcome,
) -> Command {
    Command { name, arity, run }
}

static COMMANDS: [Command; 5] = [
    row("get", 2, strings::get),
    row("set", -3, strings::set),
    row("del", -2, keys::del),
    row("ping", -1, connection::ping),
    row("hello", -1, connection::hello),
];

pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}
