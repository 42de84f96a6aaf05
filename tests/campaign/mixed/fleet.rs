//! The processes: a place for each, and in it one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde_json::json;
use watchlock_support::eventually;
use watchlock_support::history::{Record, Recorder};
use watchlock_support::now_ns;
use watchlock_support::server::RedisServer;
use watchlock_support::worker::{Lost, Worker};

use super::{Kind, WATCHDOG_LEASE, build};

static NEXT_CLIENT: AtomicU32 = AtomicU32::new(1);

/// One process, from its start to its kill.
pub(super) struct Process {
    pub(super) kind: Kind,
    pub(super) client: u32,
    pub(super) worker: Worker,
    recorder: Recorder,
    /// How often each owner was told that it lost a name.
    lost: Mutex<HashMap<(u32, String), u64>>,
}

impl Process {
    async fn start(kind: Kind, redisson: &str, url: &str, recorder: &Recorder) -> Arc<Self> {
        let worker = match kind {
            Kind::Java => Worker::spawn(&[build::SCRIPT, redisson]),
            Kind::Rust => Worker::rust(),
        };
        let watchdog_ms = u64::try_from(WATCHDOG_LEASE.as_millis()).expect("a short lease");
        let fields = json!({ "url": url, "watchdog_ms": watchdog_ms });
        eventually("the worker connects", Duration::from_secs(30), async || {
            worker.call("open", fields.clone()).await.is_ok()
        })
        .await;
        Arc::new(Self {
            kind,
            client: NEXT_CLIENT.fetch_add(1, Ordering::Relaxed),
            worker,
            recorder: recorder.clone(),
            lost: Mutex::default(),
        })
    }

    /// Records the signals that came since.
    pub(super) fn collect(&self) {
        let mut lost = self.lost.lock();
        for event in self.worker.new_events() {
            let Some(event) = Lost::from_event(&event) else {
                continue;
            };
            let owner = event.owner.parse().expect("owners are numbers");
            *lost.entry((owner, event.name.clone())).or_default() += 1;
            self.recorder.push(Record::Lost {
                t: event.t,
                client: self.client,
                owner,
                name: event.name,
                reason: event.reason,
            });
        }
    }

    pub(super) fn times_lost(&self, owner: u32, name: &str) -> u64 {
        self.collect();
        let lost = self.lost.lock();
        lost.get(&(owner, name.to_owned())).copied().unwrap_or(0)
    }
}

pub(super) struct Slot {
    pub(super) kind: Kind,
    redisson: String,
    url: String,
    current: RwLock<Arc<Process>>,
    clients: Mutex<Vec<u32>>,
}

impl Slot {
    pub(super) async fn fill(
        kind: Kind,
        redisson: &str,
        server: &RedisServer,
        recorder: &Recorder,
    ) -> Self {
        let url = server.url();
        let first = Process::start(kind, redisson, &url, recorder).await;
        Self {
            kind,
            redisson: redisson.to_owned(),
            url,
            clients: Mutex::new(vec![first.client]),
            current: RwLock::new(first),
        }
    }

    pub(super) fn process(&self) -> Arc<Process> {
        Arc::clone(&self.current.read())
    }

    /// The numbers of all processes that were here.
    pub(super) fn clients(&self) -> Vec<u32> {
        self.clients.lock().clone()
    }

    /// Kills the process and starts another in its place.
    pub(super) async fn replace(&self) {
        let old = self.process();
        let (t, client) = (now_ns(), old.client);
        old.recorder.push(Record::Killed { t, client });
        old.worker.kill();
        old.collect();
        let next = Process::start(self.kind, &self.redisson, &self.url, &old.recorder).await;
        self.clients.lock().push(next.client);
        *self.current.write() = next;
    }
}
