//! What a failed command means: whether it may have run, and whether a later try may do better.
//!
//! 1. A code counts where the server puts it: at the start of the line, or where Redis 6.2 puts the error
//!    of a command in a script: raised (`ERR Error running script (…): @user_script:9: @user_script: 9: -READONLY …`),
//!    or caught and returned (`@user_script: 9: -READONLY …`).
//! 2. An unknown command is answered with what it was called with: names and hold ids. That part is cut
//!    off before anything is read from the text, or shown to anybody.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Cause, ConfigError, Error, NotReplicated};

/// The classes of failure, told apart by what must be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// No connection: certainly not run.
    Unreached,
    /// Sent, and no reply: may have run, and may still run.
    Unanswered,
    /// The server is loading, busy or without its master: certainly not run.
    NotReady,
    /// Stopped in the middle: in a slot of a cluster that migrates, a key that a script itself deleted counts as one that
    /// is at another node. May have run.
    Torn,
    /// A slot of a cluster migrates, and the keys may be at both ends: certainly not run.
    Split,
    /// The server is a replica now: certainly not run, and another connection may reach the master.
    Demoted,
    /// Refused before the first write, by memory, disk or replicas: certainly not run.
    Refused,
    /// Authentication or ACL.
    Denied,
    /// The key is of another type.
    WrongType,
    /// Anything else the server rejects; the same call will be rejected again.
    Rejected,
    /// The server does not know what we need.
    TooOld,
    /// No sentinel watches a master of that name.
    UnknownService,
    /// The client is closed.
    Closed,
    /// The keys are in different slots of a cluster.
    CrossSlot,
}

/// Why a server that is too old is not supported.
pub(crate) const TOO_OLD: &str = "it is older than Redis 6.2";

/// A failed command.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    cause: Cause,
}

/// Failures that are seen on this side only.
#[derive(Debug, thiserror::Error)]
enum Seen {
    #[error("no reply within the command time-out")]
    NoReply,
    #[error("no connection within the command time-out")]
    NoConnection,
    #[error("a reply that no script of ours gives")]
    StrangeReply,
    #[error("the client is closed")]
    Closed,
    #[error("the runtime of this connection has ended")]
    RuntimeEnded,
    #[error("connecting panicked")]
    Panic,
    #[error("{0}")]
    Said(String),
    #[error("the reply came when the lease it granted was over")]
    TooLate,
    #[error("nothing was heard from Redis within the wait")]
    Silence,
    #[error("no sentinel watches a master named {0:?}")]
    UnknownService(Box<str>),
    #[error("the server that the sentinels name is not a master")]
    NotTheMaster,
    #[error("no node of the cluster is known to have the lock")]
    NoNode,
    #[error("its keys are in different slots of the cluster")]
    CrossSlot,
    #[error("the server is too old")]
    TooOld,
}

impl Failure {
    fn seen(class: Class, seen: Seen) -> Self {
        Self {
            class,
            cause: Arc::new(seen),
        }
    }

    pub(crate) fn no_reply() -> Self {
        Self::seen(Class::Unanswered, Seen::NoReply)
    }

    pub(crate) fn no_connection() -> Self {
        Self::seen(Class::Unreached, Seen::NoConnection)
    }

    /// Nobody is known to have what it was for; certainly not sent.
    pub(crate) fn no_node() -> Self {
        Self::seen(Class::NotReady, Seen::NoNode)
    }

    /// No node of a cluster has all of its keys; certainly not run.
    pub(crate) fn cross_slot() -> Self {
        Self::seen(Class::CrossSlot, Seen::CrossSlot)
    }

    pub(crate) fn too_old() -> Self {
        Self::seen(Class::TooOld, Seen::TooOld)
    }

    pub(crate) fn strange_reply() -> Self {
        Self::seen(Class::Rejected, Seen::StrangeReply)
    }

    pub(crate) fn closed() -> Self {
        Self::seen(Class::Closed, Seen::Closed)
    }

    /// The lane ended with its runtime: nothing was sent, and it does not connect again.
    pub(crate) fn runtime_ended() -> Self {
        Self::seen(Class::Unreached, Seen::RuntimeEnded)
    }

