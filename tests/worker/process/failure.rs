//! What can go wrong, in the words of the protocol.

use serde_json::{Value, json};
use watchlock::Error;

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    message: String,
}

impl Failure {
    pub(crate) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { kind, message }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new("bad_request", message)
    }

    pub(crate) fn unsupported(what: &str) -> Self {
        Self::new("unsupported", format!("no {what} here"))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({"kind": self.kind, "message": self.message})
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Lost { .. } => "lost",
            Error::NotOwner { .. } => "not_owner",
            Error::WrongType { .. } => "wrong_type",
            Error::InvalidName { .. }
            | Error::CrossSlot { .. }
            | Error::InvalidLease { .. }
            | Error::InvalidCount { .. }
            | Error::InvalidSet(_)
            | Error::Config(_) => "invalid",
            Error::Denied { .. } => "denied",
            Error::Refused { .. } if error.not_replicated().is_some() => "not_replicated",
            Error::Refused { .. } => "refused",
            Error::Unavailable { .. } => "unavailable",
            Error::NoQuorum { .. } => "quorum",
            Error::Closed => "closed",
            _ => "other",
        };
        Self::new(kind, with_causes(&error))
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    message
}
