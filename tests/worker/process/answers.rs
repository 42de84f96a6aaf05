//! The output: one thread writes answers and events, line by line.
//!
//! A thread, because the reader of our output may be slow, and a lock must not wait for that.

use std::io::Write;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use watchlock::LostReason;
use watchlock_support::now_ns;

use crate::failure::Failure;
use crate::kinds::Kind;

/// Where answers and events go. The writer ends with the last clone.
#[derive(Clone)]
pub(crate) struct Answers(Sender<Value>);

/// The result of a request, with its times.
pub(crate) struct Outcome {
    pub(crate) t_inv: u64,
    pub(crate) t_ret: u64,
    pub(crate) result: Result<Value, Failure>,
}

/// Awaits a call into the library and notes its times.
pub(crate) async fn timed<T>(call: impl Future<Output = T>) -> (u64, u64, T) {
    let t_inv = now_ns();
    let output = call.await;
    (t_inv, now_ns(), output)
}

/// [`timed`], for a call whose output is the result.
pub(crate) async fn outcome_of<E: Into<Failure>>(
    call: impl Future<Output = Result<Value, E>>,
) -> Outcome {
    let (t_inv, t_ret, result) = timed(call).await;
    Outcome::new(t_inv, t_ret, result)
}

impl Outcome {
    pub(crate) fn new(t_inv: u64, t_ret: u64, result: Result<Value, impl Into<Failure>>) -> Self {
        let result = result.map_err(Into::into);
        Self {
            t_inv,
            t_ret,
            result,
        }
    }

    /// It never became a call.
    pub(crate) fn refused(failure: impl Into<Failure>) -> Self {
        let now = now_ns();
        Self {
            t_inv: now,
            t_ret: now,
            result: Err(failure.into()),
        }
    }
}

impl Answers {
    pub(crate) fn begin() -> (Self, JoinHandle<()>) {
        let (sender, lines) = channel::<Value>();
        let writer = std::thread::spawn(move || {
            for line in lines {
                let mut out = std::io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        });
        (Self(sender), writer)
    }

    pub(crate) fn answer(&self, id: &Value, outcome: Outcome) {
        let Outcome {
            t_inv,
            t_ret,
            result,
        } = outcome;
        self.send(match result {
            Ok(result) => {
                json!({"id": id, "ok": true, "t_inv": t_inv, "t_ret": t_ret, "result": result})
            }
            Err(failure) => {
                json!({"id": id, "ok": false, "t_inv": t_inv, "t_ret": t_ret, "error": failure.to_json()})
            }
        });
    }

    /// A line that is no request.
    pub(crate) fn bad_line(&self, failure: &Failure) {
        self.send(json!({"id": null, "ok": false, "error": failure.to_json()}));
    }

    pub(crate) fn lost(&self, owner: &str, kind: &Kind, name: &Value, reason: LostReason) {
        self.send(json!({
            "event": "lost", "owner": owner, "kind": kind.word, "name": name,
            "t": now_ns(), "reason": reason.to_string(),
        }));
    }

    /// Permits are lost: `event` names them.
    pub(crate) fn lost_permits(&self, mut event: Value, reason: LostReason) {
        event["t"] = json!(now_ns());
        event["reason"] = json!(reason.to_string());
        self.send(event);
    }

    fn send(&self, line: Value) {
        // Without a reader there is nobody to report it to.
        let _ = self.0.send(line);
    }
}
