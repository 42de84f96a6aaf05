//! What a server reports about itself: mode, role and version by `HELLO`, which no ACL can deny; run id and uptime by
//! `INFO`, asked first on a new connection, so that replies after a restart of the server can be recognised.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};

use crate::backend::failure::{Class, Failure, is_unknown_command};
use crate::clock::{Clock, Moment};

/// The reply to `HELLO`.
#[derive(Debug, Clone)]
pub(crate) struct Hello {
    mode: Option<String>,
    role: Option<String>,
    /// Major and minor. Valkey reports the Redis version that it is compatible with, or its own, which is higher.
    version: Option<(u64, u64)>,
}

/// The oldest Redis whose scripts and ACLs we support.
const OLDEST: (u64, u64) = (6, 2);

impl Hello {
    pub(crate) async fn of(connection: &mut MultiplexedConnection) -> Result<Self, Failure> {
        let hello = connection.send_packed_command(&redis::cmd("HELLO")).await;
        Self::read(hello.and_then(Value::extract_error))
    }

    /// Asks a cluster node for its id, too; none if it must not be asked.
    pub(super) async fn with_id(
        connection: &mut MultiplexedConnection,
    ) -> Result<(Self, Option<String>), Failure> {
        let mut both = redis::pipe();
        both.cmd("HELLO").cmd("CLUSTER").arg("MYID");
        let mut said = connection.send_packed_commands(&both, 0, 2).await?;
        let id = said.pop().and_then(|id| redis::from_redis_value(id).ok());
        let hello = said.pop().unwrap_or(Value::Nil);
        Ok((Self::read(hello.extract_error())?, id))
    }

    fn read(said: RedisResult<Value>) -> Result<Self, Failure> {
        match said {
            Ok(about) => Ok(Self::from_value(&about)),
            Err(error) if is_unknown_command(&error) => Err(Failure::no_hello()),
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

    /// Why it cannot be the one server of a client, or one of a quorum, whose servers are independent.
    pub(crate) fn problem_alone(&self) -> Option<&'static str> {
        if self.is_in_cluster() {
            Some("it is in cluster mode")
        } else if self.is_sentinel() {
            Some("it is a sentinel, not the master it watches")
        } else if self.is_replica() {
            Some("it is a replica, locks are written to the master")
        } else if self.is_older_than(OLDEST) {
            Some("it is older than Redis 6.2")
        } else {
            None
        }
    }

    /// False for a server that reports no version.
    pub(crate) fn is_older_than(&self, version: (u64, u64)) -> bool {
        self.version.is_some_and(|own| own < version)
    }
}

pub(super) async fn check_master(connection: &mut MultiplexedConnection) -> Result<(), Failure> {
    let hello = connection.send_packed_command(&redis::cmd("HELLO")).await;
    let about = hello.and_then(Value::extract_error);
    let about = about.map_err(Failure::connecting)?;
    if field(&about, "role").as_deref() == Some("master") {
        Ok(())
    } else {
        let text = "the server named by the sentinels is not a master";
        Err(Failure::of(Class::Unreached, text))
    }
}

/// The text of a field in a reply: a map, or a flat list of names and values.
pub(super) fn field(about: &Value, name: &str) -> Option<String> {
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
    let mut fields = about.as_map_iter()?;
    let (_, value) = fields.find(|(key, _)| text(key).as_deref() == Some(name))?;
    text(value)
}

/// The reply to `INFO server`.
#[derive(Debug, Clone)]
pub(crate) struct ServerInfo {
    /// Random for each start of the server.
    pub(crate) run_id: Arc<str>,
    /// When it started, by its own uptime: exact to a second.
    pub(crate) up_since: Moment,
    pub(crate) round_trip: Duration,
}

impl ServerInfo {
    pub(crate) async fn ask(
        connection: &mut MultiplexedConnection,
        clock: &Clock,
    ) -> Result<Self, Failure> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let asked_at = clock.now();
        let said = connection.send_packed_command(&info).await;
        let said = said
            .and_then(Value::extract_error)
            .map_err(Failure::connecting)?;
        let text: String =
            redis::from_redis_value_ref(&said).map_err(|_| Failure::strange_reply())?;
        // The time after the reply: a later start time is the safe error.
        Self::read(&text, asked_at, clock.now()).ok_or_else(Failure::strange_reply)
    }

    fn read(text: &str, asked_at: Moment, now: Moment) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let uptime = field("uptime_in_seconds")?.trim().parse().ok()?;
        Some(Self {
            run_id: field("run_id")?.trim().into(),
            up_since: now.minus(Duration::from_secs(uptime)),
            round_trip: asked_at.until(now),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::script::any_reply_tests::{any_text, any_value, cases};

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

    proptest! {
        #![proptest_config(cases(3_000))]
        #[test]
        fn every_reply_to_a_greeting_is_read(value in any_value(), lines in prop::collection::vec(any_text(), 0..9)) {
            if let Ok(hello) = Hello::read(value.extract_error()) {
                let _ = (hello.is_in_cluster(), hello.is_sentinel(), hello.is_replica());
                let _ = hello.is_older_than((6, 2));
            }
            let now = Moment::default() + Duration::from_secs(100);
            let text = lines.join(":").replace(":run_id", "\nrun_id").replace(":uptime", "\nuptime");
            if let Some(server) = ServerInfo::read(&text, now, now) {
                prop_assert!(server.up_since <= now);
            }
        }
    }

    #[test]
    fn what_a_server_says_is_read() {
        let text = "# Server\r\nredis_version:7.4.1\r\nrun_id:ab12\r\nuptime_in_seconds:40\r\n";
        let now = Moment::default() + Duration::from_secs(100);
        let asked_at = now.minus(Duration::from_millis(7));
        let server = ServerInfo::read(text, asked_at, now).unwrap();
        assert_eq!(&*server.run_id, "ab12");
        assert_eq!(server.up_since.until(now), Duration::from_secs(40));
        assert_eq!(server.round_trip, Duration::from_millis(7));
        assert!(ServerInfo::read("run_id:ab12", now, now).is_none());
        assert!(ServerInfo::read("uptime_in_seconds:x\nrun_id:ab12", now, now).is_none());
    }
}
