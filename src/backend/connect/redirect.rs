//! Reads redirects (`MOVED`, `ASK`) and the reply to `CLUSTER SLOTS`.
//!
//! A missing host means the host of the node that was asked. A node that is to announce a host name and has none announces
//! `?`; about its slots it says its IP address besides.

use std::collections::HashMap;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, ServerErrorKind, Value};

use super::address::Endpoint;
use crate::backend::failure::Failure;
use crate::slot::Slot;

/// The reply of a node that does not serve the slot. The command did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    pub(crate) slot: Slot,
    pub(crate) endpoint: Endpoint,
    /// The slot is migrating: only this command goes there, after `ASKING`.
    pub(crate) asking: bool,
}

impl Redirect {
    /// Reads an error of the node at host `asked`.
    pub(crate) fn of(error: &RedisError, asked: &str) -> Option<Self> {
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Some(Self {
            slot: Slot::new(slot)?,
            endpoint: endpoint(host, port.parse().ok()?, asked),
            asking: error.kind() == redis::ErrorKind::Server(ServerErrorKind::Ask),
        })
    }
}

/// A range of slots of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: Slot,
    pub(crate) last: Slot,
    pub(crate) endpoint: Endpoint,
    /// The node's id, which stays when its address changes; none if the answer has none.
    pub(crate) id: Option<Box<str>>,
}

/// Asks the node at host `asked` for all slots.
pub(crate) async fn slots_of(
    connection: &mut MultiplexedConnection,
    asked: &str,
) -> Result<Vec<Range>, Failure> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let slots = connection.send_packed_command(&question).await;
    let slots = slots.and_then(Value::extract_error)?;
    ranges(&slots, asked).ok_or_else(Failure::no_node)
}

/// Reads the reply of the node at host `asked`. None if it names no slot.
fn ranges(slots: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(ranges) = slots else {
        return None;
    };
    let ranges: Option<Vec<_>> = ranges.iter().map(|range| one_range(range, asked)).collect();
    ranges.filter(|ranges| !ranges.is_empty())
}

fn one_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else {
        return None;
    };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    // redis-rs truncates a number that does not fit.
    let number = |value: &Value| {
        let number = redis::from_redis_value_ref::<i64>(value).ok()?;
        u16::try_from(number).ok()
    };
    let [host, port, more @ ..] = master.as_slice() else {
        return None;
    };
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
    let ip = || {
        let more = redis::from_redis_value_ref::<HashMap<String, String>>(more.get(1)?);
        more.ok()?.remove("ip")
    };
    let host = match text(host) {
        Some(host) if host == UNKNOWN => ip(),
        host => host,
    };
    let host = host.unwrap_or_default();
    let range = Range {
        first: Slot::new(number(first)?)?,
        last: Slot::new(number(last)?)?,
        endpoint: endpoint(&host, number(port)?, asked),
        id: more.first().and_then(text).map(Into::into),
    };
    (range.first <= range.last).then_some(range)
}

/// Announced instead of a host name.
const UNKNOWN: &str = "?";

