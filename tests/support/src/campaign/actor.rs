//! An owner: locks, writes the protected record, enters again, reads the record, unlocks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::Kind;
use super::fleet::Incarnation;
use super::ground::Ground;
use super::kinds::{PERMITS, semaphore_of};
use super::plan::{Level, Plan, Plans};
use super::weather::Watch;
use crate::history::{Call, LockKind, Nanos, Outcome, Record};
use crate::now_ns;

/// How long a signal may lag behind an answer that said the same. No signal comes when a last release found the hold
/// gone.
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
        plan.fit(process.kind);
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

/// An owner, and its next plan.
pub(super) struct Actor<'a> {
    ground: &'a Ground,
    process: Arc<Incarnation>,
    owner: u32,
    plan: &'a Plan,
    name: &'a str,
    /// Of the permits that it has.
    handle: Mutex<Option<Value>>,
}

/// The protected record of a name at the beginning of a section: when it was read, and whose it was.
struct Begun<'a> {
    name: &'a str,
    from: Nanos,
    wrote: Nanos,
    first: u64,
}

/// An answer of a live process.
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
            handle: Mutex::default(),
        }
    }

    /// The plan from lock to last unlock; `None`: the process died.
    pub(super) async fn section(&self) -> Option<()> {
        let plan = self.plan;
        let first = plan.levels[0];
        let lost = plan
            .levels
            .iter()
            .map(|level| (level.kind, self.times_lost(level.kind)));
        let lost: HashMap<_, _> = lost.collect();
        let (op, answer) = self.acquire(plan.wait_ms, first).await?;
        if !matches!(answer, Answer::Levels(_)) {
            if matches!(answer, Answer::Failed(_)) {
                sleep(Duration::from_millis(20)).await;
            }
            return Some(());
        }
        let mut begun = Vec::new();
        // Several may have permits at once.
        let is_alone = !plan.kind().is_counted();
        for name in plan.kind().names(self.name).filter(|_| is_alone) {
            begun.push(self.begin(name, op).await);
        }
        // How many levels of each kind there are to give back.
        let mut levels = vec![(first.kind, 1)];
        for level in &plan.levels[1..] {
            let (_, answer) = self.acquire(None, *level).await?;
            if let Answer::Levels(count) = answer {
                let before = levels.iter().position(|(kind, _)| *kind == level.kind);
                let before = before.map_or(0, |before| levels.remove(before).1);
                // One, when the first was lost meanwhile and this one began afresh. Several locks as one also have the
                // earlier levels of those that were not lost.
                let count = if self.is_several() { before + 1 } else { count };
                levels.push((level.kind, count));
            }
        }
        sleep(plan.hold).await;
        for begun in begun {
            self.end(op, begun).await;
        }
        if !plan.downgrades {
            levels.reverse();
        }
        for (kind, count) in levels {
            self.give_back(kind, count, lost[&kind]).await?;
        }
        Some(())
    }

    fn is_several(&self) -> bool {
        self.plan.kind().names(self.name).count() > 1
    }

    /// Writes the protected record, or only reads it where others may hold the lock as well.
    async fn begin<'n>(&self, name: &'n str, op: u64) -> Begun<'n> {
        let from = now_ns();
        let first = if self.plan.kind() == LockKind::Read {
            self.ground.read(name).await
        } else {
            self.ground.write(name, op).await;
            op
        };
        Begun {
            name,
            from,
            wrote: now_ns(),
            first,
        }
    }

    /// Reads the record again.
    async fn end(&self, op: u64, begun: Begun<'_>) {
        let Begun {
            name,
            from,
            wrote,
            first,
        } = begun;
        let seen = self.ground.read(name).await;
        let until = now_ns();
        self.ground.recorder.push(if first == op {
            Record::Pair {
                op,
                from,
                wrote,
                until,
                seen,
            }
        } else {
            Record::Look {
                op,
                from,
                until,
                first,
                seen,
            }
        });
    }

    async fn give_back(&self, kind: LockKind, levels: u32, lost_before: u64) -> Option<()> {
        for _ in 0..levels {
            let Answer::Failed(why) = self.release(kind).await? else {
                continue;
            };
            if why == "lost" || why == "not_owner" {
                self.signalled(kind, lost_before).await;
            }
            if why == "not_owner" && !self.is_several() {
                break;
            }
        }
        Some(())
    }

    /// Waits for the signal, so that it does not count for a later hold.
    async fn signalled(&self, kind: LockKind, lost_before: u64) {
        let end = Instant::now() + SIGNAL_LAG;
        while self.process.kind != Kind::Java
            && self.times_lost(kind) == lost_before
            && self.process.worker.is_alive()
            && Instant::now() < end
        {
            sleep(Duration::from_millis(2)).await;
        }
    }

    fn times_lost(&self, kind: LockKind) -> u64 {
        self.process.times_lost(self.owner, kind, self.name)
    }

    async fn acquire(&self, wait_ms: Option<u64>, level: Level) -> Option<(u64, Answer)> {
        let Level { kind, lease_ms } = level;
        let call = Call::Acquire { wait_ms, lease_ms };
        let mut fields = Map::new();
        fields.extend(wait_ms.map(|ms| ("wait_ms".to_owned(), json!(ms))));
        fields.extend(lease_ms.map(|ms| ("lease_ms".to_owned(), json!(ms))));
        let verb = match (kind, wait_ms) {
            (LockKind::Permits(permits), _) => {
                fields.insert("permits".to_owned(), json!(permits));
                fields.insert("with_permits".to_owned(), json!(PERMITS));
                wait_ms.map_or("acquire", |_| "try_acquire")
            }
            (_, None) => "lock",
            (_, Some(_)) => "try_lock",
        };
        self.ask(call, kind, verb, fields).await
    }

    async fn release(&self, kind: LockKind) -> Option<Answer> {
        let (mut fields, mut verb) = (Map::new(), "unlock");
        if kind.is_counted() {
            let handle = self.handle.lock().take();
            fields.insert("handle".to_owned(), handle.unwrap_or_default());
            verb = "release";
        }
        let answered = self.ask(Call::Release, kind, verb, fields).await;
        answered.map(|(_, answer)| answer)
    }

    async fn ask(
        &self,
        call: Call,
        kind: LockKind,
        verb: &str,
        fields: Map<String, Value>,
    ) -> Option<(u64, Answer)> {
        let mut fields = fields;
        fields.insert("owner".to_owned(), json!(self.owner.to_string()));
        let word = if kind.is_counted() {
            semaphore_of(self.name).0
        } else {
            kind.word()
        };
        fields.insert("kind".to_owned(), json!(word));
        fields.insert("name".to_owned(), kind.called(self.name));
        let acquires = call != Call::Release;
        if acquires {
            self.process.asks(self.owner, kind, self.name);
        }
        let (client, recorder) = (self.process.client, &self.ground.recorder);
        let op = recorder.invoke(client, self.owner, kind, self.name, call);
        let reply = self
            .process
            .worker
            .request(verb, Value::Object(fields))
            .await;
        let mut token = None;
        let (outcome, answer) = match reply.outcome {
            Err(error) if error.kind == "dead" => return None,
            Err(error) => {
                let failed = Answer::Failed(error.kind.clone());
                (Outcome::Failed(error.kind), failed)
            }
            Ok(result) => {
                token = result["token"].as_u64();
                if kind.is_counted() && acquires {
                    *self.handle.lock() = Some(result["handle"].clone());
                }
                read(&result, acquires, kind)
            }
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
            token,
        });
        Some((op, answer))
    }
}

fn read(result: &Value, acquires: bool, kind: LockKind) -> (Outcome, Answer) {
    // Each acquire of a semaphore is a hold.
    let levels = if kind.is_counted() {
        u64::from(acquires)
    } else {
        u64::MAX
    };
    let count = result["count"].as_u64().unwrap_or(levels);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if !acquires {
        return (Outcome::Released(count), Answer::Left);
    }
    if result["acquired"] == false {
        return (Outcome::Busy, Answer::Busy);
    }
    (Outcome::Acquired(count), Answer::Levels(count))
}