    /// Code of the application (a resolver, a provider of credentials) panicked.
    pub(crate) fn panic() -> Self {
        Self::seen(Class::Unreached, Seen::Panic)
    }

    pub(crate) fn too_late() -> Self {
        Self::seen(Class::NotReady, Seen::TooLate)
    }

    pub(crate) fn silence() -> Self {
        Self::seen(Class::Unreached, Seen::Silence)
    }

    pub(crate) fn unknown_service(service: &str) -> Self {
        let seen = Seen::UnknownService(service.into());
        Self::seen(Class::UnknownService, seen)
    }

    /// What was said for identifying a connection is of no use.
    pub(crate) fn secrets(problem: ConfigError) -> Self {
        Self {
            class: Class::Unreached,
            cause: Arc::new(problem),
        }
    }

    /// Too few replicas have it; what was done is undone.
    pub(crate) fn not_replicated(cause: NotReplicated) -> Self {
        Self {
            class: Class::Refused,
            cause: Arc::new(cause),
        }
    }

    pub(crate) fn not_the_master() -> Self {
        Self::seen(Class::Unreached, Seen::NotTheMaster)
    }

    /// The keeper's thread did not start.
    pub(crate) fn starting(error: std::io::Error) -> Self {
        Self {
            class: Class::Unreached,
            cause: Arc::new(error),
        }
    }

    /// Of an attempt to connect.
    pub(crate) fn connecting(error: RedisError) -> Self {
        let of_the_address = is_of_the_address(&error);
        let failure = Self::from(error);
        let class = match failure.class {
            Class::Denied | Class::TooOld => failure.class,
            Class::Rejected if of_the_address => Class::Rejected,
            _ => Class::Unreached,
        };
        Self { class, ..failure }
    }

    /// The same, for who goes on trying to connect: what sentinels do not know yet is only out of reach.
    pub(crate) fn unreached_unless_refused(self) -> Self {
        match self.class {
            Class::UnknownService => Self {
                class: Class::Unreached,
                ..self
            },
            _ => self,
        }
    }

    /// Of the first words on a new connection, on which nothing else was sent.
    pub(crate) fn greeting(self) -> Self {
        match self.class {
            Class::Denied | Class::TooOld => self,
            _ => Self {
                class: Class::Unreached,
                ..self
            },
        }
    }

    /// Whether the command may have run, or may still run.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.class, Class::Unanswered | Class::Torn)
    }

    /// Whether a later try may do better.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self.class,
            Class::Unreached
                | Class::Unanswered
                | Class::Torn
                | Class::NotReady
                | Class::Split
                | Class::Demoted
                | Class::Refused
        )
    }

    /// Whether it was the connection that failed, not the server that answered: it is of no more use.
    pub(crate) fn is_of_connection(&self) -> bool {
        matches!(
            self.class,
            Class::Unreached | Class::Unanswered | Class::Demoted
        )
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.cause.fmt(f)
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let class = classify(&error);
        let cause: Cause = match error.detail().and_then(without_arguments) {
            Some(said) => Arc::new(Seen::Said(said.to_owned())),
            None => Arc::new(error),
        };
        Self { class, cause }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let source = failure.cause;
        match failure.class {
            Class::Unreached | Class::Unanswered | Class::Torn | Class::NotReady | Class::Split => {
                Self::unavailable(source)
            }
            Class::Refused | Class::Demoted => Self::refused(true, source),
            Class::Rejected => Self::refused(false, source),
            Class::Denied => Self::denied(source),
            Class::WrongType => Self::wrong_type(),
            Class::TooOld => ConfigError::Unsupported { reason: TOO_OLD }.into(),
            Class::UnknownService => ConfigError::UnknownService.into(),
            Class::Closed => Self::Closed,
            Class::CrossSlot => Self::cross_slot(),
        }
    }
}

