//! Typed scripts: what is sent to Redis, and what its replies mean.
//!
//! Each Lua file under `lua/` is embedded and named in the [`registry`]. A [`Call`] is one command,
//! ready to be sent: `EVALSHA`, or `EVAL` when the server does not know the script. Every script is
//! harmless when it runs twice; its header says why.

pub(crate) mod lock;
pub(crate) mod registry;

use redis::{Arg, Cmd, Value};

use self::registry::Script;
use crate::lease::LeaseMs;
use crate::names::Names;

/// One command, ready to be sent.
#[derive(Clone)]
pub(crate) struct Call {
    script: Option<&'static Script>,
    cmd: Cmd,
}

impl Call {
    /// A call of `script`, by its digest.
    fn script(script: &'static Script, keys: usize, bytes: usize) -> Self {
        let mut cmd = Cmd::with_capacity(keys * 3 + 5, bytes + 64);
        cmd.arg("EVALSHA").arg(script.sha()).arg(keys);
        Self {
            script: Some(script),
            cmd,
        }
    }

    /// A plain command on one key.
    pub(crate) fn plain(command: &'static str, key: &str) -> Self {
        let mut cmd = redis::cmd(command);
        cmd.arg(key);
        Self { script: None, cmd }
    }

    /// A question to which any answer will do.
    pub(crate) fn ping() -> Self {
        Self {
            script: None,
            cmd: redis::cmd("PING"),
        }
    }

    fn arg(mut self, arg: impl redis::ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    pub(crate) fn cmd(&self) -> &Cmd {
        &self.cmd
    }

    /// The same call with the script's text, for a server that does not know its digest.
    pub(crate) fn with_text(&self) -> Option<Cmd> {
        let script = self.script?;
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(script.text);
        for arg in self.cmd.args_iter().skip(2) {
            if let Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        Some(cmd)
    }
}

/// A reply, reduced to what scripts and the few plain commands say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Integer(i64),
    Integers(Vec<i64>),
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
                .collect::<Option<Vec<_>>>()
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
    Got,
    /// Held by somebody; how much longer, unless the key has no TTL.
    Busy(Option<std::time::Duration>),
    WrongType,
}

/// What a last release answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    Ended {
        heard_by: u32,
    },
    /// Ended, but the wake-up was refused: waiters notice it at their next poll.
    Unheard,
    Missing,
}

/// A hold that is renewed together with others.
#[derive(Clone, Copy)]
pub(crate) struct Renewal<'a> {
    pub(crate) names: &'a Names,
    pub(crate) hold_id: &'a str,
    /// Without one it is only looked at.
    pub(crate) lease: Option<LeaseMs>,
}

/// What a renewal says of one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewed {
    Held,
    Missing,
    Unknown,
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
