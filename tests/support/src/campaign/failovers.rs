//! The faults of masters and their replicas: one at a time, each to its end.
//!
//! | fault | what is lost without acknowledgements |
//! |---|---|
//! | the master is killed, or frozen and woken after its replica took its place | what the replica had not received |
//! | it is killed after its replication was cut for a while | everything since the cut |
//! | the replica takes over by command | in a cluster, where they agree, nothing |
//! | a slot moves to another master and back; scripts are flushed; a sentinel is down | nothing |
//!
//! If the only replica acknowledges, none of these loses anything that was granted. A release may be lost in either
//! case, since it waits for no replica. Then the lock is held again until its lease ends, by nobody.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use super::deployment::{Deployment, Servers, Watched};
use super::ground::{Forgets, Ground};
use super::weather::Watch;
use crate::cluster::RedisCluster;
use crate::eventually;
use crate::history::Nanos;
use crate::now_ns;
use crate::server::RedisServer;

/// How long replication is cut, or a sentinel is down: long enough for many grants.
const AWAY: Duration = Duration::from_millis(1_500);
/// How long a woken master may still act as one before it becomes a replica; the sentinels take up to ten seconds.
const AWAKE: Duration = Duration::from_secs(1);
const DEADLINE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    CutAndKill,
    Kill,
    Freeze,
    Command,
    Cut,
    Move,
    FlushScripts,
    Sentinel,
}

/// The first fault certainly loses something.
const IN_A_CLUSTER: [Strike; 6] = [
    Strike::CutAndKill,
    Strike::Move,
    Strike::FlushScripts,
    Strike::Kill,
    Strike::Command,
    Strike::Freeze,
];
const BY_SENTINELS: [Strike; 7] = [
    Strike::CutAndKill,
    Strike::FlushScripts,
    Strike::Freeze,
    Strike::Sentinel,
    Strike::Kill,
    Strike::Cut,
    Strike::Command,
];

impl Strike {
    fn name(self) -> &'static str {
        match self {
            Self::CutAndKill => "cut off, kill master",
            Self::Kill => "kill master",
            Self::Freeze => "freeze, wake master",
            Self::Command => "fail-over by command",
            Self::Cut => "cut off the replica",
            Self::Move => "slot to and fro",
            Self::FlushScripts => "flush scripts",
            Self::Sentinel => "sentinel down",
        }
    }

    fn switches(self) -> bool {
        matches!(
            self,
            Self::CutAndKill | Self::Kill | Self::Freeze | Self::Command
        )
    }

    /// Whether the new master may lack writes of the old one.
    fn forgets(self, at: &Deployment) -> Forgets {
        let switches = match at.servers {
            // There they agree first.
            Servers::Cluster(_) => self.switches() && self != Self::Command,
            Servers::Watched(_) => self.switches(),
        };
        match at.acknowledged {
            _ if !switches => Forgets::Nothing,
            true => Forgets::Releases,
            false => Forgets::Everything,
        }
    }
}

/// Draws everything here, so that the draws do not depend on what happens.
struct Chance {
    /// A master, or a sentinel.
    which: usize,
    name: String,
    step: usize,
    half_way: Duration,
}

impl Chance {
    fn draw(rng: &mut Rng, names: u32) -> Self {
        Self {
            which: rng.usize(..3),
            name: format!("chaos:{}", rng.u32(..names)),
            step: rng.usize(1..3),
            half_way: Duration::from_millis(rng.u64(..300)),
        }
    }
}

/// Every fault once, then all again in another order.
pub(super) async fn run(ground: Arc<Ground>, seed: u64, names: u32, mut weather: Watch) {
    let mut rng = Rng::with_seed(seed);
    let Some(deployment) = &ground.deployment else {
        return;
    };
    let mut strikes = match deployment.servers {
        Servers::Cluster(_) => IN_A_CLUSTER.to_vec(),
        Servers::Watched(_) => BY_SENTINELS.to_vec(),
    };
    let mut next = 0;
    while weather.storm().await {
        while weather.is_storm() {
            if next == strikes.len() {
                rng.shuffle(&mut strikes);
                next = 0;
            }
            let chance = Chance::draw(&mut rng, names);
            inflict(&ground, deployment, strikes[next], &chance).await;
            next += 1;
            weather.sleep_in_storm(PAUSE).await;
        }
    }
}

