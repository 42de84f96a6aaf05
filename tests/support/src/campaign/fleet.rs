//! The workers: a slot for each, which runs one process after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use super::deployment::Deployment;
use super::{Kind, Layout};
use crate::history::{LockKind, Nanos, Record, Recorder};
use crate::now_ns;
use crate::proxy::Proxy;
use crate::server::RedisServer;
use crate::worker::{Lost, Worker};

static NEXT_CLIENT: AtomicU32 = AtomicU32::new(1);

/// One process, from its start to its kill.
pub(super) struct Incarnation {
    pub(super) kind: Kind,
    pub(super) client: u32,
    pub(super) worker: Worker,
    /// The beginning of its fields in Redis.
    pub(super) id: String,
    recorder: Recorder,
    /// How many holds were reported to each owner as lost, by kind and name.
    lost: Mutex<HashMap<(u32, LockKind, String), u64>>,
    /// How many permits of a semaphore an owner asked for last.
    permits: Mutex<HashMap<(u32, String), LockKind>>,
}

impl Incarnation {
    /// A process that talks to Redis whenever that is possible.
    async fn start(kind: Kind, opening: &Value, recorder: &Recorder) -> Arc<Self> {
        let worker = match kind {
            Kind::Rust => Worker::rust(),
            Kind::Plain(flaw) => Worker::plain(flaw),
            Kind::Java => Worker::java_alone().expect("the Java worker can be built"),
        };
        let mut patience = 600;
        let id = loop {
            match worker.call("open", opening.clone()).await {
                Ok(result) => break result["client_id"].as_str().unwrap_or_default().to_owned(),
                Err(error) => {
                    patience -= 1;
                    let log = worker.log();
                    assert!(patience > 0, "the worker cannot connect: {error}\n{log}");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        Arc::new(Self {
            kind,
            client: NEXT_CLIENT.fetch_add(1, Ordering::Relaxed),
            worker,
            id,
            recorder: recorder.clone(),
            lost: Mutex::default(),
            permits: Mutex::default(),
        })
    }

    /// Records the signals that came since the last call.
    pub(super) fn collect(&self) {
        let mut lost = self.lost.lock();
        for event in self.worker.new_events() {
            let Some(event) = Lost::from_event(&event) else {
                continue;
            };
            let owner = event.owner.parse().unwrap_or(u32::MAX);
            let kind = match &*event.kind {
                "semaphore" | "permit" => {
                    let asked = self.permits.lock();
                    asked.get(&(owner, event.name.clone())).copied()
                }
                word => LockKind::of(word),
            };
            let kind = kind.unwrap_or_default();
            *lost.entry((owner, kind, event.name.clone())).or_default() += 1;
            self.recorder.push(Record::Lost {
                t: event.t,
                client: self.client,
                owner,
                kind,
                name: event.name,
                reason: event.reason,
            });
        }
    }

    /// An owner asks for a lock.
    pub(super) fn asks(&self, owner: u32, kind: LockKind, name: &str) {
        if kind.is_counted() {
            self.permits.lock().insert((owner, name.to_owned()), kind);
        }
    }

    /// The lines in which it reported a panic.
    pub(super) fn panics(&self) -> Vec<String> {
        let log = self.worker.log();
        let panics = log.lines().filter(|line| line.contains("panicked at"));
        panics.map(str::to_owned).collect()
    }

    /// How often an owner was notified that it lost a name.
    pub(super) fn times_lost(&self, owner: u32, kind: LockKind, name: &str) -> u64 {
        self.collect();
        let lost = self.lost.lock();
        lost.get(&(owner, kind, name.to_owned()))
            .copied()
            .unwrap_or(0)
    }
}

/// The path of one worker to one server.
pub(super) struct Link {
    pub(super) proxy: Proxy,
    /// Whether each of its round trips takes long.
    pub(super) far: AtomicBool,
    /// Since when connections may be deaf.
    pub(super) deaf_since: Mutex<Option<Nanos>>,
}

impl Link {
    fn to(server: &RedisServer) -> Self {
        Self {
            proxy: Proxy::to(server),
            far: AtomicBool::new(false),
            deaf_since: Mutex::new(None),
        }
    }

    /// Connections may be deaf from a moment on, until they are reset.
    pub(super) fn deafened(&self, from: Nanos) {
        self.deaf_since.lock().get_or_insert(from);
    }
}

pub(super) struct Slot {
    pub(super) index: usize,
    pub(super) kind: Kind,
    /// The path to each server, if the servers do not belong together.
    pub(super) links: Vec<Link>,
    /// The fields of the request that opens a worker.
    opening: Value,
    current: RwLock<Arc<Incarnation>>,
    /// The numbers of all processes of this slot, and the beginnings of their fields.
    clients: Mutex<Vec<(u32, String)>>,
}

impl Slot {
    pub(super) async fn fill(
        index: usize,
        kind: Kind,
        (servers, deployment, layout): (&[RedisServer], Option<&Deployment>, Layout),
        recorder: &Recorder,
    ) -> Self {
        let links: Vec<_> = servers.iter().map(Link::to).collect();
        let opening = if let Some(deployment) = deployment {
            deployment.opening(layout.lease())
        } else {
            let urls: Vec<_> = links.iter().map(|link| link.proxy.url()).collect();
            layout.opening(&urls)
        };
        let first = Incarnation::start(kind, &opening, recorder).await;
        Self {
            index,
            kind,
            links,
            opening,
            clients: Mutex::new(vec![(first.client, first.id.clone())]),
            current: RwLock::new(first),
        }
    }

    /// The only path, or the first.
    pub(super) fn link(&self) -> &Link {
        &self.links[0]
    }

    pub(super) fn clients(&self) -> Vec<(u32, String)> {
        self.clients.lock().clone()
    }

    pub(super) fn worker(&self) -> Arc<Incarnation> {
        Arc::clone(&self.current.read())
    }

    /// Kills the worker and starts another in its place; returns what the old one reported of panics.
    pub(super) async fn replace(&self) -> Vec<String> {
        let old = self.worker();
        old.recorder.push(Record::Killed {
            t: now_ns(),
            client: old.client,
        });
        old.worker.kill();
        old.collect();
        let next = Incarnation::start(self.kind, &self.opening, &old.recorder).await;
        self.clients.lock().push((next.client, next.id.clone()));
        *self.current.write() = next;
        old.panics()
    }
}
