//! The plain client of the controls as a worker: `plain-worker [FLAW]`. It speaks the part of the workers' protocol
//! that a campaign needs, so that a campaign can run against clients that are wrong on purpose.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use watchlock_support::controls::{Flaw, Plain, PlainHold};
use watchlock_support::history::{LockKind, Outcome, Record, Recorder};
use watchlock_support::now_ns;

/// Practically for ever.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// A hold and its owner, as the protocol identifies them; the client numbers its owners by itself.
type Holds = Arc<Mutex<HashMap<(String, LockKind, String), PlainHold>>>;

struct Worker {
    flaw: Option<Flaw>,
    recorder: Recorder,
    client: Mutex<Option<Plain>>,
    holds: Holds,
    /// The owners by the client's number.
    owners: Mutex<HashMap<u32, String>>,
}

#[tokio::main]
async fn main() {
    let flaw = std::env::args().nth(1).map(|name| {
        let named = Flaw::ALL.iter().find(|flaw| format!("{flaw:?}") == name);
        *named.unwrap_or_else(|| panic!("no flaw {name}"))
    });
    let worker = Arc::new(Worker {
        flaw,
        recorder: Recorder::new(),
        client: Mutex::default(),
        holds: Holds::default(),
        owners: Mutex::default(),
    });
    let reporting = Arc::clone(&worker);
    tokio::spawn(async move { reporting.report().await });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let request: Value = serde_json::from_str(&line).expect("a request");
        let worker = Arc::clone(&worker);
        tokio::spawn(async move { worker.answer(&request).await });
    }
}

impl Worker {
    async fn answer(&self, request: &Value) {
        let (id, t_inv) = (&request["id"], now_ns());
        let result = self.act(request).await;
        let t_ret = now_ns();
        say(&match result {
            Ok(result) => {
                json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": t_ret, "result": result})
            }
            Err(kind) => {
                let error = json!({"kind": kind, "message": ""});
                json!({"id": id, "ok": false, "t_inv": t_inv, "t_ret": t_ret, "error": error})
            }
        });
    }

    async fn act(&self, request: &Value) -> Result<Value, String> {
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        let time = |field: &str| request[field].as_u64().map(Duration::from_millis);
        if request["op"] == "open" {
            let number = std::process::id();
            let client = Plain::new(&text("url"), number, self.flaw, &self.recorder);
            *self.client.lock() = Some(client);
            return Ok(json!({"client_id": "plain"}));
        }
        let kind = LockKind::of(&text("kind")).ok_or("unsupported")?;
        let key = (text("owner"), kind, text("name"));
        let held = self.holds.lock().remove(&key);
        let (hold, outcome) = match (request["op"].as_str(), held) {
            (Some("unlock"), Some(mut hold)) => {
                let outcome = hold.unlock().await;
                (Some(hold), outcome)
            }
            (Some("unlock"), None) => (None, Outcome::Failed("not_owner".to_owned())),
            (_, Some(mut hold)) => {
                let outcome = hold.reenter().await;
                (Some(hold), outcome)
            }
            (_, None) => {
                let client = self.client.lock().clone().expect("it is open");
                let wait = time("wait_ms").unwrap_or(FOR_EVER);
                let hold = client.lock_as(kind, &key.2, wait, time("lease_ms")).await;
                let outcome = hold
                    .as_ref()
                    .map_or(Outcome::Busy, |_| Outcome::Acquired(1));
                (hold, outcome)
            }
        };
        let token = hold.as_ref().and_then(PlainHold::token);
        if let Some(hold) = hold.filter(|_| !matches!(outcome, Outcome::Released(0))) {
            self.owners.lock().insert(hold.owner(), key.0.clone());
            self.holds.lock().insert(key, hold);
        }
        match outcome {
            Outcome::Acquired(count) => {
                Ok(json!({"acquired": true, "count": count, "token": token}))
            }
            Outcome::Released(count) => Ok(json!({"count": count})),
            Outcome::Failed(kind) => Err(kind),
            _ => Ok(json!({"acquired": false})),
        }
    }

    /// Reports holds that are lost. A hold cannot be lost before it is known.
    async fn report(&self) {
        loop {
            for record in self.recorder.take() {
                if let Record::Lost {
                    t,
                    owner,
                    kind,
                    name,
                    reason,
                    ..
                } = record
                {
                    let owner = self.owners.lock().get(&owner).cloned();
                    say(
                        &json!({"event": "lost", "owner": owner, "kind": kind.word(), "name": name,
                        "t": t, "reason": reason}),
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
