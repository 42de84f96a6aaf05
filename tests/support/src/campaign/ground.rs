//! Where a campaign takes place: the Redis of the locks, or the five of a quorum, the Redis of the protected records,
//! the workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::sync::RwLock;

use super::alone;
use super::deployment::Deployment;
use super::expiries::Expiries;
use super::fleet::Slot;
use super::{Campaign, Kind, Layout};
use crate::checker::{Breach, Report, Settings, Violation, ns};
use crate::history::{Nanos, Record, Recorder, Scope};
use crate::now_ns;
use crate::server::RedisServer;

/// How long the records' Redis may take on a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(30);

/// A fault of masters and replicas.
struct FailedOver {
    from: Nanos,
    until: Nanos,
    forgets: Forgets,
}

/// What a new master may lack of the old one's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forgets {
    Nothing,
    /// Releases: then locks that were given back are held again, until their leases end.
    Releases,
    /// Releases and grants.
    Everything,
}

pub(super) struct Ground {
    pub(super) layout: Layout,
    pub(super) servers: Vec<RedisServer>,
    /// Servers that belong together.
    pub(super) deployment: Option<Deployment>,
    /// Locked while these servers cannot be asked.
    pub(super) struck: RwLock<()>,
    failed_over: Mutex<Vec<FailedOver>>,
    pub(super) recorder: Recorder,
    pub(super) settings: Settings,
    pub(super) slots: Vec<Slot>,
    /// With Java: which leases ran out.
    pub(super) expiries: Option<Expiries>,
    pub(super) faults: Mutex<BTreeMap<String, u64>>,
    /// How often the server was slow, through a fault or by itself.
    pub(super) stalls: AtomicU64,
    /// The results of operations, by kind.
    pub(super) answers: Mutex<BTreeMap<String, u64>>,
    records: MultiplexedConnection,
    vault: RedisServer,
}

impl Ground {
    pub(super) async fn prepare(of: &Campaign) -> Self {
        let servers = of.layout.servers();
        let deployment = Deployment::start(of.layout).await;
        let vault = RedisServer::start();
        for server in servers.iter().chain([&vault]) {
            server.ready().await;
        }
        of.layout.may_vote().await;
        let recorder = Recorder::new();
        let where_to = (servers.as_slice(), deployment.as_ref(), of.layout);
        let mut slots = Vec::new();
        for (index, kind) in of.workers.iter().enumerate() {
            slots.push(Slot::fill(index, *kind, where_to, &recorder).await);
        }
        let expiries = if of.workers.contains(&Kind::Java) {
            Some(Expiries::listen(&servers[0]).await)
        } else {
            None
        };
        let client = redis::Client::open(vault.url()).expect("the kit's own address");
        let patient = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let records = client.get_multiplexed_async_connection_with_config(&patient);
        let records = records.await;
        Self {
            layout: of.layout,
            servers,
            deployment,
            struck: RwLock::default(),
            failed_over: Mutex::default(),
            recorder,
            settings: of.settings(),
            slots,
            expiries,
            faults: Mutex::default(),
            stalls: AtomicU64::new(0),
            answers: Mutex::default(),
            records: records.expect("the records' Redis is left alone"),
            vault,
        }
    }

    /// The only server, or the first.
    pub(super) fn server(&self) -> &RedisServer {
        &self.servers[0]
    }

    /// All servers that have keys.
    pub(super) async fn masters(&self) -> Vec<&RedisServer> {
        match &self.deployment {
            Some(deployment) => deployment.masters().await,
            None => self.servers.iter().collect(),
        }
    }

    /// Notes a fault of masters and replicas.
    pub(super) fn failed_over(&self, kind: &str, (from, over): (Nanos, Nanos), forgets: Forgets) {
        self.count(kind);
        let until = match forgets {
            Forgets::Nothing => over,
            Forgets::Releases | Forgets::Everything => over + ns(self.layout.lease()),
        };
        self.recorder.push(Record::Fault {
            from,
            until,
            kind: kind.to_owned(),
            scope: Scope::All,
        });
        let fault = FailedOver {
            from,
            until,
            forgets,
        };
        self.failed_over.lock().push(fault);
    }

