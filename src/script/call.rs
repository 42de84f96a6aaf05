//! All scripts, the commands that call them, and the one format of their replies.
//!
//! A reply is a code, or `{code, n}` where the code has a number; a number that is left out is 0. Two codes have two numbers.
//! From -1 up a code is the answer of `PTTL` about a lock that others have. So a plain `PTTL` is read in the same way: -2
//! stands for a free lock.
//!
//! | code | meaning | n |
//! |---|---|---|
//! | -1 and up | busy: others have the lock for so many ms; -1 if the key has no TTL | |
//! | -2 | done: granted, entered, found, given back, ended, written; or the lock is free | by the script: see its header |
//! | -3 | the key is of another kind, or the token is not a number; nothing was written | |
//! | -4 | no fencing token up to 2^53 is left; nothing was written | |
//! | -5 | what the call is about does not exist: the hold, the place, the note | |
//! | -6 | granted, and a writer waits | |
//! | -7 | ended, and the wake-up was published | how many clients received it |
//! | -8 | ended, and the server refused the wake-up | as with -2 |
//! | -9 | done, and the next place in the queue is of the same client | as with -2 |
//! | -10 | granted or entered, with a fencing token | the token |
//! | -11 | done, and the number is -n | as with -2 |
//! | -12 | a number would be out of range; nothing was written | its absolute value |
//! | -13 | granted, and a next one is busy | to how many; then for how many ms the next is busy, -1 if no lease ends |
//! | -14 | the same, and another client's request has waited | as above |
//! | -15 | done, and many clients wait: none needs to poll | as with -2 |
//!
//! Anything else is an error.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, RedisWrite, ToRedisArgs, Value};
use smallvec::SmallVec;

use crate::config::Publish;
use crate::fencing::FencingToken;
use crate::lease::LeaseMs;
use crate::names::Names;
use crate::slot::{Slot, Target};

/// A Lua script, embedded in the crate.
pub(crate) struct Script {
    /// Its file under `lua/`.
    file: &'static str,
    pub(crate) text: &'static str,
    sha: LazyLock<String>,
}

impl Script {
    /// The digest by which a server knows it.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}

macro_rules! scripts {
    ($($name:ident = $path:literal),+ $(,)?) => {
        $(
            pub(crate) static $name: Script = Script {
                file: $path,
                text: include_str!(concat!("../../lua/", $path)),
                sha: LazyLock::new(|| redis::Script::new($name.text).get_hash().to_owned()),
            };
        )+
        #[cfg(test)]
        pub(crate) static ALL: &[&Script] = &[$(&$name),+];
    };
}

scripts! {
    ACQUIRE = "lock/acquire.lua",
    REENTER = "lock/reenter.lua",
    RELEASE = "lock/release.lua",
    VERIFY = "lock/verify.lua",
    FORCE_RELEASE = "lock/force_release.lua",
    PROBE = "lock/probe.lua",
    FENCED_ACQUIRE = "fenced/acquire.lua",
    FENCED_REENTER = "fenced/reenter.lua",
    FENCED_RAISE = "fenced/raise.lua",
    SIMPLE_ACQUIRE = "simple/acquire.lua",
    SIMPLE_RELEASE = "simple/release.lua",
    SIMPLE_VERIFY = "simple/verify.lua",
    SIMPLE_FORCE_RELEASE = "simple/force_release.lua",
    FAIR_ACQUIRE = "fair/acquire.lua",
    FAIR_RELEASE = "fair/release.lua",
    FAIR_FORCE_RELEASE = "fair/force_release.lua",
    FAIR_ENQUEUE = "fair/enqueue.lua",
    FAIR_VOUCH = "fair/vouch.lua",
    RW_READ_ACQUIRE = "rw/read_acquire.lua",
    RW_WRITE_ACQUIRE = "rw/write_acquire.lua",
    RW_ASSERT = "rw/assert.lua",
    RW_ASSERT_TIMEOUT = "rw/assert_timeout.lua",
    RW_RELEASE = "rw/release.lua",
    RW_DOWNGRADE = "rw/downgrade.lua",
    RW_NOTE = "rw/note.lua",
    RW_FORCE_RELEASE = "rw/force_release.lua",
    RW_LOOK = "rw/look.lua",
    PERMITS_ACQUIRE = "permits/acquire.lua",
    PERMITS_RELEASE = "permits/release.lua",
    PERMITS_FORGET = "permits/forget.lua",
    PERMITS_RENEW = "permits/renew.lua",
    PERMITS_LOOK = "permits/look.lua",
    PERMITS_CHANGE = "permits/change.lua",
    PERMITS_NOTE = "permits/note.lua",
    LATCH_LOOK = "latch/look.lua",
    LATCH_CHANGE = "latch/change.lua",
    LATCH_COUNT_DOWN = "latch/count_down.lua",
}

/// A hold that a call is about, and the lease that it is to have.
#[derive(Clone, Copy)]
pub(crate) struct HoldRef<'a> {
    pub(crate) names: &'a Names,
    pub(crate) id: &'a str,
    pub(crate) lease: LeaseMs,
}

