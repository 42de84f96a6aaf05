//! Scenes: moments that chance would seldom bring about, played again and again, with and without faults, each by two
//! workers and on a name of its own.
//!
//! | scene | shows |
//! |---|---|
//! | `Meet`: both come at once, and stay a moment | a release before the other's subscription is confirmed |
//! | `Rob`: the lock is deleted, and the other gets in at once | a renewal that prolongs a stranger's hold |
//! | `Delay`: the answer to the acquire is late, and the other waits | a validity that is counted from the answer |
//! | `Queue`: two come to a fair lock that is held, one long after the other | an overtaking |
//! | `Outlive`: one holds it for longer than a fail-over takes, the other tries all the time | a hold that a fail-over
//! lost |
//!
//! Redisson's workers take part in the queue only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use super::actor::Actor;
use super::ground::Ground;
use super::plan::{Level, Plan};
use super::weather::Watch;
use super::{Campaign, Kind, WATCHDOG_LEASE, servers};
use crate::checker::order;
use crate::history::{LockKind, MS, Scope};
use crate::now_ns;
use crate::proxy::{Fault, Match};

#[derive(Clone, Copy, Debug)]
pub(super) enum Scene {
    Meet,
    Rob,
    Delay,
    Queue,
    Outlive,
}

/// Most scenes show something only when nothing else is in the way, so there are many meetings.
const ON_PLAIN_LOCKS: [Scene; 5] = [
    Scene::Meet,
    Scene::Meet,
    Scene::Meet,
    Scene::Rob,
    Scene::Delay,
];
const ON_FAIR_LOCKS: [Scene; 4] = [Scene::Queue; 4];
/// For workers without links of their own, which cannot be made slow.
const WITH_REPLICAS: [Scene; 30] = [Scene::Outlive; 30];
/// The owners of scenes differ by less than that.
const MANY_OWNERS: u32 = 1_000;
/// Longer than anybody holds a lock in a scene.
const PATIENCE_MS: u64 = 5_000;
/// Longer than the first holder stays, and well below the time that a wake-up may take.
const SLOW: Duration = Duration::from_millis(25);
/// Well below the command time-out, and well above the machine's blur.
const LATE: Duration = Duration::from_millis(400);
const SHORT_LEASE_MS: u64 = 600;
/// Longer than anybody may be wrong about a hold: a lease, and the lag of a signal.
const LONG: Duration = Duration::from_secs(2);

/// Longer than most fail-overs.
const FAIL_OVER: Duration = Duration::from_secs(4);

/// The scenes for a campaign.
pub(super) fn on(campaign: &Campaign) -> Vec<Scene> {
    if campaign.layout.has_replicas() {
        return WITH_REPLICAS.to_vec();
    }
    let kinds = &campaign.kinds;
    let mut scenes = Vec::new();
    if kinds.contains(&LockKind::Lock) {
        scenes.extend(ON_PLAIN_LOCKS);
    }
    if kinds.contains(&LockKind::Fair) {
        scenes.extend(ON_FAIR_LOCKS);
    }
    scenes
}

/// Plays the scene until the end, with an owner of its own.
pub(super) async fn run(ground: Arc<Ground>, scene: Scene, owner: u32, seed: u64, weather: Watch) {
    let mut rng = Rng::with_seed(seed ^ u64::from(owner) << 32);
    let plays = |slot: &usize| match scene {
        Scene::Queue => true,
        _ => ground.slots[*slot].kind != Kind::Java,
    };
    let slots: Vec<usize> = (0..ground.slots.len()).filter(plays).collect();
    let mut number = 0;
    while slots.len() > 1 && !weather.is_home() {
        number += 1;
        let two = rng.choose_multiple(slots.iter().copied(), 2);
        let stage = Stage {
            ground: &ground,
            owner,
            slots: [two[0], two[1]],
            name: format!("chaos:{scene:?}:{owner}:{number}"),
        };
        let (moment, pause) = (rng.u64(..20_000), rng.u64(..20));
        match scene {
            Scene::Meet => stage.meet(Duration::from_micros(moment)).await,
            Scene::Rob => stage.rob().await,
            Scene::Delay => stage.delay().await,
            Scene::Queue => stage.queue().await,
            Scene::Outlive => stage.outlive().await,
        };
        sleep(Duration::from_millis(pause)).await;
    }
}

struct Stage<'a> {
    ground: &'a Ground,
    owner: u32,
    slots: [usize; 2],
    name: String,
}