/// The codes that decide, with their class.
const CODES: [(&str, Class); 19] = [
    ("LOADING", Class::NotReady),
    ("BUSY", Class::NotReady),
    ("MASTERDOWN", Class::NotReady),
    ("CLUSTERDOWN", Class::NotReady),
    ("TRYAGAIN", Class::Split),
    ("READONLY", Class::Demoted),
    ("NOREPLICAS", Class::Refused),
    ("MISCONF", Class::Refused),
    ("OOM", Class::Refused),
    ("NOAUTH", Class::Denied),
    ("WRONGPASS", Class::Denied),
    ("NOPERM", Class::Denied),
    ("DENIED", Class::Denied),
    ("WRONGTYPE", Class::WrongType),
    // Where a node of a cluster sends somebody else; who does not find it there may do so later.
    ("MOVED", Class::NotReady),
    ("ASK", Class::NotReady),
    ("CROSSSLOT", Class::CrossSlot),
    ("NOSCRIPT", Class::Rejected),
    ("UNKILLABLE", Class::NotReady),
];

fn classify(error: &RedisError) -> Class {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Class::Denied,
        // The library's own refusals never reached the server; what broke afterwards may have run.
        ErrorKind::InvalidClientConfig | ErrorKind::Client => Class::Rejected,
        ErrorKind::RESP3NotSupported => Class::TooOld,
        ErrorKind::Server(ServerErrorKind::ResponseError) => by_text(error),
        ErrorKind::Server(_) | ErrorKind::Extension => error
            .code()
            .and_then(by_code)
            .unwrap_or_else(|| by_text(error)),
        _ => Class::Unanswered,
    }
}

/// Whether connecting failed for what the address asks for, and will fail again.
fn is_of_the_address(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    error.kind() == ErrorKind::InvalidClientConfig
        || text.contains("DB index")
        || text.contains("SELECT is not allowed")
}

/// Whether the server does not know the command at all.
pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
        && error
            .detail()
            .is_some_and(|text| text.contains("unknown command"))
}

fn by_code(code: &str) -> Option<Class> {
    let (_, class) = CODES.iter().find(|(known, _)| *known == code)?;
    Some(*class)
}

/// How a denial begins where its code is lost: inside a script, and when a database is selected.
const DENIALS: [&str; 6] = [
    "The user executing the script",
    // Redis 7.2.
    "ACL failure in script",
    "this user has no permissions",
    "invalid password",
    "Authentication required",
    "Redis is running in protected mode",
];

/// Errors whose code is `ERR`: wrapped ones, and those that have no code of their own (by 1 and 2).
fn by_text(error: &RedisError) -> Class {
    let text = error.detail().unwrap_or_default();
    let text = without_arguments(text).unwrap_or(text);
    let is_returned = error.code() == Some("@user_script:");
    let text = raised(if is_returned { at_line(text) } else { text });
    if text.starts_with("max number of clients") {
        return Class::Unreached;
    }
    // As Redis says it, as it did before 7.0, and as Valkey does since 9.0.
    let far = ["Script attempted", "Lua script attempted", "Attempted"];
    let far = far.iter().find_map(|start| text.strip_prefix(start));
    if far.is_some_and(|rest| rest.starts_with(" to access a non local key")) {
        return Class::Torn;
    }
    // Redis 7.2 and later name the user.
    let of_user = text.starts_with("User ") && text.contains(" has no permissions");
    if of_user || DENIALS.iter().any(|denial| text.starts_with(denial)) {
        return Class::Denied;
    }
    let code = text.split(' ').next();
    code.and_then(by_code).unwrap_or(Class::Rejected)
}

/// The text up to the arguments that it repeats, if it does.
fn without_arguments(text: &str) -> Option<&str> {
    let (said, _arguments) = text.split_once(", with args beginning with")?;
    Some(said)
}

/// The error of a command in a script, without the one or two places that Redis 6.2 puts before it; any other text as it is.
fn raised(text: &str) -> &str {
    let call = text.strip_prefix("Error running script (call to ");
    let mut rest = call.map_or(text, |call| {
        call.split_once("): ")
            .map_or(text, |(_digest, error)| error)
    });
    while let Some(place) = rest.strip_prefix("@user_script:") {
        rest = at_line(place);
    }
    rest.strip_prefix('-').unwrap_or(rest)
}

