//! Child process of the kit's own tests: `owner` starts processes of its own, `worker` speaks the worker protocol
//! without locks.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::now_ns;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::Worker;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("owner") => own(),
        Some("worker") => work(),
        _ => std::process::exit(2),
    }
}

/// Prints the process ids of a server and of a frozen worker, and waits to be killed, for a minute at most.
fn own() {
    let server = RedisServer::start();
    let exe = std::env::current_exe().expect("this program has a path");
    let worker = Worker::spawn(&[exe.as_os_str(), "worker".as_ref()]);
    worker.freeze();
    say(&json!([server.pid(), worker.pid()]));
    std::thread::sleep(Duration::from_secs(60));
}

fn work() {
    while let Some(line) = next_line() {
        let t_inv = now_ns();
        if let Ok(request) = serde_json::from_str::<Value>(&line) {
            answer(&request, t_inv);
        } else {
            let error = json!({"kind": "bad_request", "message": "no JSON"});
            say(&json!({"id": null, "ok": false, "error": error}));
        }
    }
}

fn next_line() -> Option<String> {
    std::io::stdin().lines().next()?.ok()
}

fn answer(request: &Value, t_inv: u64) {
    let id = &request["id"];
    match request["op"].as_str() {
        Some("echo") => say_result(id, t_inv, &request["say"]),
        // Keeps the answer back until after that of the next request, to show that ids count and not order.
        Some("late") => {
            let next = next_line().unwrap_or_default();
            let next: Value = serde_json::from_str(&next).unwrap_or_default();
            say_result(&next["id"], t_inv, &json!("second"));
            say_result(id, t_inv, &json!("first"));
        }
        Some("lose") => {
            let mut lost = json!({"event": "lost", "owner": "a", "kind": "lock", "name": "x"});
            lost["t"] = json!(now_ns());
            lost["reason"] = json!("expired");
            say(&lost);
            say_result(id, t_inv, &Value::Null);
        }
        _ => {
            let error = json!({"kind": "unsupported", "message": "no such op"});
            say(&json!({"id": id, "ok": false, "t_inv": t_inv, "t_ret": now_ns(), "error": error}));
        }
    }
}

fn say_result(id: &Value, t_inv: u64, result: &Value) {
    let t_ret = now_ns();
    say(&json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": t_ret, "result": result}));
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
