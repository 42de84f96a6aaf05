//! The classes of failure, and how an error reply of Redis is classified: by its code, or by its text.
//!
//! 1. A code counts where the server puts it: at the start of the line, or where Redis 6.2 puts the error
//!    of a command in a script: raised (`ERR Error running script (…): @user_script:9: @user_script: 9: -READONLY …`),
//!    or caught and returned (`@user_script: 9: -READONLY …`).
//! 2. The error for an unknown command repeats its arguments: names and hold ids. They are cut off before the text is
//!    read or shown.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The class of a failure decides what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// No connection. The command certainly did not run.
    Unreached,
    /// Sent, without a reply. The command may have run, or may still run.
    Unanswered,
    /// The server is loading, busy or without its master. The command certainly did not run.
    NotReady,
    /// A script stopped in the middle: while a cluster slot migrates, a key that the script itself deleted counts as a key
    /// of another node. The script may have run in part.
    Torn,
    /// A cluster slot migrates, and its keys are on two nodes. The command certainly did not run.
    Split,
    /// The server is a replica now. The command certainly did not run; a new connection may reach the master.
    Demoted,
    /// Refused before the first write for lack of memory, disk or replicas. The command certainly did not run.
    Refused,
    /// Authentication or ACL.
    Denied,
    WrongType,
    /// Any other error. The same call would fail again.
    Rejected,
    /// The server does not know `HELLO`.
    NoHello,
    /// No sentinel watches a master of this name.
    UnknownService,
    Closed,
    /// The keys are in different slots of a cluster.
    CrossSlot,
}

const CODES: [(&str, Class); 20] = [
    ("LOADING", Class::NotReady),
    ("BUSY", Class::NotReady),
    ("MASTERDOWN", Class::NotReady),
    ("CLUSTERDOWN", Class::NotReady),
    ("TRYAGAIN", Class::Split),
    ("READONLY", Class::Demoted),
    // What waits for replicas when its server becomes one.
    ("UNBLOCKED", Class::Demoted),
    ("NOREPLICAS", Class::Refused),
    ("MISCONF", Class::Refused),
    ("OOM", Class::Refused),
    ("NOAUTH", Class::Denied),
    ("WRONGPASS", Class::Denied),
    ("NOPERM", Class::Denied),
    ("DENIED", Class::Denied),
    ("WRONGTYPE", Class::WrongType),
    // A redirect that was followed too often, or that could not be read. A later try may find the node.
    ("MOVED", Class::NotReady),
    ("ASK", Class::NotReady),
    ("CROSSSLOT", Class::CrossSlot),
    ("NOSCRIPT", Class::Rejected),
    ("UNKILLABLE", Class::NotReady),
];

pub(super) fn classify(error: &RedisError) -> Class {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Class::Denied,
        // redis-rs refused it, so it never reached the server. Errors of other kinds came after the send.
        ErrorKind::InvalidClientConfig | ErrorKind::Client => Class::Rejected,
        ErrorKind::RESP3NotSupported => Class::NoHello,
        ErrorKind::Server(_) | ErrorKind::Extension => error
            .code()
            .and_then(by_code)
            .unwrap_or_else(|| by_text(error)),
        _ => Class::Unanswered,
    }
}

/// Whether connecting failed for what the address asks for, and will fail again.
pub(super) fn is_of_the_address(error: &RedisError) -> bool {
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

/// How a denial begins where Redis gives no code: inside a script, and for SELECT.
const DENIALS: [&str; 6] = [
    "The user executing the script",
    // Redis 7.2.
    "ACL failure in script",
    "this user has no permissions",
    "invalid password",
    "Authentication required",
    "Redis is running in protected mode",
];

/// Words with which managed services refuse what would exceed a limit of the plan. A later try may be within it.
const LIMITS: [&str; 10] = [
    "max clients",
    "max concurrent",
    "max number of",
    "limit exceeded",
    "limit reached",
    "rate limit",
    "quota",
    "throttl",
    "too many connections",
    "too many requests",
];

/// Errors with the code `ERR`. The real code may stand further back, where Redis 6.2 puts it (rule 1).
fn by_text(error: &RedisError) -> Class {
    let text = error.detail().unwrap_or_default();
    let text = without_arguments(text).unwrap_or(text);
    let is_returned = error.code() == Some("@user_script:");
    let text = raised(if is_returned { at_line(text) } else { text });
    if text.starts_with("max number of clients") {
        return Class::Unreached;
    }
    // Redis since 7.0, Redis before 7.0, Valkey since 9.0.
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
    code.and_then(by_code).unwrap_or_else(|| {
        let said = [error.code().unwrap_or_default(), text].join(" ");
        let said = said.to_ascii_lowercase();
        if LIMITS.iter().any(|limit| said.contains(limit)) {
            Class::Refused
        } else {
            Class::Rejected
        }
    })
}

/// The text without the arguments that it repeats, if it repeats any.
pub(super) fn without_arguments(text: &str) -> Option<&str> {
    let (said, _arguments) = text.split_once(", with args beginning with")?;
    Some(said)
}

/// Removes the script positions that Redis 6.2 puts before the error of a command.
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

/// The text after the line number.
fn at_line(place: &str) -> &str {
    place.split_once(": ").map_or(place, |(_line, error)| error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::script::any_reply_tests::{any_error, cases};

    proptest! {
        #![proptest_config(cases(10_000))]
        #[test]
        fn every_error_has_a_class(error in any_error()) {
            let _ = (classify(&error), is_of_the_address(&error), is_unknown_command(&error));
        }
    }

    fn class(line: &str) -> Class {
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        classify(&value.extract_error().unwrap_err())
    }

    #[test]
    fn each_code_has_its_class() {
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
            ("-ERR max clients reached", Class::Refused),
            (
                "-ERR max daily request limit exceeded. Limit: 10000, Usage: 10000.",
                Class::Refused,
            ),
            ("-ERR max concurrent connections exceeded", Class::Refused),
            ("-ERR Quota exceeded for this database", Class::Refused),
            ("-QUOTA exceeded", Class::Refused),
            ("-ERR max request size exceeded", Class::Rejected),
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

    fn failed(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn the_library_refuses_before_it_sends_and_breaks_afterwards() {
        let class = |kind| classify(&RedisError::from((kind, "said")));
        assert_eq!(class(ErrorKind::AuthenticationFailed), Class::Denied);
        assert_eq!(class(ErrorKind::Client), Class::Rejected);
        assert_eq!(class(ErrorKind::InvalidClientConfig), Class::Rejected);
        assert_eq!(class(ErrorKind::Io), Class::Unanswered);
        assert_eq!(class(ErrorKind::Parse), Class::Unanswered);
    }

    #[test]
    fn a_command_that_the_server_does_not_know() {
        assert!(is_unknown_command(&failed("-ERR unknown command 'HELLO'")));
        assert!(!is_unknown_command(&failed("-ERR no such key")));
        assert!(!is_unknown_command(&failed("-NOPERM unknown command")));
    }

    #[test]
    fn a_denial_that_names_the_user_begins_with_it() {
        let said = "-ERR User app has no permissions to run the 'get' command";
        assert_eq!(class(said), Class::Denied);
        assert_eq!(class("-ERR User app is unwell"), Class::Rejected);
        assert_eq!(class("-ERR app has no permissions"), Class::Rejected);
    }

    #[test]
    fn only_a_key_of_another_node_tears_a_script() {
        let far = "-ERR Lua script attempted to access a non local key in a cluster node";
        assert_eq!(class(far), Class::Torn);
        assert_eq!(class("-ERR Script attempted to sleep"), Class::Rejected);
    }
}
