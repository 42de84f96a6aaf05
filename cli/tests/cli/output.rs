//! What is written: to streams that take nothing, and in the words of the server.

use std::fs::File;
use std::io::{Read, Write, pipe};
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

/// A program that answers every command by an error, on a port of its own.
fn evil_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let serve = |mut stream: TcpStream| {
        let mut part = [0; 4096];
        while let Ok(size @ 1..) = stream.read(&mut part) {
            let commands = part[..size].split(|byte| *byte == b'*').count() - 1;
            let answers = format!("-ERR {EVIL}\r\n").repeat(commands);
            if stream.write_all(answers.as_bytes()).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

fn says_nothing_to_a_terminal(said: &Said) {
    let all = format!("{}{}", said.out, said.err).replace(r"\\", r"\");
    assert!(all.contains(ESCAPED), "{all:?}");
    let raw = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    assert!(!all.contains(raw), "{all:?}");
}

#[tokio::test]
async fn the_words_of_the_server_say_nothing_to_a_terminal() {
    let url = format!("redis://127.0.0.1:{}/", evil_server());
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