/// One command, with its keys and arguments.
#[derive(Clone)]
pub(crate) struct Call<'a> {
    /// Sent by its digest instead of `command`.
    script: Option<&'static Script>,
    command: &'static str,
    /// How many of `args` are keys.
    keys: usize,
    /// Room for every call about one hold. Calls about several are rare.
    args: SmallVec<[Arg<'a>; 6]>,
    pub(crate) target: Target,
    publishes: bool,
    /// Its first argument, and what it is where channels belong to slots.
    by_channels: Option<[&'static str; 2]>,
    pub(crate) order: Order,
    starts: Option<&'a dyn Startable>,
    /// It asks whether a hold exists, and changes nothing but its lease.
    pub(crate) verifies: bool,
    pub(crate) turn: Turn,
    /// It goes on waiting while there is no connection.
    pub(crate) patient: bool,
}

/// Which commands go first where several wait for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// About a hold that exists: renewals, releases, levels.
    Hold,
    /// For a caller that waits already.
    Waiter,
    /// The first try of a caller.
    New,
}

/// Where a call may run among others when replicas must acknowledge what is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// It may overtake others.
    Free,
    /// It keeps its order among those that are not free.
    Kept,
    /// The same, and it counts only when replicas have acknowledged it.
    Acknowledged,
}

/// A lock of which holds can be started.
pub(crate) trait Startable: Send + Sync {
    /// Asks whether an acquire would find the lock busy. The reply is that of an acquire, and the reply of a free lock is
    /// that of a grant.
    fn look(&self) -> Call<'_>;
}

/// A key or an argument.
#[derive(Clone)]
pub(crate) enum Arg<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    /// What Redisson writes as raw bytes.
    Bytes([u8; 16]),
}

impl Script {
    /// A call of this script for the lock of `names`.
    pub(crate) fn on<'a>(&'static self, names: &'a Names) -> Call<'a> {
        Call::script(self).lock(names)
    }
}

impl<'a> Call<'a> {
    pub(crate) fn script(script: &'static Script) -> Self {
        let script = Some(script);
        Self {
            script,
            ..Self::plain("EVALSHA")
        }
    }

    /// A command that is not a script.
    pub(crate) fn plain(command: &'static str) -> Self {
        Self {
            script: None,
            command,
            keys: 0,
            args: SmallVec::new(),
            target: Target::Any,
            publishes: false,
            by_channels: None,
            order: Order::Free,
            starts: None,
            verifies: false,
            turn: Turn::Waiter,
            patient: false,
        }
    }

    /// Any answer shows that the server is alive.
    pub(crate) fn ping() -> Self {
        Self::plain("PING")
    }

    /// Adds the key of a lock, and goes to the cluster node that has the lock.
    pub(crate) fn lock(self, names: &'a Names) -> Self {
        self.for_node_of(names).key(names.key())
    }

    /// Adds a key that belongs to no lock, and goes to the cluster node that has it.
    pub(crate) fn own_key(self, key: &'a str) -> Self {
        let target = Target::Slot(Slot::of(key));
        Self { target, ..self }.key(key)
    }

    /// Goes to the cluster node that has the lock, though its key is not among the keys.
    pub(crate) fn for_node_of(self, names: &Names) -> Self {
        let target = names.target();
        Self { target, ..self }
    }