fn endpoint(host: &str, port: u16, asked: &str) -> Endpoint {
    let named = !host.is_empty() && host != UNKNOWN;
    Endpoint::new(if named { host } else { asked }, port)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::script::any_reply_tests::{any_error, any_value, cases};

    fn value(reply: &str) -> Value {
        redis::parse_redis_value(reply.as_bytes()).unwrap()
    }

    fn redirect(line: &str) -> Option<Redirect> {
        let error = value(&format!("{line}\r\n")).extract_error().unwrap_err();
        Redirect::of(&error, "asked")
    }

    fn at(host: &str, port: u16) -> Endpoint {
        Endpoint::new(host, port)
    }

    #[test]
    fn redirects_are_read() {
        let moved = redirect("-MOVED 3999 127.0.0.1:6381").unwrap();
        assert_eq!(moved.slot, Slot::new(3999).unwrap());
        assert_eq!(
            (moved.endpoint, moved.asking),
            (at("127.0.0.1", 6381), false)
        );
        let ask = redirect("-ASK 1 a.example:7000").unwrap();
        assert_eq!((ask.endpoint, ask.asking), (at("a.example", 7000), true));
        assert_eq!(
            redirect("-MOVED 1 :7000").unwrap().endpoint,
            at("asked", 7000)
        );
        assert_eq!(
            redirect("-MOVED 1 ?:7000").unwrap().endpoint,
            at("asked", 7000)
        );
        assert_eq!(
            redirect("-ASK 1 ::1:7000").unwrap().endpoint,
            at("::1", 7000)
        );
        assert_eq!(redirect("-ASK 1 [::1]:70").unwrap().endpoint, at("::1", 70));
    }

    #[test]
    fn what_is_no_redirect_leads_nowhere() {
        for line in [
            "-MOVED",
            "-MOVED 3999",
            "-MOVED x 127.0.0.1:6381",
            "-MOVED 16384 127.0.0.1:6381",
            "-MOVED 1 127.0.0.1",
            "-MOVED 1 127.0.0.1:99999",
            "-TRYAGAIN Multiple keys request during rehashing of slot",
            "-ERR MOVED 1 127.0.0.1:6381",
        ] {
            assert_eq!(redirect(line), None, "{line}");
        }
    }

    #[test]
    fn slots_are_read() {
        let node = "*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n";
        let (unnamed, ip) = ("*4\r\n+?\r\n:7002\r\n+id\r\n", "+ip\r\n+10.0.0.2\r\n");
        let slots = value(&format!(
            "*4\r\n*4\r\n:0\r\n:100\r\n{node}{node}*3\r\n:101\r\n:101\r\n*4\r\n$-1\r\n:7001\r\n$2\r\nid\r\n*0\r\n\
             *3\r\n:102\r\n:102\r\n{unnamed}*2\r\n{ip}*3\r\n:103\r\n:103\r\n{unnamed}%1\r\n{ip}"
        ));
        let ranges = ranges(&slots, "asked").unwrap();
        let range = |first, last, endpoint, id: Option<&str>| Range {
            first: Slot::new(first).unwrap(),
            last: Slot::new(last).unwrap(),
            endpoint,
            id: id.map(Into::into),
        };
        let expected = [
            range(0, 100, at("127.0.0.1", 7000), None),
            range(101, 101, at("asked", 7001), Some("id")),
            range(102, 102, at("10.0.0.2", 7002), Some("id")),
            range(103, 103, at("10.0.0.2", 7002), Some("id")),
        ];
        assert_eq!(ranges, expected);
    }

    /// Replies of the right form with any values in them, and any others.
    fn any_slots() -> impl Strategy<Value = Value> {
        let slot = prop_oneof![
            9 => (0i64..16_390).prop_map(Value::Int),
            1 => any_value(),
        ];
        let node = prop_oneof![
            9 => prop::collection::vec(any_value(), 0..4).prop_map(Value::Array),
            1 => any_value(),
        ];
        let range = (slot.clone(), slot, node)
            .prop_map(|(first, last, node)| Value::Array(vec![first, last, node]));
        prop_oneof![
            9 => prop::collection::vec(range, 0..4).prop_map(Value::Array),
            1 => any_value(),
        ]
    }

    proptest! {
        #![proptest_config(cases(3_000))]
        #[test]
        fn every_redirect_is_read(error in any_error()) {
            let _ = Redirect::of(&error, "asked");
        }

        #[test]
        fn every_reply_about_slots_is_read(value in any_slots()) {
            for range in ranges(&value, "asked").unwrap_or_default() {
                prop_assert!(range.first <= range.last);
            }
        }
    }

    #[test]
    fn strange_slots_say_nothing() {
        for reply in [
            "*0\r\n",
            "+OK\r\n",
            "*1\r\n*2\r\n:0\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n+a\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n+a\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n+a\r\n:-1\r\n",
            "*1\r\n*3\r\n:9\r\n:1\r\n*2\r\n+a\r\n:1\r\n",
        ] {
            assert_eq!(ranges(&value(reply), "asked"), None, "{reply}");
        }
    }
}
