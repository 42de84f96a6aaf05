//! What a server does, seen from its owner and from its connections.

use std::time::Duration;

use proptest::prelude::*;

use super::{Options, Reply, SessionId, Store};

fn command(words: &[&str]) -> Vec<u8> {
    let words = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<_> = words.collect();
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

/// Sends a line; returns what comes back.
fn ask(store: &mut Store, id: SessionId, line: &str) -> String {
    let words: Vec<_> = line.split(' ').collect();
    store.push(id, &command(&words));
    store.run_next(id);
    taken(store, id)
}

fn taken(store: &mut Store, id: SessionId) -> String {
    String::from_utf8(store.take_output(id)).unwrap()
}

fn store() -> (Store, SessionId) {
    let mut store = Store::new(Options::default());
    let id = store.connect();
    (store, id)
}

fn advance(store: &mut Store, ms: u64) {
    store.set_time(store.time() + Duration::from_millis(ms));
}

fn is_send<T: Send>(_: &T) {}

#[test]
fn it_moves_between_threads() {
    is_send(&store().0);
}

#[test]
fn a_command_may_come_in_pieces_and_several_at_once() {
    let (mut store, id) = store();
    let bytes = [command(&["SET", "a", "1"]), command(&["GET", "a"])].concat();
    for byte in &bytes[..bytes.len() - 1] {
        store.push(id, &[*byte]);
    }
    assert_eq!(store.run_next(id).unwrap().command, "set");
    assert_eq!(store.run_next(id), None);
    store.push(id, &bytes[bytes.len() - 1..]);
    assert_eq!(
        store.next_command(id).unwrap(),
        [b"GET".to_vec(), b"a".to_vec()]
    );
    assert_eq!(store.run_next(id).unwrap().command, "get");
    assert_eq!(taken(&mut store, id), "+OK\r\n$1\r\n1\r\n");
}

#[test]
fn a_command_may_be_a_line() {
    let (mut store, id) = store();
    store.push(id, b"\r\nset a \"x\\x41 y\"\r\nGET a\r\n");
    store.run_next(id);
    store.run_next(id);
    assert_eq!(taken(&mut store, id), "+OK\r\n$4\r\nxA y\r\n");
}

#[test]
fn a_protocol_error_closes_the_connection_behind_its_message() {
    for (bytes, said) in [
        ("*1\r\n:3\r\n", "expected '$', got ':'"),
        ("*x\r\n", "invalid multibulk length"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("get \"a\r\n", "unbalanced quotes in request"),
    ] {
        let (mut store, id) = store();
        store.push(id, bytes.as_bytes());
        assert_eq!(store.run_next(id), None, "{bytes}");
        assert!(!store.is_closed(id));
        let text = format!("-ERR Protocol error: {said}\r\n");
        assert_eq!(taken(&mut store, id), text);
        assert!(store.is_closed(id));
    }
}

#[test]
fn resp3_has_maps_nulls_and_pushes() {
    let (mut store, id) = store();
    let hello = ask(&mut store, id, "HELLO 3");
    assert!(
        hello.starts_with("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"),
        "{hello}"
    );
    ask(&mut store, id, "HSET h f v");
    assert_eq!(
        ask(&mut store, id, "HGETALL h"),
        "%1\r\n$1\r\nf\r\n$1\r\nv\r\n"
    );
    assert_eq!(ask(&mut store, id, "GET none"), "_\r\n");
    let pushed = ask(&mut store, id, "SUBSCRIBE ch");
    assert_eq!(pushed, ">3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n");
    // A listener may run any command in RESP3.
    assert_eq!(ask(&mut store, id, "GET none"), "_\r\n");
}

#[test]
fn messages_reach_other_connections() {
    let (mut store, id) = store();
    let listener = store.connect();
    ask(&mut store, listener, "SUBSCRIBE ch");
    assert_eq!(store.subscription_count(), 1);
    assert_eq!(ask(&mut store, id, "PUBLISH ch hello"), ":1\r\n");
    assert_eq!(store.sessions_with_output(), [listener]);
    let message = "*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$5\r\nhello\r\n";
    assert_eq!(taken(&mut store, listener), message);
    store.disconnect(listener);
    assert_eq!(ask(&mut store, id, "PUBLISH ch hello"), ":0\r\n");
    assert_eq!(store.subscription_count(), 0);
}

#[test]
fn keys_live_through_their_last_millisecond() {
    let (mut store, id) = store();
    ask(&mut store, id, "SET a 1 PX 10");
    assert_eq!(
        store.next_expiry(),
        Some(store.time() + Duration::from_millis(11))
    );
    advance(&mut store, 10);
    assert_eq!(ask(&mut store, id, "PTTL a"), ":0\r\n");
    advance(&mut store, 1);
    assert_eq!(ask(&mut store, id, "PTTL a"), ":-2\r\n");
    assert_eq!(store.key_count(), 0);
}

#[test]
fn expired_keys_are_published_when_asked_for() {
    let (mut store, id) = store();
    ask(&mut store, id, "CONFIG SET notify-keyspace-events Ex");
    ask(&mut store, id, "SET a 1 PX 10");
    ask(&mut store, id, "SUBSCRIBE __keyevent@0__:expired");
    advance(&mut store, 11);
    assert!(taken(&mut store, id).ends_with("__keyevent@0__:expired\r\n$1\r\na\r\n"));
}

#[test]
fn time_may_go_back() {
    let (mut store, id) = store();
    ask(&mut store, id, "SET a 1 PX 1000");
    store.set_time(store.time().saturating_sub(Duration::from_secs(1)));
    assert_eq!(ask(&mut store, id, "PTTL a"), ":2000\r\n");
}

#[test]
fn a_killed_connection_is_closed_at_once_and_its_own_killer_behind_the_reply() {
    let (mut store, id) = store();
    let other = store.connect();
    assert_eq!(ask(&mut store, id, "CLIENT KILL TYPE normal"), ":1\r\n");
    assert!(store.is_closed(other) && !store.is_closed(id));
    store.push(
        id,
        &command(&["CLIENT", "KILL", "ID", &id.to_string(), "SKIPME", "no"]),
    );
    store.run_next(id);
    assert!(!store.is_closed(id), "the reply is still to be taken");
    assert_eq!(taken(&mut store, id), ":1\r\n");
    assert!(store.is_closed(id));
}

#[test]
fn a_pause_holds_commands_back_until_it_ends() {
    let (mut store, id) = store();
    ask(&mut store, id, "CLIENT PAUSE 100 WRITE");
    assert_eq!(
        store.paused_until(),
        Some(store.time() + Duration::from_millis(100))
    );
    assert_eq!(ask(&mut store, id, "GET a"), "$-1\r\n");
    assert_eq!(ask(&mut store, id, "SET a 1"), "");
    advance(&mut store, 100);
    assert_eq!(store.run_next(id).unwrap().command, "set");
}

#[test]
fn the_owner_sets_the_condition() {
    let (mut store, id) = store();
    let script = "EVAL return(redis.call('set','a','1')) 0";
    store.set_out_of_memory(true);
    assert!(ask(&mut store, id, "SET a 1").starts_with("-OOM "));
    assert!(ask(&mut store, id, script).starts_with("-OOM "));
    let freed = "EVAL redis.call('del','a')return(redis.call('set','a','1')) 0";
    assert_eq!(
        ask(&mut store, id, freed),
        "+OK\r\n",
        "a script that has written goes on"
    );
    // Commands that wait for an `EXEC` take memory, whatever they are.
    assert_eq!(ask(&mut store, id, "MULTI"), "+OK\r\n");
    assert!(ask(&mut store, id, "GET a").starts_with("-OOM "));
    assert!(ask(&mut store, id, "EXEC").starts_with("-EXECABORT "));
    store.set_out_of_memory(false);
    ask(&mut store, id, "MULTI");
    ask(&mut store, id, "SET a 1");
    store.set_out_of_memory(true);
    assert!(ask(&mut store, id, "EXEC").starts_with("-EXECABORT "));
    store.set_out_of_memory(false);
    store.set_read_only(true);
    assert!(ask(&mut store, id, "SET a 1").starts_with("-READONLY "));
    assert!(ask(&mut store, id, script).starts_with("-READONLY "));
    store.set_read_only(false);
    store.set_loading(true);
    assert!(ask(&mut store, id, "GET a").starts_with("-LOADING "));
    store.set_loading(false);
    store.set_busy(true);
    assert!(ask(&mut store, id, "GET a").starts_with("-BUSY "));
    store.set_busy(false);
    assert_eq!(ask(&mut store, id, "GET a"), "$1\r\n1\r\n");
}

#[test]
fn a_replica_refuses_writes_until_it_is_a_master() {
    let (mut store, id) = store();
    assert_eq!(ask(&mut store, id, "REPLICAOF 127.0.0.1 1"), "+OK\r\n");
    assert!(ask(&mut store, id, "SET a 1").starts_with("-READONLY "));
    assert!(ask(&mut store, id, "ROLE").contains("slave"));
    assert_eq!(ask(&mut store, id, "REPLICAOF NO ONE"), "+OK\r\n");
    assert_eq!(ask(&mut store, id, "SET a 1"), "+OK\r\n");
}

#[test]
fn wait_answers_with_the_replicas_that_there_are() {
    let (mut store, id) = store();
    store.set_replicas(2);
    store.push(id, &command(&["WAIT", "3", "500"]));
    assert_eq!(
        store.run_next(id).unwrap().blocks,
        Duration::from_millis(500)
    );
    assert_eq!(taken(&mut store, id), ":2\r\n");
    store.push(id, &command(&["WAIT", "2", "500"]));
    assert_eq!(store.run_next(id).unwrap().blocks, Duration::ZERO);
}

#[test]
fn the_owner_refuses_single_commands() {
    let (mut store, id) = store();
    store.push(id, &command(&["SET", "a", "1"]));
    assert_eq!(store.refuse_next(id, "OOM no").unwrap().command, "set");
    assert_eq!(taken(&mut store, id), "-OOM no\r\n");
    assert_eq!(store.key_count(), 0);
}

#[test]
fn a_password_comes_before_everything_else() {
    let mut store = Store::new(Options {
        password: Some("secret".into()),
        ..Options::default()
    });
    let id = store.connect();
    assert_eq!(
        ask(&mut store, id, "GET a"),
        "-NOAUTH Authentication required.\r\n"
    );
    assert!(ask(&mut store, id, "AUTH wrong").starts_with("-WRONGPASS "));
    assert!(ask(&mut store, id, "HELLO 3 AUTH default secret").starts_with("%7\r\n"));
    assert_eq!(ask(&mut store, id, "GET a"), "_\r\n");
}

#[test]
fn a_restart_keeps_keys_and_forgets_scripts_and_connections() {
    let (mut store, id) = store();
    ask(&mut store, id, "SET a 1");
    let Reply::Bulk(digest) = store.run(&["SCRIPT", "LOAD", "return 1"]) else {
        panic!("no digest");
    };
    store.restart();
    assert!(store.is_closed(id));
    let known = store.run(&[b"SCRIPT".to_vec(), b"EXISTS".to_vec(), digest]);
    assert_eq!(known, Reply::Array(vec![Reply::Integer(0)]));
    assert_eq!(store.key_count(), 1);
    store.lose_data();
    assert_eq!(store.key_count(), 0);
}

#[test]
fn a_replica_takes_over_keys_with_their_expiries() {
    let (mut store, id) = store();
    ask(&mut store, id, "SET a 1 PX 100");
    let mut replica = Store::new(Options::default());
    replica.copy_data_from(&store);
    assert_eq!(replica.run(&["PTTL", "a"]), Reply::Integer(100));
}

#[test]
fn calls_are_counted_as_commandstats_says_and_the_owner_is_not() {
    let (mut store, id) = store();
    ask(
        &mut store,
        id,
        "EVAL redis.call('set','a','1')redis.call('get','a') 0",
    );
    store.run(&["GET", "a"]);
    let stats = ask(&mut store, id, "INFO commandstats");
    assert!(stats.contains("cmdstat_get:calls=1,"), "{stats}");
    assert!(stats.contains("cmdstat_set:calls=1,"), "{stats}");
    assert!(stats.contains("cmdstat_eval:calls=1,"), "{stats}");
    store.push(
        id,
        &command(&["EVAL", "redis.call('ping') return redis.call('ping')", "0"]),
    );
    assert_eq!(store.run_next(id).unwrap().calls, 2);
}

#[test]
fn rights_are_taken_away_one_by_one() {
    let (mut store, id) = store();
    ask(
        &mut store,
        id,
        "ACL SETUSER app on >pw ~app:* &ch* +@all -del -client|list",
    );
    ask(&mut store, id, "AUTH app pw");
    assert_eq!(ask(&mut store, id, "ACL WHOAMI"), "$3\r\napp\r\n");
    assert_eq!(ask(&mut store, id, "SET app:a 1"), "+OK\r\n");
    for (line, what) in [
        ("SET a 1", "access one of the keys used as arguments"),
        ("DEL app:a", "run the 'del' command"),
        ("CLIENT LIST", "run the 'client|list' command"),
        (
            "PUBLISH other x",
            "access one of the channels used as arguments",
        ),
    ] {
        let said = format!("-NOPERM this user has no permissions to {what}\r\n");
        assert_eq!(ask(&mut store, id, line), said);
    }
    let denied = ask(&mut store, id, "EVAL return(redis.call('del','app:a')) 0");
    assert!(
        denied.starts_with("-ERR The user executing the script can't run this command"),
        "{denied}"
    );
    store.run(&["ACL", "DELUSER", "app"]);
    assert!(store.is_closed(id));
}

#[test]
fn a_table_within_itself_is_cut_off() {
    let (mut store, id) = store();
    for script in [
        "local t = {} t[1] = t return t",
        "local t = {} t.map = t t[1] = t return t",
    ] {
        store.push(id, &command(&["EVAL", script, "0"]));
        store.run_next(id);
        assert!(taken(&mut store, id).contains("ERR reached lua stack limit"));
    }
}

#[test]
fn a_script_changes_nothing_for_those_that_follow() {
    let (mut store, id) = store();
    let escapes = [
        "string.format = nil",
        "redis.call = nil",
        "_G.type = nil",
        "rawset(_G, 'x', 1)",
        "getmetatable('').__index = {}",
        "getmetatable(_G).__index = {}",
        "table.insert(string, 1)",
        "loadstring('x = 1')()",
        "loadstring(string.dump(function() end))()",
        "setmetatable(redis, nil)",
        "coroutine.wrap(function() math.floor = nil end)()",
    ];
    for script in escapes {
        store.push(id, &command(&["EVAL", script, "0"]));
        store.run_next(id);
        taken(&mut store, id);
        let whole = "EVAL return(('%s'):format(type(redis.call('ping'))..tostring(rawget(_G,'x'))..math.floor(1.5))) 0";
        assert_eq!(
            ask(&mut store, id, whole),
            "$9\r\ntablenil1\r\n",
            "{script}"
        );
    }
}

#[test]
fn what_is_left_out_is_named() {
    let (mut store, id) = store();
    let said = ask(&mut store, id, "XADD a b");
    assert_eq!(
        said,
        "-ERR unknown command 'XADD', with args beginning with: 'a' 'b' \r\n"
    );
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8)) {
        let (mut store, id) = store();
        for piece in pieces {
            store.push(id, &piece);
            while store.run_next(id).is_some() {}
        }
    }

    #[test]
    fn no_arguments_make_it_panic(
        name in prop::sample::select(names()),
        arguments in prop::collection::vec("[a-z0-9*\\[(+-]{0,3}|-?[0-9]{17,20}", 0..6),
        resp in 2..4,
    ) {
        let (mut store, id) = store();
        ask(&mut store, id, &format!("HELLO {resp}"));
        for line in ["SET a 1", "HSET b f 1", "RPUSH c x y", "ZADD d 1 x", "SADD e x"] {
            ask(&mut store, id, line);
        }
        let name = name.replace('|', " ");
        let words: Vec<_> = name.split(' ').chain(arguments.iter().map(String::as_str)).collect();
        store.push(id, &command(&words));
        store.run_next(id);
    }

    #[test]
    fn the_same_calls_give_the_same_bytes(lines in prop::collection::vec(prop::sample::select(LINES.to_vec()), 0..30)) {
        let run = || {
            let (mut store, id) = store();
            let replies = lines.iter().map(|line| ask(&mut store, id, line));
            replies.collect::<String>()
        };
        prop_assert_eq!(run(), run());
    }
}

/// Commands with chance in them.
const LINES: [&str; 7] = [
    "SADD s a b c d e",
    "SRANDMEMBER s -3",
    "SPOP s 2",
    "HSET h a 1 b 2 c 3",
    "HRANDFIELD h 2 WITHVALUES",
    "EVAL return(tostring(math.random())) 0",
    "ACL GENPASS",
];

fn names() -> Vec<String> {
    let mut store = Store::new(Options::default());
    let Reply::Array(names) = store.run(&["COMMAND", "LIST"]) else {
        panic!("no names");
    };
    let text = |name| match name {
        Reply::Bulk(name) => String::from_utf8(name).unwrap(),
        other => panic!("no name: {other:?}"),
    };
    names.into_iter().map(text).collect()
}