    /// Adds a key. Keys come before arguments.
    pub(crate) fn key(mut self, key: impl Into<Arg<'a>>) -> Self {
        self.keys += 1;
        self.arg(key)
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl Into<Arg<'a>>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds the channel on which the script wakes waiters, as its last argument.
    pub(crate) fn wakes(self, names: &'a Names) -> Self {
        self.arg(names.channel()).publishes()
    }

    /// The script publishes: by `PUBLISH`, or by the command that it gets as its last argument.
    pub(crate) fn publishes(self) -> Self {
        let publishes = true;
        Self { publishes, ..self }
    }

    /// Adds the first argument of a command: the second of these words where channels belong to slots.
    pub(crate) fn by_channels(self, words: [&'static str; 2]) -> Self {
        let by_channels = Some(words);
        Self {
            by_channels,
            ..self
        }
        .arg(words[0])
    }

    /// Replicas must acknowledge it, if the client asks for acknowledgements.
    pub(crate) fn acknowledged(self) -> Self {
        let order = Order::Acknowledged;
        Self { order, ..self }
    }

    /// It neither overtakes the calls sent before it nor is overtaken.
    pub(crate) fn in_order(self) -> Self {
        let order = Order::Kept;
        Self { order, ..self }
    }

    /// It starts a hold of `lock`.
    pub(crate) fn starts(self, lock: &'a dyn Startable) -> Self {
        let starts = Some(lock);
        Self { starts, ..self }
    }

    pub(crate) fn verifies(self) -> Self {
        let verifies = true;
        Self { verifies, ..self }
    }

    /// It is about a hold that exists.
    pub(crate) fn of_hold(self) -> Self {
        let turn = Turn::Hold;
        Self { turn, ..self }
    }

    /// It is the first try of a caller.
    pub(crate) fn of_new_caller(self, patient: bool) -> Self {
        let turn = Turn::New;
        Self {
            turn,
            patient,
            ..self
        }
    }

    /// The file of its script, or the command.
    pub(crate) fn name(&self) -> &'static str {
        self.script.map_or(self.command, |script| script.file)
    }

    /// If it starts a hold: the command that asks whether others have the lock. A script is sent as its text.
    pub(crate) fn look(&self) -> Option<Cmd> {
        let call = self.starts?.look().encode();
        Some(call.with_text().unwrap_or(call.cmd))
    }

    pub(crate) fn encode(&self) -> Encoded {
        let bytes: usize = self.args.iter().map(Arg::most_bytes).sum();
        let mut cmd = Cmd::with_capacity(self.args.len() + 4, bytes + MOST_BYTES_AROUND);
        cmd.arg(self.command);
        if let Some(script) = self.script {
            cmd.arg(script.sha()).arg(self.keys);
        }
        for arg in &self.args {
            cmd.arg(arg);
        }
        Encoded {
            script: self.script,
            cmd,
            publishes: self.publishes.then_some(Publish::Classic),
            by_channels: self.by_channels,
        }
    }
}

/// Enough for `EVALSHA`, a digest, the number of keys and `SPUBLISH`.
const MOST_BYTES_AROUND: usize = 64;

/// The argument with which a script publishes where channels belong to slots.
const SHARDED: &str = "SPUBLISH";

/// A call as it is sent.
#[derive(Clone)]
pub(crate) struct Encoded {
    script: Option<&'static Script>,
    cmd: Cmd,
    /// How the script publishes, if it does.
    publishes: Option<Publish>,
    by_channels: Option<[&'static str; 2]>,
}

impl Encoded {
    pub(crate) fn cmd(&self) -> &Cmd {
        &self.cmd
    }

    /// Fits the call to the kind of channels of the node that it is sent to: how its script publishes, or what it asks for.
    pub(crate) fn publish_as(&mut self, publish: Publish) {
        if let Some([classic, sharded]) = self.by_channels {
            let mut cmd = copied(Cmd::new(), self.cmd.args_iter().take(1));
            cmd.arg(if publish == Publish::Sharded {
                sharded
            } else {
                classic
            });
            self.cmd = copied(cmd, self.cmd.args_iter().skip(2));
        }
        match (self.publishes, publish) {
            (Some(Publish::Classic), Publish::Sharded) => {
                self.cmd.arg(SHARDED);
            }
            (Some(Publish::Sharded), Publish::Classic) => {
                let words = self.cmd.args_iter().count();
                self.cmd = copied(Cmd::new(), self.cmd.args_iter().take(words - 1));
            }
            _ => return,
        }
        self.publishes = Some(publish);
    }

    /// The digest of the script, if the call is one.
    pub(crate) fn digest(&self) -> Option<&'static str> {
        self.script.map(Script::sha)
    }

    /// The same call with the script's text, for a server that does not know its digest.
    pub(crate) fn with_text(&self) -> Option<Cmd> {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(self.script?.text);
        Some(copied(cmd, self.cmd.args_iter().skip(2)))
    }
}

/// Appends words of another command.
fn copied<'a>(mut cmd: Cmd, words: impl Iterator<Item = redis::Arg<&'a [u8]>>) -> Cmd {
    for word in words {
        if let redis::Arg::Simple(word) = word {
            cmd.arg(word);
        }
    }
    cmd
}