async fn inflict(ground: &Ground, deployment: &Deployment, strike: Strike, chance: &Chance) {
    let _struck = ground.struck.write().await;
    let from = now_ns();
    let mut over = match &deployment.servers {
        Servers::Cluster(cluster) => in_cluster(cluster, strike, chance).await,
        Servers::Watched(watched) => by_sentinels(watched, strike, chance).await,
    };
    if deployment.acknowledged {
        // Nothing is granted until there is a replica again.
        over = now_ns();
    }
    ground.failed_over(strike.name(), (from, over), strike.forgets(deployment));
}

/// When it was over for clients: before the old master is a replica.
async fn in_cluster(cluster: &RedisCluster, strike: Strike, chance: &Chance) -> Nanos {
    let (master, replica) = cluster.pair(chance.which).await;
    let (old, new) = (cluster.node(master), cluster.node(replica));
    match strike {
        Strike::CutAndKill => {
            new.cut_off_from(old).await;
            sleep(AWAY).await;
            old.kill();
        }
        Strike::Kill => old.kill(),
        Strike::Freeze => old.freeze(),
        Strike::Command => {
            cluster.fail_over(replica).await;
            cluster.settled().await;
            return now_ns();
        }
        Strike::Move => {
            to_and_fro(cluster, chance).await;
            return now_ns();
        }
        Strike::FlushScripts | Strike::Cut | Strike::Sentinel => {
            for master in cluster.present_masters().await {
                cluster.node(master).cmd(&["SCRIPT", "FLUSH"]).await;
            }
            return now_ns();
        }
    }
    cluster.taken_over(master, replica).await;
    let over = now_ns();
    new.let_in().await;
    if strike == Strike::Freeze {
        old.resume();
    } else {
        old.launch();
    }
    cluster.settled().await;
    over
}

async fn to_and_fro(cluster: &RedisCluster, chance: &Chance) {
    let slot = cluster.slot_of(&chance.name).await;
    let masters = cluster.present_masters().await;
    let from = cluster.owner(slot).await.expect("some node has the slot");
    let place = masters.iter().position(|master| *master == from);
    let place = place.expect("a master has the slot");
    for to in [masters[(place + chance.step) % masters.len()], from] {
        cluster.begin_move(slot, to).await;
        sleep(chance.half_way).await;
        cluster.move_keys(slot, to).await;
        cluster.finish_move(slot, to).await;
    }
    cluster.settled().await;
}

/// The same.
async fn by_sentinels(watched: &Watched, strike: Strike, chance: &Chance) -> Nanos {
    let (master, replica) = watched.pair();
    match strike {
        Strike::Cut => {
            replica.cut_off_from(master).await;
            sleep(AWAY).await;
            replica.let_in().await;
            replica.synced().await;
            master.acknowledged(1).await;
        }
        Strike::FlushScripts | Strike::Move => {
            master.cmd(&["SCRIPT", "FLUSH"]).await;
        }
        Strike::Sentinel => {
            let sentinel = &watched.servers.sentinels()[chance.which];
            sentinel.kill();
            sleep(AWAY).await;
            sentinel.restart();
            watched.servers.ready().await;
        }
        Strike::CutAndKill | Strike::Kill | Strike::Freeze | Strike::Command => {
            return switch(watched, strike).await;
        }
    }
    now_ns()
}

async fn switch(watched: &Watched, strike: Strike) -> Nanos {
    let (old, new) = watched.pair();
    let sentinels = watched.servers.sentinels();
    if strike == Strike::CutAndKill {
        new.cut_off_from(old).await;
        sleep(AWAY).await;
    }
    match strike {
        Strike::Freeze => old.freeze(),
        Strike::Command => {
            watched.servers.fail_over().await;
        }
        _ => old.kill(),
    }
    watched.servers.master_after(old, sentinels).await;
    let over = now_ns();
    new.let_in().await;
    watched.switched();
    match strike {
        Strike::Freeze => {
            old.resume();
            sleep(AWAKE).await;
        }
        Strike::Command => {}
        _ => {
            old.launch();
            old.ready().await;
        }
    }
    follow(old, new).await;
    watched.servers.ready().await;
    over
}

/// Makes the old master the new one's replica, as the sentinels would a while later. If the sentinels do it at the same
/// moment they end all connections, so the command may get no answer.
async fn follow(old: &RedisServer, new: &RedisServer) {
    let port = new.port().to_string();
    eventually("the old master follows the new one", DEADLINE, async || {
        let reply = old.try_cmd(&["REPLICAOF", "127.0.0.1", &port]).await;
        reply.is_ok()
    })
    .await;
    old.synced().await;
    new.acknowledged(1).await;
}
