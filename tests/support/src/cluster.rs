//! A private Redis Cluster for one test: masters and their replicas, on loopback.
//!
//! Every node starts with its `nodes.conf` written, so no node has to meet the others: three masters with a replica
//! each are ready within a second or two. A replica takes the place of a master that is gone for a second.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::Value;

use crate::port;
use crate::server::{RedisServer, ServerOptions};
use crate::tls::Certificates;
use crate::wait::eventually;

const SLOTS: u16 = 16_384;
const NODE_TIMEOUT_MS: &str = "1000";
const READY_DEADLINE: Duration = Duration::from_secs(30);
const TRIES: usize = 10;

/// Some nodes that form one cluster; they end when this is dropped.
///
/// ```no_run
/// # async fn example() {
/// use watchlock_support::cluster::RedisCluster;
///
/// let cluster = RedisCluster::start().await;
/// let owner = cluster.owner_of("name").await;
/// cluster.node(owner).cmd(&["SET", "name", "value"]).await;
/// let slot = cluster.slot_of("name").await;
/// cluster.move_slot(slot, (owner + 1) % 3).await;
/// # }
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
    masters: usize,
}

impl RedisCluster {
    /// Three masters with a replica each, in sync.
    pub async fn start() -> Self {
        Self::of(3, 1).await
    }

    /// Three masters without replicas.
    pub async fn masters() -> Self {
        Self::of(3, 0).await
    }

    /// `masters` masters with `replicas` replicas each. The masters are the first nodes.
    pub async fn of(masters: usize, replicas: usize) -> Self {
        Self::with(masters, replicas, |options| options).await
    }

