//! Errors as Redis words them.

use std::borrow::Cow;

use super::{Bytes, Reply};

/// What a command answers: a reply, or an error.
pub(super) type Outcome = Result<Reply, Failure>;

/// The text of an error, which begins with its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure(Cow<'static, [u8]>);

impl Failure {
    pub(super) const WRONG_TYPE: Self =
        Self::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
    pub(super) const OVERFLOW: Self = Self::fixed("ERR increment or decrement would overflow");
    pub(super) const SYNTAX: Self = Self::fixed("ERR syntax error");
    pub(super) const NOT_AN_INTEGER: Self =
        Self::fixed("ERR value is not an integer or out of range");
    pub(super) const NOT_IN_RANGE: Self = Self::fixed(
        "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
    );
    pub(super) const NOT_A_FLOAT: Self = Self::fixed("ERR value is not a valid float");
    pub(super) const NO_SUCH_KEY: Self = Self::fixed("ERR no such key");
    pub(super) const OUT_OF_RANGE: Self = Self::fixed("ERR index out of range");

    pub(super) const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }

    pub(super) fn new(text: impl Into<Bytes>) -> Self {
        let mut text = text.into();
        // It becomes one line.
        while text
            .last()
            .is_some_and(|byte| matches!(byte, b'\r' | b'\n'))
        {
            text.pop();
        }
        for byte in &mut text {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        Self(Cow::Owned(text))
    }

    /// `ERR unknown subcommand or wrong number of arguments for 'cat'. Try ACL HELP.`
    pub(super) fn wrong_subcommand(container: &str, name: &str) -> Self {
        let text = "ERR unknown subcommand or wrong number of arguments for";
        Self::new(format!("{text} '{name}'. Try {container} HELP."))
    }

    /// `ERR invalid expire time in 'set' command`
    pub(super) fn invalid_expire(command: &str) -> Self {
        Self::new(format!("ERR invalid expire time in '{command}' command"))
    }

    pub(super) fn wrong_arity(command: &str) -> Self {
        Self::new(format!(
            "ERR wrong number of arguments for '{command}' command"
        ))
    }

    /// The text behind the code `ERR`, or all of it with another code.
    pub(super) fn without_code(&self) -> &[u8] {
        self.0.strip_prefix(b"ERR ").unwrap_or(&self.0)
    }

    /// The first word.
    pub(super) fn code(&self) -> &[u8] {
        self.0
            .split(|byte| *byte == b' ')
            .next()
            .unwrap_or_default()
    }
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Error(failure.0.into_owned())
    }
}