/// The error behind the number of the script's line.
fn at_line(place: &str) -> &str {
    place.split_once(": ").map_or(place, |(_line, error)| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(line: &str) -> Class {
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        classify(&value.extract_error().unwrap_err())
    }

    #[test]
    fn codes_are_told_apart() {
        for (line, expected) in [
            (
                "-LOADING Redis is loading the dataset in memory",
                Class::NotReady,
            ),
            ("-BUSY Redis is busy running a script.", Class::NotReady),
            ("-MASTERDOWN Link with MASTER is down", Class::NotReady),
            (
                "-READONLY You can't write against a read only replica.",
                Class::Demoted,
            ),
            (
                "-NOREPLICAS Not enough good replicas to write.",
                Class::Refused,
            ),
            (
                "-MISCONF Redis is configured to save RDB snapshots",
                Class::Refused,
            ),
            (
                "-OOM command not allowed when used memory > 'maxmemory'.",
                Class::Refused,
            ),
            (
                "-TRYAGAIN Multiple keys request during rehashing of slot",
                Class::Split,
            ),
            ("-NOPERM this user has no permissions", Class::Denied),
            ("-DENIED Redis is running in protected mode", Class::Denied),
            ("-NOAUTH Authentication required.", Class::Denied),
            ("-WRONGPASS invalid username-password pair", Class::Denied),
            ("-WRONGTYPE Operation against a key", Class::WrongType),
            ("-MOVED 3999 127.0.0.1:6381", Class::NotReady),
            (
                "-CROSSSLOT Keys in request don't hash to the same slot",
                Class::CrossSlot,
            ),
            (
                "-ERR Script attempted to access a non local key in a cluster node script: 6a1b, on @user_script:9.",
                Class::Torn,
            ),
            (
                "-ERR Attempted to access a non local key in a cluster node script: on @user_script:171.",
                Class::Torn,
            ),
            ("-ERR max number of clients reached", Class::Unreached),
            ("-ERR unknown command", Class::Rejected),
        ] {
            assert_eq!(class(line), expected, "{line}");
        }
    }

    #[test]
    fn wrapped_errors_count_by_what_is_inside() {
        let wrapped =
            "-ERR Error running script (call to f_1): @user_script:9: -READONLY You can't";
        assert_eq!(class(wrapped), Class::Demoted);
        let wrapped = "-ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -NOREPLICAS Not";
        assert_eq!(class(wrapped), Class::Refused);
        let wrapped = "-ERR Error running script (call to f_1): @user_script: 9: OOM command not";
        assert_eq!(class(wrapped), Class::Refused);
        for (returned, expected) in [
            (
                "-@user_script: 33: -OOM command not allowed",
                Class::Refused,
            ),
            (
                "-@user_script: 7: -READONLY You can't write",
                Class::Demoted,
            ),
            ("-@user_script: 7: READONLY", Class::Demoted),
            ("-@user_script: 7: something", Class::Rejected),
            ("-@user_script: ", Class::Rejected),
        ] {
            assert_eq!(class(returned), expected, "{returned}");
        }
        let acl = "-ERR The user executing the script can't run this command or subcommand";
        assert_eq!(class(acl), Class::Denied);
        let newer =
            "-ERR ACL failure in script: User app has no permissions to run the 'get' command";
        assert_eq!(class(newer), Class::Denied);
        let both = "-ERR Error running script (call to f_1): @user_script:9: @user_script: 9: The user executing the \
                    script can't run this command";
        assert_eq!(class(both), Class::Denied);
    }

    #[test]
    fn a_code_counts_only_in_its_place() {
        for text in [
            "unknown command 'EVALSHA', with args beginning with: '1' 'a: READONLY b' '6a1b0c0e:7' ",
            "unknown command `EVALSHA`, with args beginning with: `x -NOPERM y`, ",
            "unknown command 'x', with args beginning with: 'User x has no permissions'",
            "something of a -LOADING kind",
            "something: BUSY bees",
        ] {
            assert_eq!(class(&format!("-ERR {text}")), Class::Rejected, "{text}");
        }
    }

    #[test]
    fn arguments_are_shown_to_nobody() {
        let line = "-ERR unknown command 'EVALSHA', with args beginning with: 'x' '6a1b0c0e:7' ";
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        let failure = Failure::from(value.extract_error().unwrap_err());
        assert_eq!(failure.to_string(), "unknown command 'EVALSHA'");
    }
}
