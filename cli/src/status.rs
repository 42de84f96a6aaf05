//! The exit statuses: one table for the code, `--help` and the documents.
//!
//! Numbers from 64 on are those of BSD's sysexits.h. A command under `run` has its own statuses as well, so these say what
//! `watchlock` itself has to say.

use std::process::ExitCode;

use watchlock::Error;

/// What the process ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u8);

impl Status {
    pub(crate) const DONE: Self = Self(0);
    /// `run`: busy. `show`, `release`: free. `doctor`: not safe.
    pub(crate) const NO: Self = Self(1);
    pub(crate) const USAGE: Self = Self(64);
    pub(crate) const UNAVAILABLE: Self = Self(69);
    pub(crate) const INTERNAL: Self = Self(70);
    /// The answer could not be written to stdout.
    pub(crate) const NOT_WRITTEN: Self = Self(74);
    pub(crate) const LOST: Self = Self(75);
    pub(crate) const DENIED: Self = Self(77);
    pub(crate) const CONFIG: Self = Self(78);
    pub(crate) const CANNOT_EXECUTE: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);

    /// The status of shells for an end by a signal.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self(u8::try_from(signal).map_or(u8::MAX, |number| number.saturating_add(128)))
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        status.0.into()
    }
}

/// The statuses of `run`, as `--help` and docs/command-line.md show them.
pub(crate) const OF_RUN: [(&str, &str); 11] = [
    (
        "CMD's own",
        "CMD ran, and the lock was held to the end; 128 + n after signal n",
    ),
    ("1, or -E", "the lock stayed busy; CMD did not run"),
    ("64", "wrong usage"),
    (
        "69",
        "Redis was unreachable or refused, for 5 s or to the end of --wait",
    ),
    ("70", "no thread or process, or watchlock failed"),
    ("74", "the answer could not be written (ls, show, doctor)"),
    (
        "75",
        "the lock was lost while CMD ran, or CMD was ended because it was about to be",
    ),
    ("77", "Redis denied a command, or the password is wrong"),
    (
        "78",
        "wrong configuration, or the key is another kind of lock",
    ),
    (
        "126",
        "CMD cannot be executed; the lock was released at once",
    ),
    ("127", "CMD was not found; the lock was released at once"),
];

impl From<&Error> for Status {
    fn from(error: &Error) -> Self {
        match error {
            Error::Unavailable { .. } | Error::Refused { .. } | Error::NoQuorum { .. } => {
                Self::UNAVAILABLE
            }
            Error::Denied { .. } => Self::DENIED,
            Error::Lost { .. } => Self::LOST,
            Error::InvalidName { .. } | Error::InvalidLease { .. } | Error::InvalidCount { .. } => {
                Self::USAGE
            }
            Error::Config(_)
            | Error::WrongType { .. }
            | Error::CrossSlot { .. }
            | Error::Unsupported { .. }
            | Error::FencingTokenTooLarge { .. } => Self::CONFIG,
            _ => Self::INTERNAL,
        }
    }
}

/// Why a command ends early: what it says, and with which status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }

    /// The same, about the server with this address.
    pub(crate) fn at(self, server: &str) -> Self {
        let message = format!("{server}: {}", self.message);
        Self { message, ..self }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Status::USAGE, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new((&error).into(), with_causes(&error))
    }
}

/// An error with its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
