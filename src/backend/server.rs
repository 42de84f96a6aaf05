//! Which server a connection leads to, and for how long it has been up: asked on the connection itself, before
//! anything else is, so that an answer can be told from one of a server that was started meanwhile.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::failure::Failure;
use crate::clock::{Clock, Moment};

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Drawn at random at each start.
    pub(crate) run_id: Arc<str>,
    /// It was up by then, by its own word, and up to a second longer than that or shorter.
    pub(crate) up_since: Moment,
}

/// Asks the server at the other end.
pub(super) async fn ask(
    connection: &mut MultiplexedConnection,
    clock: &Clock,
) -> Result<Server, Failure> {
    let mut info = redis::cmd("INFO");
    info.arg("server");
    let said = connection.send_packed_command(&info).await;
    let said = said
        .and_then(Value::extract_error)
        .map_err(Failure::connecting)?;
    let text: String = redis::from_redis_value_ref(&said).map_err(|_| Failure::strange_reply())?;
    // After the answer: it was not up for longer than that.
    read(&text, clock.now()).ok_or_else(Failure::strange_reply)
}

fn read(text: &str, now: Moment) -> Option<Server> {
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let uptime = field("uptime_in_seconds")?.trim().parse().ok()?;
    Some(Server {
        run_id: field("run_id")?.trim().into(),
        up_since: now.minus(Duration::from_secs(uptime)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_is_read() {
        let text = "# Server\r\nredis_version:7.4.1\r\nrun_id:ab12\r\nuptime_in_seconds:40\r\n";
        let now = Moment::default() + Duration::from_secs(100);
        let server = read(text, now).unwrap();
        assert_eq!(&*server.run_id, "ab12");
        assert_eq!(server.up_since.until(now), Duration::from_secs(40));
        assert!(read("run_id:ab12", now).is_none());
        assert!(read("uptime_in_seconds:x\nrun_id:ab12", now).is_none());
    }
}
