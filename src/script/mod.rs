//! Typed scripts: what is sent to Redis, and what its replies mean.
//!
//! Each Lua file under `lua/` is embedded and named in the [`registry`]. A [`Call`] is one command: a script or a plain
//! one, its keys, its arguments. It borrows them, and is encoded where it is sent: as `EVALSHA`, or as `EVAL` when the
//! server does not know the script. Every script is harmless when it runs twice; its header says why.

pub(crate) mod fair;
pub(crate) mod fenced;
pub(crate) mod lock;
pub(crate) mod registry;
pub(crate) mod rw;
pub(crate) mod simple;

use std::borrow::Cow;

use redis::{Cmd, RedisWrite, ToRedisArgs, Value};
use smallvec::SmallVec;

use self::registry::Script;
use crate::config::Publish;
use crate::fencing::FencingToken;
use crate::names::Names;
use crate::slot::Target;

/// One command: what it runs, on which keys, with which arguments.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    command: Command,
    /// So many of the arguments are keys.
    keys: usize,
    /// As many as any call for one hold has; those for many are rare.
    args: SmallVec<[Arg<'a>; 6]>,
    target: Target,
    publishes: bool,
    order: Order,
    undo: Option<(&'a dyn Grants, &'a str)>,
}

/// Where a call stands beside others when replicas must acknowledge what is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// It may run ahead of others, and waits for nobody.
    Free,
    /// Behind those that were sent before it.
    Kept,
    /// The same; and it counts only when replicas have it.
    Acknowledged,
}

/// What says whether a hold was granted, and takes it back.
pub(crate) trait Grants: Send + Sync {
    fn granted(&self, reply: &Reply) -> bool;

    fn take_back<'a>(&'a self, hold_id: &'a str) -> Call<'a>;

    /// The same, for as long as somebody may have to know.
    fn keep(&self) -> Box<dyn Grants>;
}

/// How to take back what was granted to a hold id.
pub(crate) struct Undo {
    grants: Box<dyn Grants>,
    hold_id: Box<str>,
}

impl Undo {
    /// Whether a reply says that something was granted.
    pub(crate) fn is_needed_behind(&self, reply: &Reply) -> bool {
        self.grants.granted(reply)
    }

    pub(crate) fn encode(&self) -> Encoded {
        self.grants.take_back(&self.hold_id).encode()
    }
}

