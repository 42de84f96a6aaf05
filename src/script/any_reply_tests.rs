//! Whatever a server may answer, for the property tests of what reads replies.

use proptest::prelude::*;
use redis::{PushKind, Value};

/// So many cases, or as many as `PROPTEST_CASES` says.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig::default();
    let cases = if asked { default.cases } else { cases };
    ProptestConfig { cases, ..default }
}

/// Numbers that mean something, and any other.
fn any_number() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => -10i64..10,
        2 => 0i64..20_000,
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, 1 << 53, (1 << 53) + 1, 1 << 31, 16_384]),
        1 => any::<i64>(),
    ]
}

/// Words that mean something, numbers, and any other text.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    const WORDS: [&str; 24] = [
        "",
        "?",
        "::1",
        "127.0.0.1",
        "mode",
        "cluster",
        "sentinel",
        "role",
        "master",
        "slave",
        "version",
        "7.4.1",
        "7.",
        "config-epoch",
        "run_id",
        "uptime_in_seconds",
        "ERR",
        "MOVED",
        "ASK",
        "NOPERM",
        "message",
        "with args beginning with",
        "@user_script:",
        "\u{0}\r\n",
    ];
    prop_oneof![
        4 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        2 => any_number().prop_map(|number| number.to_string()),
        1 => any::<String>(),
    ]
}

/// The error of a server.
pub(crate) fn any_error() -> impl Strategy<Value = redis::RedisError> {
    let words = prop::collection::vec(any_text(), 0..5);
    words.prop_map(|words| {
        let line = words.join(" ").replace(['\r', '\n'], " ");
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let error = value.and_then(Value::extract_error).err();
        error.unwrap_or_else(|| std::io::Error::other(line).into())
    })
}

/// Any reply.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
        6 => any_number().prop_map(Value::Int),
        4 => any_text().prop_map(|text| Value::BulkString(text.into())),
        1 => any::<Vec<u8>>().prop_map(Value::BulkString),
        1 => any_text().prop_map(Value::SimpleString),
        1 => any::<f64>().prop_map(Value::Double),
        1 => any::<bool>().prop_map(Value::Boolean),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        let items = prop::collection::vec(inner.clone(), 0..6);
        let pairs = prop::collection::vec((inner.clone(), inner), 0..6);
        prop_oneof![
            6 => items.clone().prop_map(Value::Array),
            2 => pairs.prop_map(Value::Map),
            1 => items.clone().prop_map(Value::Set),
            1 => items.prop_map(|data| Value::Push { kind: PushKind::Message, data }),
        ]
    })
}
