//! An owner: locks, writes the protected record, perhaps enters again, looks at the record, unlocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::{Value, json};
use tokio::time::sleep;
use watchlock_support::history::{Call, Outcome, Record};
use watchlock_support::now_ns;

use super::fleet::Process;
use super::{Ground, Kind, NAMES};

/// How long a signal may lag behind an answer that said the same.
const SIGNAL_LAG: Duration = Duration::from_secs(2);

/// One section, out of the seed alone.
struct Plan {
    name: String,
    wait_ms: Option<u64>,
    /// `None`: under the watchdog.
    lease_ms: Option<u64>,
    again: bool,
    hold: Duration,
}

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        let lease_ms = rng.bool().then(|| rng.u64(150..1_000));
        let (moment, stay) = (rng.u64(0..5), rng.u64(200..1_500));
        Self {
            name: format!("mixed:{}", rng.u32(..NAMES)),
            wait_ms: (rng.u32(..3) > 0).then(|| rng.u64(..400)),
            lease_ms,
            // A level with a lease of its own changes the TTL of a Java hold; that is no matter of faults.
            again: lease_ms.is_none() && rng.u32(..4) == 0,
            hold: Duration::from_millis(if rng.u32(..25) == 0 { stay } else { moment }),
        }
    }
}

pub(super) async fn run(ground: Arc<Ground>, slot: usize, owner: u32, seed: u64) {
    let mut rng = Rng::with_seed(seed ^ ((slot as u64 + 1) << 40) ^ (u64::from(owner + 1) << 32));
    while !ground.is_over() {
        let plan = Plan::draw(&mut rng);
        let process = ground.slots[slot].process();
        let actor = Actor {
            ground: &ground,
            process: &process,
            owner,
            plan: &plan,
        };
        if actor.section().await.is_none() {
            while !ground.is_over() && Arc::ptr_eq(&process, &ground.slots[slot].process()) {
                sleep(Duration::from_millis(5)).await;
            }
        }
        sleep(Duration::from_micros(rng.u64(..3_000))).await;
    }
}

struct Actor<'a> {
    ground: &'a Ground,
    process: &'a Process,
    owner: u32,
    plan: &'a Plan,
}

impl Actor<'_> {
    /// The plan from lock to last unlock; `None`: the process died.
    async fn section(&self) -> Option<()> {
        let lost_before = self.process.times_lost(self.owner, &self.plan.name);
        let (op, outcome) = self.acquire(self.plan.wait_ms).await?;
        if !matches!(outcome, Outcome::Acquired(_)) {
            return Some(());
        }
        let from = now_ns();
        self.ground
            .vault
            .cmd(&["SET", &self.plan.name, &op.to_string()])
            .await;
        let wrote = now_ns();
        let mut levels = 1;
        if self.plan.again {
            let (_, outcome) = self.acquire(None).await?;
            levels += u32::from(matches!(outcome, Outcome::Acquired(_)));
        }
        sleep(self.plan.hold).await;
        let seen = self.ground.vault.query(&["GET", &self.plan.name]).await;
        let until = now_ns();
        self.ground.recorder.push(Record::Pair {
            op,
            from,
            wrote,
            until,
            seen,
        });
        for _ in 0..levels {
            let outcome = self.ask(Call::Release, "unlock", json!({})).await?.1;
            if outcome == Outcome::Failed("lost".to_owned()) {
                self.told(lost_before).await;
            }
        }
        Some(())
    }

    /// Waits for the signal, so that it is not taken for that of a later hold.
    async fn told(&self, lost_before: u64) {
        let end = Instant::now() + SIGNAL_LAG;
        while self.process.kind == Kind::Rust
            && self.process.times_lost(self.owner, &self.plan.name) == lost_before
            && self.process.worker.is_alive()
            && Instant::now() < end
        {
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn acquire(&self, wait_ms: Option<u64>) -> Option<(u64, Outcome)> {
        let lease_ms = self.plan.lease_ms;
        let mut fields = json!({});
        if let Some(wait_ms) = wait_ms {
            fields["wait_ms"] = json!(wait_ms);
        }
        if let Some(lease_ms) = lease_ms {
            fields["lease_ms"] = json!(lease_ms);
        }
        let verb = if wait_ms.is_some() {
            "try_lock"
        } else {
            "lock"
        };
        self.ask(Call::Acquire { wait_ms, lease_ms }, verb, fields)
            .await
    }

    async fn ask(&self, call: Call, verb: &str, mut fields: Value) -> Option<(u64, Outcome)> {
        fields["owner"] = json!(self.owner.to_string());
        fields["kind"] = json!("lock");
        fields["name"] = json!(self.plan.name);
        let acquires = call != Call::Release;
        let recorder = &self.ground.recorder;
        let op = recorder.invoke(self.process.client, self.owner, &self.plan.name, call);
        let reply = self.process.worker.request(verb, fields).await;
        let outcome = match reply.outcome {
            Err(error) if error.kind == "dead" => return None,
            Err(error) => {
                self.ground.note_error(self.process.kind, &error);
                Outcome::Failed(error.kind)
            }
            Ok(result) => outcome(&result, acquires),
        };
        self.ground.answered(self.process.kind, verb, &outcome);
        recorder.push(Record::Return {
            t: reply.t_ret,
            op,
            since: (reply.t_inv > 0).then_some(reply.t_inv),
            outcome: outcome.clone(),
        });
        Some((op, outcome))
    }
}

fn outcome(result: &Value, acquires: bool) -> Outcome {
    let count = result["count"].as_u64().unwrap_or(u64::from(u32::MAX));
    let count = u32::try_from(count).expect("few levels");
    if !acquires {
        return Outcome::Released(count);
    }
    if result["acquired"] == false {
        return Outcome::Busy;
    }
    Outcome::Acquired(count)
}
