//! What can be done to a command, and which commands are meant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    Requests,
    /// From server to client.
    Replies,
    /// Both ways.
    Both,
}

impl Direction {
    pub(super) fn includes(self, other: Direction) -> bool {
        self == Direction::Both || self == other
    }
}

/// What happens to a command, its reply, or its connection.
///
/// TCP loses nothing in the middle of a stream, and a client pairs replies with requests by their order. So what is
/// swallowed takes everything behind it along: the connection stays open and is deaf in that direction from then on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// The command never arrives, nor anything after it on this connection; it stays open.
    SwallowRequest,
    /// The command is executed; its reply never arrives, nor anything after it on this connection; it stays open.
    /// Of a pub/sub message, only the message is lost.
    SwallowReply,
    /// The command never arrives, and the connection is reset.
    ResetBefore,
    /// The command is executed, and the connection is reset instead of delivering its reply.
    ResetAfter,
    /// The command waits for this time, and everything behind it on this connection.
    DelayRequest(Duration),
    /// The reply waits for this time, and everything behind it on this connection.
    DelayReply(Duration),
    /// From this command on, bytes are accepted and not forwarded.
    BlackHole(Direction),
    /// The server's side is closed, the client's stays open: what it writes is accepted and goes nowhere.
    HalfOpen,
    /// The command is not forwarded; the client gets this error, without the leading `-`.
    Answer(String),
}

impl Fault {
    /// The name under which it is counted.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::SwallowRequest => "swallow_request",
            Fault::SwallowReply => "swallow_reply",
            Fault::ResetBefore => "reset_before",
            Fault::ResetAfter => "reset_after",
            Fault::DelayRequest(_) => "delay_request",
            Fault::DelayReply(_) => "delay_reply",
            Fault::BlackHole(_) => "black_hole",
            Fault::HalfOpen => "half_open",
            Fault::Answer(_) => "answer",
        }
    }
}

/// A command as sent, or a pub/sub message as delivered: its parts as bytes.
#[derive(Debug)]
pub struct Command {
    /// The name and the arguments.
    pub args: Vec<Vec<u8>>,
    pub(super) message: bool,
}

impl Command {
    /// The command's name in upper case.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.args.first().map_or(&b""[..], Vec::as_slice);
        String::from_utf8_lossy(name).to_ascii_uppercase()
    }

    /// How long it is on the wire: an array of strings, each behind its length.
    pub(super) fn bytes(&self) -> u64 {
        let header = |count: usize| 3 + count.to_string().len();
        let args = self.args.iter();
        let args: usize = args.map(|arg| header(arg.len()) + arg.len() + 2).sum();
        (header(self.args.len()) + args) as u64
    }
}

type Test = dyn Fn(&Command) -> bool + Send + Sync;

/// Which commands are meant.
#[derive(Clone)]
#[must_use]
pub struct Match {
    messages: bool,
    test: Arc<Test>,
}

impl Match {
    /// Every command, those of connecting included.
    pub fn any() -> Self {
        Self::when(|_| true)
    }

    /// Commands of this name, in any case.
    pub fn command(name: &str) -> Self {
        let name = name.to_ascii_uppercase();
        Self::when(move |command| command.name() == name)
    }

    /// Commands with an argument that contains these bytes, such as the name of a lock.
    pub fn arg(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref().to_vec();
        Self::when(move |command| command.args.iter().any(|arg| contains(arg, &bytes)))
    }

    /// Commands with exactly this argument, such as a key.
    pub fn key(key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref().to_vec();
        Self::when(move |command| command.args.contains(&key))
    }

    /// Calls of the script with this text, by EVAL or EVALSHA.
    pub fn script(text: &str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        let text = text.to_owned();
        Self::when(move |command| match command.args.get(1) {
            Some(script) => script == hash.as_bytes() || script == text.as_bytes(),
            None => false,
        })
    }

    /// Commands for which `test` says so.
    pub fn when(test: impl Fn(&Command) -> bool + Send + Sync + 'static) -> Self {
        Self {
            messages: false,
            test: Arc::new(test),
        }
    }

    /// Pub/sub messages on this channel, on their way to a subscriber. Faults of replies apply to them.
    pub fn message(channel: &str) -> Self {
        Self {
            messages: true,
            ..Self::key(channel)
        }
    }

    /// Those of `self` that `other` means as well.
    pub fn and(self, other: Match) -> Self {
        let test = Arc::clone(&self.test);
        Self {
            messages: self.messages,
            test: Arc::new(move |command| test(command) && (other.test)(command)),
        }
    }

    pub(super) fn means(&self, command: &Command) -> bool {
        self.messages == command.message && (self.test)(command)
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Match")
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    needle.is_empty() || haystack.windows(needle.len()).any(|part| part == needle)
}