#[derive(Clone, Copy)]
enum Command {
    Script(&'static Script),
    Plain(&'static str),
}

/// A key or an argument.
#[derive(Clone)]
pub(crate) enum Arg<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

impl<'a> Call<'a> {
    /// A call of `script`.
    pub(crate) fn script(script: &'static Script) -> Self {
        Self::of(Command::Script(script))
    }

    /// A plain command.
    pub(crate) fn plain(command: &'static str) -> Self {
        Self::of(Command::Plain(command))
    }

    /// A question to which any answer will do.
    pub(crate) fn ping() -> Self {
        Self::plain("PING")
    }

    fn of(command: Command) -> Self {
        Self {
            command,
            keys: 0,
            args: SmallVec::new(),
            target: Target::Any,
            publishes: false,
            order: Order::Free,
            undo: None,
        }
    }

    /// The key of a lock, which says for which node of a cluster the call is.
    pub(crate) fn lock(self, names: &'a Names) -> Self {
        self.for_node_of(names).key(names.key())
    }

    /// It is for the node that has a lock, by another of its keys.
    pub(crate) fn for_node_of(self, names: &Names) -> Self {
        let target = names.target();
        Self { target, ..self }
    }

    /// One key more. Keys come before arguments.
    pub(crate) fn key(mut self, key: impl Into<Arg<'a>>) -> Self {
        self.keys += 1;
        self.arg(key)
    }

    /// One argument more.
    pub(crate) fn arg(mut self, arg: impl Into<Arg<'a>>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// The script publishes: by the command that is its last argument, if a node of a cluster asks for it, else by
    /// `PUBLISH`.
    pub(crate) fn publishes(self) -> Self {
        let publishes = true;
        Self { publishes, ..self }
    }

    /// For which node of a cluster it is.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// It grants or lengthens something, and so has to be acknowledged where anything has to.
    pub(crate) fn acknowledged(self) -> Self {
        let order = Order::Acknowledged;
        Self { order, ..self }
    }

    /// It must not overtake what was sent before it, nor be overtaken.
    pub(crate) fn in_order(self) -> Self {
        let order = Order::Kept;
        Self { order, ..self }
    }

    /// What it grants to `hold_id` is taken back when it was not acknowledged.
    pub(crate) fn taken_back_by(self, grants: &'a dyn Grants, hold_id: &'a str) -> Self {
        let undo = Some((grants, hold_id));
        Self { undo, ..self }
    }

    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// How to take back what it granted.
    pub(crate) fn undo(&self) -> Option<Undo> {
        let (grants, hold_id) = self.undo?;
        Some(Undo {
            grants: grants.keep(),
            hold_id: hold_id.into(),
        })
    }

    /// As it is sent: a script goes by its digest.
    pub(crate) fn encode(&self) -> Encoded {
        let (script, cmd) = match self.command {
            Command::Script(script) => {
                let cmd = self.encode_as("EVALSHA", Some(script.sha()));
                (Some(script), cmd)
            }
            Command::Plain(command) => (None, self.encode_as(command, None)),
        };
        Encoded {
            script,
            cmd,
            publishes: self.publishes.then_some(Publish::Classic),
        }
    }

    fn encode_as(&self, command: &str, script: Option<&str>) -> Cmd {
        let room = |arg: &Arg| match arg {
            Arg::Text(text) => text.len(),
            Arg::Number(_) => LONGEST_NUMBER,
        };
        let bytes = self.args.iter().map(room).sum::<usize>();
        let script_bytes = script.map_or(0, |script| script.len() + LONGEST_NUMBER);
        let more = if self.publishes { SHARDED.len() } else { 0 };
        let room = bytes + script_bytes + command.len() + more;
        let mut cmd = Cmd::with_capacity(self.args.len() + 4, room);
        cmd.arg(command);
        if let Some(script) = script {
            cmd.arg(script).arg(self.keys);
        }
        for arg in &self.args {
            cmd.arg(arg);
        }
        cmd
    }
}

/// The digits of the largest number.
const LONGEST_NUMBER: usize = 20;

/// A call as it is sent.
pub(crate) struct Encoded {
    script: Option<&'static Script>,
    cmd: Cmd,
    /// How it publishes, if it does.
    publishes: Option<Publish>,
}

/// How a script publishes where channels belong to slots.
const SHARDED: &str = "SPUBLISH";

impl Encoded {
    pub(crate) fn cmd(&self) -> &Cmd {
        &self.cmd
    }

    /// Has it publish as the node does that it is sent to.
    pub(crate) fn publish_as(&mut self, publish: Publish) {
        let Some(before) = self.publishes.filter(|before| *before != publish) else {
            return;
        };
        if before == Publish::Classic {
            self.cmd.arg(SHARDED);
        } else {
            let words = self.cmd.args_iter().count();
            let mut cmd = Cmd::new();
            for word in self.cmd.args_iter().take(words - 1) {
                if let redis::Arg::Simple(word) = word {
                    cmd.arg(word);
                }
            }
            self.cmd = cmd;
        }
        self.publishes = Some(publish);
    }

    /// The digest of its script, if it is one.
    pub(crate) fn digest(&self) -> Option<&'static str> {
        self.script.map(Script::sha)
    }

    /// The same call with the script's text, for a server that does not know its digest.
    pub(crate) fn with_text(&self) -> Option<Cmd> {
        let script = self.script?;
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(script.text);
        for arg in self.cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        Some(cmd)
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Arg<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u32> for Arg<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Arg<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl ToRedisArgs for Arg<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self {
            Self::Text(text) => out.write_arg(text.as_bytes()),
            Self::Number(number) => number.write_redis_args(out),
        }
    }
}

/// A reply, reduced to what scripts and the few plain commands say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Integer(i64),
    /// Most often one or two.
    Integers(SmallVec<[i64; 2]>),
    /// No reply of any of our calls.
    Other,
}

impl Reply {
    pub(crate) fn from_value(value: &Value) -> Self {
        match value {
            Value::Int(n) => Self::Integer(*n),
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::Int(n) => Some(*n),
                    _ => None,
                })
                .collect::<Option<SmallVec<_>>>()
                .map_or(Self::Other, Self::Integers),
            _ => Self::Other,
        }
    }

    /// The integer, if it is one.
    pub(crate) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(n) => Some(*n),
            _ => None,
        }
    }
}

/// What an acquire answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// With the hold's fencing token, if the lock's kind has any.
    Got(Option<FencingToken>),
    /// Held by somebody; how much longer, unless the key has no TTL.
    Busy(Option<std::time::Duration>),
    WrongType,
    /// The next fencing token would be beyond 2^53.
    TokenTooLarge,
    /// The hold that was to be joined is not there.
    Missing,
}

/// What adding a level to a hold answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    /// With the token that was taken for the hold, if any was.
    In(Option<FencingToken>),
    /// The hold is not there.
    Missing,
    WrongType,
    TokenTooLarge,
}

/// What a last release answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// So many clients heard it, where that says who may come next.
    Ended {
        heard_by: Option<u32>,
    },
    /// Ended, but the wake-up was refused: waiters notice it at their next poll.
    Unheard,
    Missing,
}

/// What is known of the places that a client has in a queue that Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// How many it has. Of places that were asked for: 1 when they were given, 0 when none was, since those ahead of
    /// them are lost.
    pub(crate) count: usize,
    /// Whether the first of all is one of them.
    pub(crate) next_is_ours: bool,
}

/// What a forced release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forced {
    Free,
    WrongType,
    /// A hold ended; its number, when it was one of the caller's client.
    Ended {
        own: Option<u64>,
        heard: bool,
    },
}

#[cfg(test)]
mod call_tests;

#[cfg(test)]
mod reply_tests;
