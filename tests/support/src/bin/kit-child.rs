//! Child process of the kit's own tests: `owner` holds a server, `worker` speaks the worker protocol without locks.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};
use watchlock_support::now_ns;
use watchlock_support::server::RedisServer;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("owner") => own_a_server(),
        Some("worker") => work(),
        _ => std::process::exit(2),
    }
}

/// Tells the server's process id and waits to be killed, for a minute at most.
fn own_a_server() {
    let server = RedisServer::start();
    say(&json!(server.pid()));
    std::thread::sleep(Duration::from_secs(60));
}

fn work() {
    while let Some(Ok(line)) = std::io::stdin().lines().next() {
        let t_inv = now_ns();
        match serde_json::from_str::<Value>(&line) {
            Ok(request) => answer(&request, t_inv),
            Err(_) => say(&json!({"id": null, "ok": false,
                "error": {"kind": "bad_request", "message": "no JSON"}})),
        }
    }
}

fn answer(request: &Value, t_inv: u64) {
    let id = &request["id"];
    match request["op"].as_str() {
        Some("echo") => say(
            &json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": now_ns(),
            "result": request["fields"]}),
        ),
        // Keeps the answer back until after that of the next request, to show that ids count and not order.
        Some("late") => {
            let mut next = String::new();
            let _ = std::io::stdin().read_line(&mut next);
            say(
                &json!({"id": serde_json::from_str::<Value>(&next).unwrap_or_default()["id"],
                "ok": true, "t_inv": t_inv, "t_ret": now_ns(), "result": "second"}),
            );
            say(
                &json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": now_ns(), "result": "first"}),
            );
        }
        Some("lose") => {
            say(
                &json!({"event": "lost", "owner": "a", "kind": "lock", "name": "x", "t": now_ns(),
                "reason": "expired"}),
            );
            say(&json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": now_ns(), "result": {}}));
        }
        _ => say(
            &json!({"id": id, "ok": false, "t_inv": t_inv, "t_ret": now_ns(),
            "error": {"kind": "unsupported", "message": "no such op"}}),
        ),
    }
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