/// Each ends early, with `None`, when a process dies.
impl Stage<'_> {
    fn actor<'a>(&'a self, which: usize, plan: &'a Plan) -> Actor<'a> {
        self.actor_as(self.owner, which, plan)
    }

    fn actor_as<'a>(&'a self, owner: u32, which: usize, plan: &'a Plan) -> Actor<'a> {
        let process = self.ground.slots[self.slots[which]].worker();
        Actor::new(self.ground, process, owner, plan)
    }

    fn plan(&self, lease_ms: Option<u64>, hold: Duration) -> Plan {
        Plan {
            name: self.name.clone(),
            wait_ms: None,
            levels: vec![Level {
                kind: LockKind::Lock,
                lease_ms,
            }],
            downgrades: false,
            hold,
            pause: Duration::ZERO,
        }
    }

    /// Subscribing takes a while, on either link; this is not a fault that excuses anything. On a distant link it takes
    /// longer than that by itself.
    async fn meet(&self, moment: Duration) -> Option<()> {
        let channel = format!("redisson_lock__channel:{{{}}}", self.name);
        let links = self.slots.map(|slot| self.ground.slots[slot].link());
        let near = links
            .iter()
            .filter(|link| !link.far.load(Ordering::Relaxed));
        let slow: Vec<_> = near
            .map(|link| {
                let subscribe = Match::command("SUBSCRIBE").and(Match::arg(&channel));
                let shot = link.proxy.inject(Fault::DelayRequest(SLOW));
                shot.on(subscribe).arm()
            })
            .collect();
        let plan = self.plan(None, moment);
        let (one, other) = (self.actor(0, &plan), self.actor(1, &plan));
        let (one, other) = tokio::join!(one.section(), other.section());
        for aim in slow {
            aim.cancel();
        }
        one.and(other)
    }

    async fn rob(&self) -> Option<()> {
        let (robbed, next) = (self.plan(None, LONG), self.plan(Some(5_000), LONG));
        let (robbed, next) = (self.actor(0, &robbed), self.actor(1, &next));
        let taking = async {
            self.there().await;
            servers::delete(self.ground, &self.name).await;
            next.section().await
        };
        let (robbed, next) = tokio::join!(robbed.section(), taking);
        robbed.and(next)
    }

    async fn delay(&self) -> Option<()> {
        let slot = &self.ground.slots[self.slots[0]];
        let scope = Scope::Client(slot.worker().client);
        let (from, shot) = (now_ns(), slot.link().proxy.inject(Fault::DelayReply(LATE)));
        let aim = shot.on(Match::key(&self.name)).arm();
        let (late, next) = (
            self.plan(Some(SHORT_LEASE_MS), LONG),
            self.plan(None, LATE * 2),
        );
        let (late, next) = (self.actor(0, &late), self.actor(1, &next));
        let waiting = async {
            self.there().await;
            next.section().await
        };
        let (late, next) = tokio::join!(late.section(), waiting);
        aim.cancel();
        self.ground.disturbed("late answer", from, 0, scope);
        late.and(next)
    }

    /// The third comes so much later than the second that there is no doubt who was first.
    async fn queue(&self) -> Option<()> {
        let late = order::margin(&self.ground.settings) + 50 * MS;
        let late = Duration::from_nanos(late);
        let plan = |hold| {
            let mut plan = self.plan(None, hold);
            plan.levels[0].kind = LockKind::Fair;
            plan.wait_ms = Some(PATIENCE_MS);
            plan
        };
        let (long, short) = (plan(late * 3 / 2), plan(Duration::from_millis(20)));
        let (first, second) = (self.actor(0, &long), self.actor(1, &short));
        let third = self.actor_as(self.owner + MANY_OWNERS, 0, &short);
        let coming = async {
            self.there().await;
            let second = second.section();
            let third = async {
                sleep(late).await;
                third.section().await
            };
            let (second, third) = tokio::join!(second, third);
            second.and(third)
        };
        let (first, others) = tokio::join!(first.section(), coming);
        first.and(others)
    }

    async fn outlive(&self) -> Option<()> {
        let (long, mut short) = (self.plan(None, FAIL_OVER), self.plan(None, SLOW));
        // A waiter learns of it later than the holder.
        short.wait_ms = Some(0);
        let (long, short) = (self.actor(0, &long), self.actor(1, &short));
        let over = AtomicBool::new(false);
        let holding = async {
            let held = long.section().await;
            over.store(true, Ordering::Relaxed);
            held
        };
        let trying = async {
            while !over.load(Ordering::Relaxed) {
                sleep(SLOW).await;
                short.section().await?;
            }
            Some(())
        };
        let (held, tried) = tokio::join!(holding, trying);
        held.and(tried)
    }

    /// Waits until the lock is taken, for as long as a lease.
    async fn there(&self) {
        let exists = async {
            let command = ["EXISTS", &self.name];
            while self.ground.server().try_cmd(&command).await != Ok(redis::Value::Int(1)) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(WATCHDOG_LEASE, exists).await;
    }
}