    /// The longest wait behind fail-overs. Takes two holders out of the report if a fail-over lost the hold of one of
    /// them.
    pub(super) fn judge(
        &self,
        records: &[Record],
        report: &mut Report,
    ) -> Option<(Duration, Vec<Violation>)> {
        self.deployment.as_ref()?;
        let faults = std::mem::take(&mut *self.failed_over.lock());
        let spans: Vec<_> = faults
            .iter()
            .map(|fault| (fault.from, fault.until))
            .collect();
        let waited = alone::check(records, &spans, self.settings.scheduling, report);
        let recovery = ns(self.settings.recovery + self.settings.scheduling);
        let explained = |violation: &mut Violation| {
            let mut losses = faults
                .iter()
                .filter(|fault| fault.forgets == Forgets::Everything);
            is_two_at_once(&violation.breach)
                && losses.any(|fault| {
                    let within = fault.from..fault.until + recovery;
                    let mut lines = violation.evidence.iter();
                    lines.any(|line| matches!(line, Record::Return { t, .. } if within.contains(t)))
                })
        };
        let both = report.violations.extract_if(.., explained).collect();
        Some((Duration::from_nanos(waited), both))
    }

    /// Writes the protected record of a name.
    pub(super) async fn write(&self, name: &str, op: u64) {
        let mut command = redis::cmd("SET");
        command.arg(name).arg(op);
        let written = command.query_async::<()>(&mut self.records.clone()).await;
        written.expect("the records' Redis is left alone");
    }

    /// Reads the protected record of a name; the largest number when there is none yet.
    pub(super) async fn read(&self, name: &str) -> u64 {
        let mut command = redis::cmd("GET");
        command.arg(name);
        let mut records = self.records.clone();
        let read = command.query_async::<Option<u64>>(&mut records).await;
        let read = read.expect("the records' Redis is left alone");
        read.unwrap_or(u64::MAX)
    }

    /// Records that something was disturbed from a moment until now, and `tail` longer.
    pub(super) fn fault(&self, kind: &str, from: Nanos, tail: Nanos, scope: Scope) {
        self.count(kind);
        self.disturbed(kind, from, tail, scope);
    }

    /// The same for a disturbance that is counted elsewhere.
    pub(super) fn disturbed(&self, kind: &str, from: Nanos, tail: Nanos, scope: Scope) {
        self.recorder.push(Record::Fault {
            from,
            until: now_ns() + tail,
            kind: kind.to_owned(),
            scope,
        });
    }

    /// Records that the server did not answer at once, or the machine stood still.
    pub(super) fn stalled(&self, from: Nanos, scope: Scope) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
        self.disturbed("stall", from, 0, scope);
    }

    pub(super) fn count(&self, kind: &str) {
        let mut faults = self.faults.lock();
        *faults.entry(kind.to_owned()).or_default() += 1;
    }

    pub(super) fn answer(&self, kind: &str) {
        let mut answers = self.answers.lock();
        *answers.entry(kind.to_owned()).or_default() += 1;
    }

    /// The numbers of all Java processes, and the beginnings of their fields.
    pub(super) fn java_clients(&self) -> Vec<(u32, String)> {
        let java = self.slots.iter().filter(|slot| slot.kind == Kind::Java);
        java.flat_map(Slot::clients).collect()
    }

    /// Notes panics of workers.
    pub(super) fn panicked(&self, lines: &[String]) {
        for line in lines {
            println!("a worker said: {line}");
            self.answer("panic");
        }
    }

    pub(super) fn end(&self) {
        for slot in &self.slots {
            self.panicked(&slot.worker().panics());
            slot.worker().worker.kill();
        }
        for server in self.servers.iter().chain([&self.vault]) {
            server.kill();
        }
        if let Some(deployment) = &self.deployment {
            deployment.kill();
        }
    }
}

/// Whether it says that two were certain to be the only holder.
fn is_two_at_once(breach: &Breach) -> bool {
    matches!(
        breach,
        Breach::Overlap { .. } | Breach::TornPair | Breach::NotNotified
    )
}