impl Arg<'_> {
    fn most_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) => 20,
            Self::Bytes(bytes) => bytes.len(),
        }
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

impl From<[u8; 16]> for Arg<'_> {
    fn from(bytes: [u8; 16]) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<LeaseMs> for Arg<'_> {
    fn from(lease: LeaseMs) -> Self {
        Self::Number(lease.as_millis())
    }
}

impl ToRedisArgs for Arg<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self {
            Self::Text(text) => out.write_arg(text.as_bytes()),
            Self::Number(number) => number.write_redis_args(out),
            Self::Bytes(bytes) => out.write_arg(bytes),
        }
    }
}

/// A reply to any of our calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// None if the key has no TTL.
    Busy(Option<Duration>),
    Done(u64),
    WrongType,
    TokenTooLarge,
    Gone,
    WriterWaits,
    Woke(u32),
    Unheard(u64),
    NextIsOurs(u64),
    Token(FencingToken),
    DoneNegative(u64),
    OutOfRange(u64),
    /// Granted to so many, and for how long the next one is busy, if that ends by itself.
    NextIsBusy(u64, Option<Duration>),
    /// The same, and a request of another client has waited.
    OthersWait(u64, Option<Duration>),
    ManyWait(u64),
    /// No script answers like this; a plain command may.
    Other,
}

impl Reply {
    pub(crate) fn from_value(value: &Value) -> Self {
        let read = match value {
            Value::Int(code) => Self::of(*code, 0),
            Value::Array(items) => match items[..] {
                [Value::Int(code), Value::Int(n)] => {
                    u64::try_from(n).ok().and_then(|n| Self::of(code, n))
                }
                [
                    Value::Int(code @ (-13 | -14)),
                    Value::Int(n),
                    Value::Int(ms),
                ] => {
                    let ms = u64::try_from(ms).ok().map(Duration::from_millis);
                    u64::try_from(n).ok().map(|n| match code {
                        -13 => Self::NextIsBusy(n, ms),
                        _ => Self::OthersWait(n, ms),
                    })
                }
                _ => None,
            },
            _ => None,
        };
        read.unwrap_or(Self::Other)
    }

    fn of(code: i64, n: u64) -> Option<Self> {
        Some(match (code, n) {
            (-1, 0) => Self::Busy(None),
            (-2, n) => Self::Done(n),
            (-3, 0) => Self::WrongType,
            (-4, 0) => Self::TokenTooLarge,
            (-5, 0) => Self::Gone,
            (-6, 0) => Self::WriterWaits,
            (-7, n) => Self::Woke(u32::try_from(n).ok()?),
            (-8, n) => Self::Unheard(n),
            (-9, n) => Self::NextIsOurs(n),
            (-10, n) => Self::Token(FencingToken::new(n)?),
            (-11, n) => Self::DoneNegative(n),
            (-12, n) => Self::OutOfRange(n),
            (-15, n) => Self::ManyWait(n),
            (ms, 0) => Self::Busy(Some(Duration::from_millis(u64::try_from(ms).ok()?))),
            _ => return None,
        })
    }

    /// Whether it granted the lock, as a reply to an acquire.
    pub(crate) fn is_grant(self) -> bool {
        matches!(
            self,
            Self::Done(_)
                | Self::WriterWaits
                | Self::NextIsOurs(_)
                | Self::Token(_)
                | Self::NextIsBusy(..)
                | Self::OthersWait(..)
        )
    }

    /// Whether it says no: nothing was granted, and what the call is about is as it was.
    pub(crate) fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::Busy(_)
                | Self::WrongType
                | Self::TokenTooLarge
                | Self::Gone
                | Self::OutOfRange(_)
        )
    }

    pub(crate) fn token(self) -> Option<FencingToken> {
        match self {
            Self::Token(token) => Some(token),
            _ => None,
        }
    }

    /// Whether the hold existed, as a reply to a call that verified, counted or downgraded it.
    pub(crate) fn found(self) -> Option<bool> {
        match self {
            Self::Done(_) | Self::Unheard(_) => Some(true),
            Self::Gone => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "registry_tests.rs"]
mod registry_tests;

#[cfg(test)]
#[path = "reply_tests.rs"]
mod reply_tests;
