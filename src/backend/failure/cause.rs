//! A failed command: its [class](Class), which decides what happens next, and the cause that a user sees.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use super::class::{Class, classify, is_of_the_address, without_arguments};
use crate::error::{Cause, ConfigError, Error, NotReplicated};

/// The reason in an error about a server without `HELLO`: an old one, or one that hides the command.
const NO_HELLO: &str = "it does not know HELLO, which Redis has since 6.0";

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    cause: Cause,
    /// The command granted a hold, and this is why the grant does not count.
    pub(crate) of_grant: bool,
}

/// What redis-rs reports. Its source would repeat its text, so there is none.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RedisCause(RedisError);

impl Failure {
    /// With a cause that is only a text, for users.
    pub(crate) fn of(
        class: Class,
        text: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::new(class, text.into().into())
    }

    fn new(class: Class, cause: Cause) -> Self {
        let of_grant = false;
        Self {
            class,
            cause,
            of_grant,
        }
    }

    pub(crate) fn slow_reply(limit: Duration) -> Self {
        let text = format!("no reply within command_timeout ({limit:?})");
        Self::of(Class::Unanswered, text)
    }

    /// The connection was given up, or its runtime ended.
    pub(crate) fn no_reply() -> Self {
        Self::of(Class::Unanswered, "the connection ended before the reply")
    }

    pub(crate) fn no_connection() -> Self {
        Self::of(Class::Unreached, "no connection")
    }

    pub(crate) fn no_connection_within(limit: Duration) -> Self {
        let text = format!("no connection within command_timeout ({limit:?})");
        Self::of(Class::Unreached, text)
    }

    /// It waited for its turn in this process, and was certainly not sent.
    pub(crate) fn not_sent() -> Self {
        Self::of(
            Class::Unreached,
            "not sent: too many commands wait before it",
        )
    }

    pub(crate) fn slow_connect(limit: Duration) -> Self {
        let text = format!("no connection within connect_timeout ({limit:?})");
        Self::of(Class::Unreached, text)
    }

    /// No known node has the slot. The command was certainly not sent.
    pub(crate) fn no_node() -> Self {
        let text = "no known cluster node serves the slot of the lock";
        Self::of(Class::NotReady, text)
    }

    /// No single node has all keys. The command certainly did not run.
    pub(crate) fn cross_slot() -> Self {
        let text = "the keys of the lock are in different cluster slots";
        Self::of(Class::CrossSlot, text)
    }

    pub(crate) fn no_hello() -> Self {
        Self::of(Class::NoHello, NO_HELLO)
    }

    pub(crate) fn strange_reply() -> Self {
        Self::of(Class::Rejected, "unexpected reply from a script")
    }

    pub(crate) fn closed() -> Self {
        Self::of(Class::Closed, "the client is closed")
    }

    /// The lane ended with its runtime. Nothing was sent, and the lane does not reconnect.
    pub(crate) fn runtime_ended() -> Self {
        Self::of(Class::Unreached, "the runtime of this connection has ended")
    }

    /// The application's address map or credentials function panicked.
    pub(crate) fn panic() -> Self {
        Self::of(Class::Unreached, "connecting panicked")
    }

    pub(crate) fn too_late() -> Self {
        let text = "the reply came after the lease it granted had expired";
        Self::of(Class::NotReady, text)
    }

    pub(crate) fn silence() -> Self {
        Self::of(Class::Unreached, "no reply from Redis within the wait")
    }

    pub(crate) fn unknown_service(service: &str) -> Self {
        let text = format!("no sentinel watches a master named {service:?}");
        Self::of(Class::UnknownService, text)
    }

    /// The application's credentials cannot be used.
    pub(crate) fn secrets(problem: ConfigError) -> Self {
        Self::new(Class::Unreached, Arc::new(problem))
    }

    /// Too few replicas acknowledge commands.
    pub(crate) fn not_replicated(cause: NotReplicated) -> Self {
        Self::new(Class::Refused, Arc::new(cause))
    }

    /// The same failure of a command that granted a hold.
    pub(crate) fn of_grant(self) -> Self {
        let of_grant = true;
        Self { of_grant, ..self }
    }

    /// The server is a replica. Nothing was sent to it.
    pub(crate) fn demoted() -> Self {
        Self::of(Class::Demoted, "the server is a replica now")
    }

    /// The system did not start the keeper's thread.
    pub(crate) fn starting(error: std::io::Error) -> Self {
        Self::new(Class::Unreached, Arc::new(error))
    }

    /// For an error of an attempt to connect: nothing was sent.
    pub(crate) fn connecting(error: RedisError) -> Self {
        let of_the_address = is_of_the_address(&error);
        let failure = Self::from(error);
        match failure.class {
            Class::Rejected if of_the_address => failure,
            _ => failure.greeting(),
        }
    }

    /// For a lane, which keeps connecting: a service that the sentinels do not know is one that has not started yet.
    pub(crate) fn unreached_unless_refused(self) -> Self {
        let class = match self.class {
            Class::UnknownService => Class::Unreached,
            class => class,
        };
        Self { class, ..self }
    }

    /// For an error of the first command on a new connection: nothing else was sent on it.
    pub(crate) fn greeting(self) -> Self {
        let class = match self.class {
            Class::Denied | Class::NoHello => self.class,
            _ => Class::Unreached,
        };
        Self { class, ..self }
    }

