//! What a server says of itself, by `HELLO`, which no ACL denies.

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::class::is_unknown_command;
use super::failure::Failure;
use super::sentinel::field;

/// Who a server is.
#[derive(Debug, Clone)]
pub(crate) struct Hello {
    mode: Option<String>,
    role: Option<String>,
    /// Major and minor; of Valkey the Redis that it is compatible with, or its own, which is larger.
    version: Option<(u64, u64)>,
}

impl Hello {
    /// Asks a server.
    pub(crate) async fn of(connection: &mut MultiplexedConnection) -> Result<Self, Failure> {
        let hello = connection.send_packed_command(&redis::cmd("HELLO")).await;
        match hello.and_then(Value::extract_error) {
            Ok(about) => Ok(Self::from_value(&about)),
            Err(error) if is_unknown_command(&error) => Err(Failure::too_old()),
            Err(error) => Err(Failure::from(error)),
        }
    }

    fn from_value(about: &Value) -> Self {
        let version = field(about, "version").unwrap_or_default();
        let mut numbers = version
            .split('.')
            .map_while(|part| part.parse::<u64>().ok());
        Self {
            mode: field(about, "mode"),
            role: field(about, "role"),
            version: numbers.next().zip(numbers.next()),
        }
    }

    pub(crate) fn is_in_cluster(&self) -> bool {
        self.mode.as_deref() == Some("cluster")
    }

    pub(crate) fn is_sentinel(&self) -> bool {
        self.mode.as_deref() == Some("sentinel")
    }

    pub(crate) fn is_replica(&self) -> bool {
        // `slave` is what it is called on the wire, too.
        matches!(self.role.as_deref(), Some("replica" | "slave"))
    }

    /// Whether it is older than that; nobody knows of a server that does not say.
    pub(crate) fn is_older_than(&self, version: (u64, u64)) -> bool {
        self.version.is_some_and(|own| own < version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_not_older_than_itself() {
        let text = |text: &str| Value::BulkString(text.into());
        for (version, older) in [
            ("6.0.20", true),
            ("6.2.0", false),
            ("6.2.14", false),
            ("7.0.15", false),
            ("10.1.0", false),
            ("", false),
        ] {
            let hello = Hello::from_value(&Value::Array(vec![text("version"), text(version)]));
            assert_eq!(hello.is_older_than((6, 2)), older, "{version}");
        }
    }
}
