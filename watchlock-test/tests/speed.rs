//! How many scripts a second one processor runs. Measured by hand:
//!
//! `cargo test --release --package watchlock-test --test speed -- --ignored --nocapture`

use std::time::{Duration, Instant};

use watchlock_test::core::{Options, Reply, Store};

const ACQUIRE: &str = include_str!("../../lua/lock/acquire.lua");
const RELEASE: &str = include_str!("../../lua/lock/release.lua");

fn command(words: &[&str]) -> Vec<u8> {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<_> = words.collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

fn digest(store: &mut Store, script: &str) -> String {
    match store.run(&["SCRIPT", "LOAD", script]) {
        Reply::Bulk(digest) => String::from_utf8(digest).expect("hexadecimal digits"),
        other => panic!("no digest: {other:?}"),
    }
}

#[test]
#[ignore = "it measures"]
fn scripts_a_second() {
    let mut store = Store::new(Options::default());
    let (acquire, release) = (digest(&mut store, ACQUIRE), digest(&mut store, RELEASE));
    let id = store.connect();
    let acquire = command(&["EVALSHA", &acquire, "1", "lock", "client:1", "30000"]);
    let release = command(&["EVALSHA", &release, "1", "lock", "client:1", "0", "channel"]);
    let begun = Instant::now();
    let mut scripts = 0_u32;
    while begun.elapsed() < Duration::from_secs(3) {
        for _ in 0..1000 {
            store.push(id, &acquire);
            store.run_next(id);
            store.push(id, &release);
            store.run_next(id);
            assert_eq!(store.take_output(id), b":-2\r\n:1\r\n");
            scripts += 2;
        }
    }
    println!(
        "{:.0} scripts a second",
        f64::from(scripts) / begun.elapsed().as_secs_f64()
    );
}