    /// Whether the command may have run, or may still run.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.class, Class::Unanswered | Class::Torn)
    }

    pub(crate) fn was_not_sent(&self) -> bool {
        self.class == Class::Unreached
    }

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

    /// Whether the socket failed, and no server said why.
    pub(crate) fn is_of_socket(&self) -> bool {
        let cause = self.cause.downcast_ref::<RedisCause>();
        cause.is_some_and(|RedisCause(error)| error.is_io_error() || error.is_connection_dropped())
    }

    /// Whether the connection cannot be used any more.
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
        match error.detail().and_then(without_arguments) {
            Some(said) => Self::of(class, said),
            None => Self::new(class, Arc::new(RedisCause(error))),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let was_not_sent = failure.was_not_sent();
        let source = failure.cause;
        match failure.class {
            Class::Unreached | Class::Unanswered | Class::Torn | Class::NotReady | Class::Split => {
                Self::unavailable(!was_not_sent, source)
            }
            Class::Refused | Class::Demoted => Self::refused(true, source),
            Class::Rejected => Self::refused(false, source),
            Class::Denied => Self::Denied { lock: None, source },
            Class::WrongType => Self::wrong_type(),
            Class::NoHello => ConfigError::Unsupported { reason: NO_HELLO }.into(),
            Class::UnknownService => ConfigError::UnknownService.into(),
            Class::Closed => Self::Closed,
            Class::CrossSlot => Self::CrossSlot { lock: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    #[test]
    fn arguments_are_shown_to_nobody() {
        let line = "-ERR unknown command 'EVALSHA', with args beginning with: 'x' '6a1b0c0e:7' ";
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        let failure = Failure::from(value.extract_error().unwrap_err());
        assert_eq!(failure.to_string(), "unknown command 'EVALSHA'");
    }

    fn failed(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    fn of(class: Class) -> Failure {
        Failure::of(class, "a text")
    }

    const ALL: [Class; 14] = [
        Class::Unreached,
        Class::Unanswered,
        Class::NotReady,
        Class::Torn,
        Class::Split,
        Class::Demoted,
        Class::Refused,
        Class::Denied,
        Class::WrongType,
        Class::Rejected,
        Class::NoHello,
        Class::UnknownService,
        Class::Closed,
        Class::CrossSlot,
    ];

    fn all_but(classes: &[Class]) -> impl Iterator<Item = Class> {
        ALL.into_iter()
            .filter(move |class| !classes.contains(class))
    }

    /// Only a command that may have run is asked about, only a transient failure is retried, and only a failed connection
    /// is replaced.
    #[test]
    fn what_each_class_leads_to() {
        let unanswered = [Class::Unanswered, Class::Torn];
        assert!(unanswered.iter().all(|class| of(*class).is_unanswered()));
        assert!(!all_but(&unanswered).any(|class| of(class).is_unanswered()));
        let of_connection = [Class::Unreached, Class::Unanswered, Class::Demoted];
        assert!(
            of_connection
                .iter()
                .all(|class| of(*class).is_of_connection())
        );
        assert!(!all_but(&of_connection).any(|class| of(class).is_of_connection()));
        let (transient, lasting) = ALL.split_at(7);
        assert!(transient.iter().all(|class| of(*class).is_transient()));
        assert!(!lasting.iter().any(|class| of(*class).is_transient()));
        for class in all_but(&[Class::Unreached, Class::Unanswered]) {
            let error = Error::from(of(class));
            assert_eq!(
                error.is_transient(),
                of(class).is_transient(),
                "{class:?}: {error}"
            );
        }
    }

    #[test]
    fn who_connects_fails_for_good_only_by_what_does_not_pass() {
        for (line, expected) in [
            ("-NOAUTH Authentication required.", Class::Denied),
            ("-WRONGPASS invalid", Class::Denied),
            ("-LOADING Redis is loading", Class::Unreached),
            ("-ERR max number of clients reached", Class::Unreached),
            ("-ERR DB index is out of range", Class::Rejected),
            (
                "-ERR SELECT is not allowed in cluster mode",
                Class::Rejected,
            ),
            ("-ERR something else", Class::Unreached),
        ] {
            assert_eq!(Failure::connecting(failed(line)).class, expected, "{line}");
        }
        let config = RedisError::from((ErrorKind::InvalidClientConfig, "no such host"));
        assert_eq!(Failure::connecting(config).class, Class::Rejected);
        let old = RedisError::from((ErrorKind::RESP3NotSupported, "HELLO"));
        assert_eq!(Failure::connecting(old).class, Class::NoHello);
        let broken = RedisError::from(std::io::Error::other("broken"));
        assert_eq!(Failure::connecting(broken).class, Class::Unreached);
    }

    #[test]
    fn a_greeting_was_not_run_by_anybody() {
        for class in ALL {
            let expected = match class {
                Class::Denied | Class::NoHello => class,
                _ => Class::Unreached,
            };
            assert_eq!(of(class).greeting().class, expected);
        }
    }

    #[test]
    fn what_sentinels_do_not_know_yet_is_out_of_reach_for_who_goes_on() {
        for class in all_but(&[Class::UnknownService]) {
            assert_eq!(of(class).unreached_unless_refused().class, class);
        }
        let unknown = Failure::unknown_service("main");
        assert!(unknown.to_string().contains("main"));
        let unreached = unknown.unreached_unless_refused();
        assert_eq!(unreached.class, Class::Unreached);
    }
}
