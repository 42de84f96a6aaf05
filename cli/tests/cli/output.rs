//! What is written: to streams that take nothing, and in the words of the server.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use watchlock_support::server::RedisServer;

use crate::job::{Job, Said, UNTIL_EOF, at, said, watchlock};

const JAVA: &str = "0b2d6cc1-6fc0-4f4b-a9f3-0f4a6bb2dd57:1";

/// A stream that refuses whatever is written.
fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("a device of Linux")
        .into()
}

fn status(command: &mut Command) -> Option<i32> {
    command.status().expect("it starts").code()
}

#[tokio::test]
async fn a_dead_stderr_changes_no_status() {
    let server = RedisServer::start();
    for key in ["one", "two"] {
        server.cmd(&["HSET", key, JAVA, "1"]).await;
    }
    for (arguments, expected) in [
        (&["ls", "--limit", "1"] as &[&str], 0),
        (&["show", "free"], 1),
        (&["release", "--yes", "free"], 1),
        (&["release", "--yes", "one"], 0),
        (&["run", "--kind", "odd", "x", "true"], 64),
        (&["run", "-v", "x", "true"], 0),
        (&["run", "x", "no-such-command"], 127),
        (&["doctor"], 1),
    ] {
        let mut command = at(&server, arguments);
        let code = status(command.stdout(Stdio::null()).stderr(full()));
        assert_eq!(code, Some(expected), "{arguments:?}");
        let mut command = watchlock(arguments);
        command.env("WATCHLOCK_URL", "redis://127.0.0.1:1/");
        if arguments[0] != "run" {
            let code = status(command.stdout(Stdio::null()).stderr(full()));
            assert_eq!(code, Some(69), "{arguments:?}");
        }
    }
    // A question that nobody can read is not answered.
    let (reader, mut answer) = pipe().expect("a pipe");
    answer.write_all(b"y\n").expect("a pipe takes a line");
    let mut release = at(&server, &["release", "two"]);
    assert_eq!(status(release.stdin(reader).stderr(full())), Some(1));
    assert!(server.exists("two").await);
}

#[tokio::test]
async fn a_dead_stdout_is_74_unless_nobody_reads_on() {
    let server = RedisServer::start();
    for number in 0..1000 {
        server
            .cmd(&["HSET", &format!("lock:{number}"), JAVA, "1"])
            .await;
    }
    for arguments in [
        &["ls"] as &[&str],
        &["ls", "--json"],
        &["show", "lock:1"],
        &["show", "free"],
        &["doctor"],
        &["completions", "bash"],
    ] {
        let mut command = at(&server, arguments);
        let output = command.stdout(full()).output().expect("it starts");
        assert_eq!(output.status.code(), Some(74), "{arguments:?}");
        let text = "watchlock: cannot write the answer: No space left on device (os error 28)\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), text);
    }
    let (reader, writer) = pipe().expect("a pipe");
    drop(reader);
    let output = at(&server, &["ls"]).stdout(writer).output();
    let output = output.expect("it starts");
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(0), b"".as_slice())
    );
}

/// Control characters that would make a terminal red, make it listen, or turn its text around.
const EVIL: &str = "evil\u{1b}[31m\u{9b}\u{202e}";
const ESCAPED: &str = "evil\\u{1b}[31m\\u{9b}\\u{202e}";

/// A program that answers each command by what `answer` says to its name, on a port of its own.
fn fake_server(answer: fn(&str) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serve = move |mut stream: TcpStream| -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        loop {
            let count: usize = lines.next()?.ok()?.strip_prefix('*')?.parse().ok()?;
            let words = (0..count).map(|_| lines.nth(1)?.ok());
            let words = words.collect::<Option<Vec<_>>>()?;
            let said = answer(&words.first()?.to_uppercase());
            stream.write_all(said.as_bytes()).ok()?;
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    format!("redis://127.0.0.1:{port}/")
}

fn says_nothing_to_a_terminal(said: &Said) {
    let all = format!("{}{}", said.out, said.err).replace(r"\\", r"\");
    assert!(all.contains(ESCAPED), "{all:?}");
    let raw = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!all.contains(raw), "{all:?}");
}

#[tokio::test]
async fn the_words_of_the_server_say_nothing_to_a_terminal() {
    let url = fake_server(|_| format!("-ERR {EVIL}\r\n"));
    for arguments in [
        &["ls"] as &[&str],
        &["show", "x"],
        &["release", "x"],
        &["run", "-w", "0.2", "x", "true"],
        &["run", "-w", "0.2", "--json", "x", "true"],
        &["ls", "--cluster"],
    ] {
        let tried = said(watchlock(arguments).env("WATCHLOCK_URL", &url));
        assert!(tried.status >= 64, "{arguments:?}: {}", tried.err);
        says_nothing_to_a_terminal(&tried);
    }
    let server = RedisServer::start();
    server
        .cmd(&["ACL", "SETUSER", EVIL, "on", ">pw", "~*", "&*", "+@all"])
        .await;
    let port = server.port();
    let url = format!("redis://evil%1B%5B31m%C2%9B%E2%80%AE:pw@127.0.0.1:{port}/");
    for arguments in [&["doctor"] as &[&str], &["doctor", "--json"]] {
        let examined = said(watchlock(arguments).env("WATCHLOCK_URL", &url));
        says_nothing_to_a_terminal(&examined);
    }
}

#[tokio::test]
async fn a_nested_run_finds_the_address() {
    let server = RedisServer::start();
    let program = env!("CARGO_BIN_EXE_watchlock");
    let mut outer = at(&server, &["run", "outer", program, "run", "inner"]);
    let mut job = Job::start(outer.args(UNTIL_EOF));
    assert_eq!(job.line(), "ready");
    assert!(server.exists("outer").await && server.exists("inner").await);
    job.close();
    assert_eq!(job.end(), (0, String::new()));
}

#[test]
fn absurd_numbers_of_the_server_are_no_panic_and_no_work_without_end() {
    let url = fake_server(|name| match name {
        "INFO" => "$39\r\nconnected_slaves:18446744073709551615\r\n\r\n".to_owned(),
        "TIME" => format!("*2\r\n{}", format!("$20\r\n{}\r\n", u64::MAX).repeat(2)),
        "TYPE" => "+string\r\n".to_owned(),
        "GET" => "$1\r\n5\r\n".to_owned(),
        "PTTL" => format!(":{}\r\n", i64::MAX),
        "LRANGE" => "*0\r\n".to_owned(),
        "ZCOUNT" => ":0\r\n".to_owned(),
        _ => "-ERR unknown command\r\n".to_owned(),
    });
    for arguments in [&["doctor"] as &[&str], &["show", "x"]] {
        let mut job = Job::start(watchlock(arguments).env("WATCHLOCK_URL", &url));
        assert_eq!(job.end(), (0, String::new()), "{arguments:?}");
    }
}
