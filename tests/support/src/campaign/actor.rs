//! An owner: locks, writes the protected record, enters again, looks at the record, unlocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::Kind;
use super::fleet::Incarnation;
use super::ground::Ground;
use super::plan::{Plan, Plans};
use super::weather::Watch;
use crate::history::{Call, LockKind, Outcome, Record};
use crate::now_ns;

/// How long a signal may lag behind an answer that said the same. There is none when a last release
/// found the hold gone.
const SIGNAL_LAG: Duration = Duration::from_millis(150);

pub(super) async fn run(
    ground: Arc<Ground>,
    slot: usize,
    owner: u32,
    mut plans: Plans,
    weather: Watch,
) {
    while !weather.is_home() {
        let mut plan = plans.next();
        let process = ground.slots[slot].worker();
        if process.kind == Kind::Java {
            plan.make_plain();
        }
        let actor = Actor::new(&ground, Arc::clone(&process), owner, &plan);
        if actor.section().await.is_none() {
            reborn(&ground, slot, &process, &weather).await;
        }
        sleep(plan.pause).await;
    }
}

/// Waits until a dead process is replaced.
async fn reborn(ground: &Ground, slot: usize, dead: &Arc<Incarnation>, weather: &Watch) {
    while !weather.is_home() && Arc::ptr_eq(dead, &ground.slots[slot].worker()) {
        sleep(Duration::from_millis(5)).await;
    }
}

/// An owner, and what it is about to do.
pub(super) struct Actor<'a> {
    ground: &'a Ground,
    process: Arc<Incarnation>,
    owner: u32,
    plan: &'a Plan,
    name: &'a str,
}

/// An answer of a process that is alive.
enum Answer {
    /// How many levels there are now.
    Levels(u32),
    Busy,
    Left,
    Failed(String),
}

impl Answer {
    fn kind(&self) -> &str {
        match self {
            Self::Levels(_) | Self::Left => "ok",
            Self::Busy => "busy",
            Self::Failed(kind) => kind,
        }
    }
}

impl<'a> Actor<'a> {
    pub(super) fn new(
        ground: &'a Ground,
        process: Arc<Incarnation>,
        owner: u32,
        plan: &'a Plan,
    ) -> Self {
        let name = &plan.name;
        Self {
            ground,
            process,
            owner,
            plan,
            name,
        }
    }

    /// The plan from lock to last unlock; `None`: the process died.
    pub(super) async fn section(&self) -> Option<()> {
        let plan = self.plan;
        let lost_before = self.process.times_lost(self.owner, self.name);
        let (op, answer) = self.acquire(plan.wait_ms, plan.leases_ms[0]).await?;
        if !matches!(answer, Answer::Levels(_)) {
            if matches!(answer, Answer::Failed(_)) {
                sleep(Duration::from_millis(20)).await;
            }
            return Some(());
        }
        let from = now_ns();
        self.ground.write(self.name, op).await;
        let wrote = now_ns();
        let mut levels = 1;
        for lease in &plan.leases_ms[1..] {
            let (_, answer) = self.acquire(None, *lease).await?;
            // One, when the first was lost meanwhile and this began afresh.
            if let Answer::Levels(count) = answer {
                levels = count;
            }
        }
        sleep(plan.hold).await;
        let seen = self.ground.read(self.name).await;
        self.ground.recorder.push(Record::Pair {
            op,
            from,
            wrote,
            until: now_ns(),
            seen,
        });
        self.give_back(levels, lost_before).await
    }

    async fn give_back(&self, levels: u32, lost_before: u64) -> Option<()> {
        for _ in 0..levels {
            let Answer::Failed(kind) = self.release().await? else {
                continue;
            };
            if kind == "lost" || kind == "not_owner" {
                self.told(lost_before).await;
            }
            if kind == "not_owner" {
                break;
            }
        }
        Some(())
    }

    /// Waits for the signal, so that it is not taken for that of a later hold.
    async fn told(&self, lost_before: u64) {
        let end = Instant::now() + SIGNAL_LAG;
        while self.process.kind != Kind::Java
            && self.process.times_lost(self.owner, self.name) == lost_before
            && self.process.worker.is_alive()
            && Instant::now() < end
        {
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn acquire(&self, wait_ms: Option<u64>, lease_ms: Option<u64>) -> Option<(u64, Answer)> {
        let call = Call::Acquire { wait_ms, lease_ms };
        let mut fields = Map::new();
        fields.extend(wait_ms.map(|ms| ("wait_ms".to_owned(), json!(ms))));
        fields.extend(lease_ms.map(|ms| ("lease_ms".to_owned(), json!(ms))));
        let verb = wait_ms.map_or("lock", |_| "try_lock");
        self.ask(call, verb, fields).await
    }

    async fn release(&self) -> Option<Answer> {
        let answered = self.ask(Call::Release, "unlock", Map::new()).await;
        answered.map(|(_, answer)| answer)
    }

    async fn ask(
        &self,
        call: Call,
        verb: &str,
        fields: Map<String, Value>,
    ) -> Option<(u64, Answer)> {
        let mut fields = fields;
        fields.insert("owner".to_owned(), json!(self.owner.to_string()));
        fields.insert("kind".to_owned(), json!("lock"));
        fields.insert("name".to_owned(), json!(self.name));
        let acquires = call != Call::Release;
        let (client, recorder) = (self.process.client, &self.ground.recorder);
        let op = recorder.invoke(client, self.owner, LockKind::Lock, self.name, call);
        let reply = self
            .process
            .worker
            .request(verb, Value::Object(fields))
            .await;
        let (outcome, answer) = match reply.outcome {
            Err(error) if error.kind == "dead" => return None,
            Err(error) => {
                let failed = Answer::Failed(error.kind.clone());
                (Outcome::Failed(error.kind), failed)
            }
            Ok(result) => read(&result, acquires),
        };
        let by = match self.process.kind {
            Kind::Java => "Redisson's ",
            Kind::Rust | Kind::Plain(_) => "",
        };
        self.ground
            .answer(&format!("{by}{verb}: {}", answer.kind()));
        recorder.push(Record::Return {
            t: reply.t_ret,
            op,
            since: (reply.t_inv > 0).then_some(reply.t_inv),
            outcome,
            token: None,
        });
        Some((op, answer))
    }
}

fn read(result: &Value, acquires: bool) -> (Outcome, Answer) {
    let count = result["count"]
        .as_u64()
        .and_then(|count| u32::try_from(count).ok());
    let count = count.unwrap_or(u32::MAX);
    if !acquires {
        return (Outcome::Released(count), Answer::Left);
    }
    if result["acquired"] == false {
        return (Outcome::Busy, Answer::Busy);
    }
    (Outcome::Acquired(count), Answer::Levels(count))
}