    /// The same, with further settings for the nodes.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn with(
        masters: usize,
        replicas: usize,
        set: impl Fn(ServerOptions) -> ServerOptions,
    ) -> Self {
        Self::start_as(masters, replicas, &set, None).await
    }

    /// Nodes that speak TLS, also with each other, and ask clients for a certificate. They announce their TLS ports to
    /// clients that connect by TLS.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn encrypted(masters: usize, replicas: usize, certificates: &Certificates) -> Self {
        let set = |options: ServerOptions| options.config("tls-cluster", "yes");
        Self::start_as(masters, replicas, &set, Some(certificates)).await
    }

    async fn start_as(
        masters: usize,
        replicas: usize,
        set: &impl Fn(ServerOptions) -> ServerOptions,
        certificates: Option<&Certificates>,
    ) -> Self {
        for _ in 0..TRIES {
            let (options, ids) = plan(masters, replicas, set, certificates);
            match RedisServer::start_all(&options) {
                Ok(nodes) => {
                    let cluster = Self {
                        nodes,
                        ids,
                        masters,
                    };
                    cluster.ready().await;
                    return cluster;
                }
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("a node did not come up:\n{log}"),
            }
        }
        panic!("no free ports for a cluster after {TRIES} tries");
    }

    /// Waits until every running node says that the cluster is up, and every replica has its master's data.
    ///
    /// # Panics
    /// If that takes half a minute.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    pub async fn ready(&self) {
        for node in &self.nodes {
            eventually("the cluster is there", READY_DEADLINE, async || {
                is_there(node).await
            })
            .await;
            if node.info("replication", "role").await.as_deref() == Some("slave") {
                node.synced().await;
            }
        }
    }

    /// The address of its first node.
    #[must_use]
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    /// The addresses of all original masters.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let masters = self.nodes.iter().take(self.masters);
        masters.map(RedisServer::url).collect()
    }

    /// All nodes, the masters first.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The node with this index.
    #[must_use]
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// The first replica of a master.
    #[must_use]
    pub fn replica_of(&self, master: usize) -> &RedisServer {
        &self.nodes[self.masters + master]
    }

    /// The slot of a key.
    pub async fn slot_of(&self, key: &str) -> u16 {
        self.alive().query(&["CLUSTER", "KEYSLOT", key]).await
    }

    /// The index of the node that has a key, as a live node sees it.
    ///
    /// # Panics
    /// If none has it.
    pub async fn owner_of(&self, key: &str) -> usize {
        let slot = self.slot_of(key).await;
        self.owner(slot).await.expect("some node has the slot")
    }

    /// The node that has a key.
    pub async fn server_of(&self, key: &str) -> &RedisServer {
        self.node(self.owner_of(key).await)
    }

    /// The index of the node that has a slot, if one has. Masters learn of a move from the test, replicas hear of it
    /// later.
    pub async fn owner(&self, slot: u16) -> Option<usize> {
        let ranges = ranges(self.alive_master().await?).await;
        let covers = |range: &&(u16, u16, u16)| range.0 <= slot && slot <= range.1;
        let (_, _, port) = ranges.iter().find(covers)?;
        self.nodes.iter().position(|node| node.port() == *port)
    }

    /// Waits until all running nodes agree on who has which slots, and there are as many masters as at the start.
    ///
    /// # Panics
    /// If that takes half a minute.
    pub async fn settled(&self) {
        self.ready().await;
        eventually("the nodes agree", READY_DEADLINE, async || {
            let mut views = Vec::new();
            for node in self.nodes.iter().filter(|node| node.is_running()) {
                views.push(ranges(node).await);
            }
            let agree = views.windows(2).all(|two| two[0] == two[1]);
            agree && self.present_masters().await.len() == self.masters
        })
        .await;
    }

    /// Whether the node with this index says that it is a master.
    pub async fn is_master(&self, index: usize) -> bool {
        let role = self.nodes[index].info("replication", "role").await;
        role.as_deref() == Some("master")
    }

    /// The indices of the nodes that say that they are masters.
    pub async fn present_masters(&self) -> Vec<usize> {
        let mut masters = Vec::new();
        for index in 0..self.nodes.len() {
            if self.nodes[index].is_running() && self.is_master(index).await {
                masters.push(index);
            }
        }
        masters
    }

    /// A running node.
    fn alive(&self) -> &RedisServer {
        let mut nodes = self.nodes.iter();
        nodes.find(|node| node.is_running()).expect("a node runs")
    }

    /// A running master.
    async fn alive_master(&self) -> Option<&RedisServer> {
        for (index, node) in self.nodes.iter().enumerate() {
            if node.is_running() && self.is_master(index).await {
                return Some(node);
            }
        }
        None
    }

    /// The first part of moving a slot: both ends know that it migrates, and no key has moved.
    ///
    /// # Panics
    /// If no node has the slot.
    pub async fn begin_move(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await.expect("some node has the slot");
        let slot = slot.to_string();
        let begin = |state, id| ["CLUSTER", "SETSLOT", slot.as_str(), state, id];
        self.node(to)
            .cmd(&begin("IMPORTING", &self.ids[from]))
            .await;
        self.node(from)
            .cmd(&begin("MIGRATING", &self.ids[to]))
            .await;
    }

    /// The second part: its keys move.
    ///
    /// # Panics
    /// If no node has the slot.
    pub async fn move_keys(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await.expect("some node has the slot");
        let port = self.node(to).port().to_string();
        loop {
            let slot = slot.to_string();
            let some = ["CLUSTER", "GETKEYSINSLOT", &slot, "100"];
            let keys: Vec<String> = self.node(from).query(&some).await;
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            self.node(from).cmd(&migrate).await;
        }
    }

    /// Moves one key of a migrating slot.
    ///
    /// # Panics
    /// If its node refuses.
    pub async fn move_key(&self, key: &str, to: usize) {
        let port = self.node(to).port().to_string();
        let from = self.server_of(key).await;
        let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        from.cmd(&migrate).await;
    }

    /// The last part: every master learns the slot's new node, the new node first.
    pub async fn finish_move(&self, slot: u16, to: usize) {
        let slot = slot.to_string();
        let node = ["CLUSTER", "SETSLOT", slot.as_str(), "NODE", &self.ids[to]];
        self.node(to).cmd(&node).await;
        for (index, other) in self.nodes.iter().enumerate() {
            if index != to && other.is_running() {
                // A replica refuses it.
                let _ = other.try_cmd(&node).await;
            }
        }
    }

    /// Makes one node redirect requests for a slot to another, which knows nothing of that.
    pub async fn points_to(&self, node: usize, slot: u16, to: usize) {
        let slot = slot.to_string();
        let command = ["CLUSTER", "SETSLOT", slot.as_str(), "NODE", &self.ids[to]];
        self.node(node).cmd(&command).await;
    }

    /// Moves a slot to the node with this index, in one go.
    pub async fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to).await;
        self.move_keys(slot, to).await;
        self.finish_move(slot, to).await;
    }

    /// Whether its nodes move slots in one go, so that keys are never split between two nodes.
    pub async fn moves_at_once(&self) -> bool {
        let help: Vec<String> = self.alive().query(&["CLUSTER", "HELP"]).await;
        help.iter().any(|line| line.starts_with("MIGRATESLOTS"))
    }

    /// Moves a slot to the node with this index, all of it at once.
    ///
    /// # Panics
    /// If the nodes cannot do that, or it takes half a minute.
    pub async fn move_at_once(&self, slot: u16, to: usize) {
        let from = self.owner(slot).await.expect("some node has the slot");
        let number = slot.to_string();
        let id = self.ids[to].as_str();
        let migrate = [
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            &number,
            &number,
            "NODE",
            id,
        ];
        self.node(from).cmd(&migrate).await;
        eventually("the slot has moved", READY_DEADLINE, async || {
            self.owner(slot).await == Some(to)
        })
        .await;
    }

    /// Which of a first master and its replica is the master now, and which is the replica.
    pub async fn pair(&self, master: usize) -> (usize, usize) {
        let replica = self.masters + master;
        if self.is_master(replica).await {
            (replica, master)
        } else {
            (master, replica)
        }
    }

    /// Makes a replica take its master's place, by agreement.
    ///
    /// # Panics
    /// If that takes half a minute.
    pub async fn fail_over(&self, replica: usize) {
        let end = Instant::now() + READY_DEADLINE;
        while !self.is_master(replica).await {
            assert!(Instant::now() < end, "they agree");
            // The nodes give up an agreement that takes longer than five seconds.
            let _ = self.node(replica).try_cmd(&["CLUSTER", "FAILOVER"]).await;
            for _ in 0..60 {
                if !self.is_master(replica).await {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Waits until a replica has its master's place. On a busy machine the other masters may not agree for long that its
    /// master has failed; then it asks for their votes all the same.
    ///
    /// # Panics
    /// If that takes half a minute.
    pub async fn promoted(&self, replica: usize) {
        let (begun, forced) = (Instant::now(), AtomicBool::new(false));
        eventually("a replica is master", READY_DEADLINE, async || {
            if self.is_master(replica).await {
                return true;
            }
            // Once: each command begins anew.
            let late = begun.elapsed() > READY_DEADLINE / 2;
            if late && !forced.swap(true, Ordering::Relaxed) {
                let force = ["CLUSTER", "FAILOVER", "FORCE"];
                let _ = self.node(replica).try_cmd(&force).await;
            }
            false
        })
        .await;
    }

    /// Waits until a replica has the place of a dead or frozen master, and every other node says so.
    ///
    /// # Panics
    /// If that takes half a minute.
    pub async fn taken_over(&self, master: usize, replica: usize) {
        self.promoted(replica).await;
        let all = self.nodes.iter().enumerate();
        let others: Vec<_> = all.filter(|(index, _)| *index != master).collect();
        eventually("the others know", READY_DEADLINE, async || {
            let known = ranges(self.node(replica)).await;
            for (_, node) in &others {
                if !is_there(node).await || ranges(node).await != known {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// The same for the first replica of a master.
    ///
    /// # Panics
    /// If that takes half a minute.
    pub async fn replaced(&self, master: usize) {
        self.taken_over(master, self.masters + master).await;
    }

    /// The keys of all running masters, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            if node.info("replication", "role").await.as_deref() == Some("master") {
                keys.extend(node.keys().await);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Whether a node says that the cluster is up.
async fn is_there(node: &RedisServer) -> bool {
    let state = node.try_cmd(&["CLUSTER", "INFO"]).await;
    let state = state.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
    state.is_ok_and(|info| info.contains("cluster_state:ok"))
}

/// Who has which slots, as a node says: the first slot, the last, the master's port.
async fn ranges(node: &RedisServer) -> Vec<(u16, u16, u16)> {
    let number = |value: &Value| redis::from_redis_value_ref::<u16>(value).ok();
    let ranges: Vec<Vec<Value>> = node.query(&["CLUSTER", "SLOTS"]).await;
    let ranges = ranges.iter().filter_map(|range| match &range[2] {
        Value::Array(master) => Some((number(&range[0])?, number(&range[1])?, number(&master[1])?)),
        _ => None,
    });
    let mut ranges: Vec<_> = ranges.collect();
    ranges.sort_unstable();
    ranges
}

/// How each node is started, and its id.
fn plan(
    masters: usize,
    replicas: usize,
    set: &impl Fn(ServerOptions) -> ServerOptions,
    certificates: Option<&Certificates>,
) -> (Vec<ServerOptions>, Vec<String>) {
    let count = masters * (1 + replicas);
    let mut ports: Vec<u16> = Vec::new();
    // The second half of the ports is for TLS.
    while ports.len() < 2 * count {
        let port = port::draw_for_node();
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    let (ports, tls_ports) = ports.split_at(count);
    let announced = if certificates.is_some() {
        tls_ports
    } else {
        ports
    };
    let ids: Vec<_> = ports.iter().map(|_| id()).collect();
    let options = (0..count).map(|own| {
        let config = nodes_conf(own, masters, announced, &ids);
        let options = ServerOptions::default()
            .port(ports[own])
            .in_memory()
            .file("nodes.conf", config)
            .config("cluster-enabled", "yes")
            .config("cluster-node-timeout", NODE_TIMEOUT_MS)
            .config("cluster-replica-validity-factor", "0")
            .config("cluster-allow-replica-migration", "no")
            .config("repl-ping-replica-period", "1");
        let options = match certificates {
            Some(certificates) => options.tls(certificates, tls_ports[own]),
            None => options,
        };
        set(options)
    });
    (options.collect(), ids)
}

fn id() -> String {
    (0..40).map(|_| fastrand::digit(16)).collect()
}

/// Whether nodes announce shards to each other, by what `redis-server --version` prints: since 7.2.
fn knows_shards(version: &str) -> bool {
    let numbers = version.split("v=").nth(1).unwrap_or_default();
    let mut numbers = numbers
        .split('.')
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(7), Some(2))
}

/// What the node with the index `own` knows of all nodes.
fn nodes_conf(own: usize, masters: usize, ports: &[u16], ids: &[String]) -> String {
    let (mut text, shards) = (String::new(), knows_shards(&RedisServer::version()));
    for (index, (port, id)) in ports.iter().zip(ids).enumerate() {
        let master = index % masters;
        let myself = if index == own { "myself," } else { "" };
        let (role, of, slots) = if index < masters {
            let bound = |index: usize| usize::from(SLOTS) * index / masters;
            let slots = format!(" {}-{}", bound(index), bound(index + 1) - 1);
            ("master", "-", slots)
        } else {
            ("slave", ids[master].as_str(), String::new())
        };
        let (bus, epoch) = (port + port::BUS, master + 1);
        // A master and its replicas are a shard. Valkey crashes when a slot moves and it has no shard of its own.
        let shard = if shards {
            format!(",,shard-id={epoch:040x}")
        } else {
            String::new()
        };
        writeln!(
            text,
            "{id} 127.0.0.1:{port}@{bus}{shard} {myself}{role} {of} 0 0 {epoch} connected{slots}"
        )
        .expect("writing to a string");
    }
    writeln!(text, "vars currentEpoch {masters} lastVoteEpoch 0").expect("writing to a string");
    text
}
