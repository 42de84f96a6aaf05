//! One run: a world, its processes and their faults, from a seed to a verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use watchlock::__simulation as simulated;
use watchlock::{Client, Error, Lease, Quorum, ShutdownReport};
use watchlock_support::checker::{self, Settings};
use watchlock_support::history::{LockKind, Record};
use watchlock_test::core::{Reply, Store};

use crate::faults;
use crate::guard;
use crate::locks::{AnyClient, AnySemaphore};
use crate::owner::{Actor, Shared};
use crate::plan::{MOST_DRIFT, Plan};
use crate::process::{self, Host, Process};
use crate::story::Story;
use crate::world::World;

/// The longest time that a run simulates before it ends.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The longest lease that anybody takes.
const LONGEST_LEASE: Duration = Duration::from_secs(30);

/// How long a replica may take to acknowledge.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_millis(200);

/// How long all owners have to end once there are no more faults.
const TO_END: Duration = Duration::from_secs(600);

/// How many commands a section may take at a server, and all clients in a second: renewals, polls, new connections. Most runs
/// take a third of it.
const A_SECTION: u64 = 20;
const A_SECOND: u64 = 100;
/// How many more if there is a spin lock, whose waiters poll all the time.
const OF_SPIN_LOCKS: u64 = 50;

/// What came out of a run.
#[derive(Debug)]
pub struct Outcome {
    pub sections: usize,
    pub commands: u64,
    /// How many faults were drawn.
    pub faults: usize,
    /// Equal for runs in which the same commands reached the servers at the same times.
    pub trace: u64,
    pub simulated: Duration,
    pub violations: Vec<String>,
    pub records: Vec<Record>,
    pub lines: Vec<String>,
}

/// What is kept of the commands that reached the servers.
#[derive(Clone, Copy, Debug)]
pub enum Traced<'a> {
    /// A sum, which differs for runs with different commands.
    Sum,
    /// All of them, and what a command answers each time that its answer has changed.
    Lines { watched: Option<&'a str> },
}

/// Runs what a plan says.
///
/// # Panics
/// If the runtime cannot be made.
#[must_use]
pub fn run(plan: &Plan, traced: Traced<'_>) -> Outcome {
    guard::begins(plan.seed);
    fastrand::seed(plan.seed);
    let mut builder = Builder::new_current_thread();
    // Which of several waiters of a watch is woken first is drawn by tokio.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(
        &plan.seed.to_le_bytes(),
    ));
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let mut outcome = runtime.block_on(live(plan, traced));
    // What is dropped with the runtime belongs to the world, too.
    drop(runtime);
    simulated::end();
    guard::ends();
    if process::has_panicked() {
        let panicked = "a task of a process has panicked".to_owned();
        outcome.violations.push(panicked);
    }
    outcome
}

/// A process, its client, and its owners.
struct Member {
    process: Arc<Process>,
    number: u32,
    client: Option<AnyClient>,
    owners: Vec<JoinHandle<()>>,
}

/// The processes.
#[derive(Clone)]
pub struct Members {
    inner: Arc<Inner>,
}

struct Inner {
    plan: Arc<Plan>,
    world: World,
    story: Story,
    shared: Shared,
    over: Arc<AtomicBool>,
    members: Vec<Mutex<Option<Member>>>,
    next: AtomicU32,
    /// What was found besides the history.
    violations: Mutex<Vec<String>>,
}

impl Members {
    pub fn client(&self, process: usize) -> u32 {
        self.inner.members[process]
            .lock()
            .as_ref()
            .map_or(0, |member| member.number)
    }

    pub fn is_quorum(&self) -> bool {
        self.inner.plan.servers > 1
    }

    pub fn command_timeout(&self) -> Duration {
        self.inner.plan.command_timeout
    }

    /// How long a release that is undone keeps others out.
    pub fn longest_lease(&self) -> Duration {
        self.inner.plan.longest_lease()
    }

    pub fn freeze(&self, process: usize) {
        if let Some(member) = &*self.inner.members[process].lock() {
            member.process.freeze();
        }
    }

    pub fn thaw(&self, process: usize) {
        if let Some(member) = &*self.inner.members[process].lock() {
            member.process.thaw();
        }
    }

    /// Kills a process, and starts another one in its place.
    pub async fn replace(&self, index: usize) {
        if let Some(member) = self.inner.members[index].lock().take() {
            member.process.kill();
            for server in 0..self.inner.plan.servers {
                self.inner.world.cut(Some(index), server);
            }
            // Its memory is gone, and nothing of it runs any more.
            std::mem::forget(member.client);
        }
        self.start(index).await;
    }

    /// Ends a process in order, and starts another one in its place.
    pub async fn shut_down(&self, index: usize, within: Duration) {
        let member = self.inner.members[index].lock().take();
        if let Some(member) = member {
            let found = self.close(member, within).await;
            self.inner.violations.lock().extend(found);
        }
        self.start(index).await;
    }

    /// A client is shut down; its owners end with it. What it says was released is.
    async fn close(&self, mut member: Member, within: Duration) -> Vec<String> {
        let mut found = Vec::new();
        let client = member.client.take();
        let closing = member.process.run(async move {
            let client = client?;
            Some((client.id(), client.shutdown(within).await))
        });
        match timeout(Duration::from_secs(60), closing).await {
            Ok(Some((id, report))) => found.extend(self.kept(member.number, &id, &report)),
            Ok(None) => {}
            Err(_) => found.push(format!("client {} does not end", member.number)),
        }
        found.extend(ended(&mut member, TO_END).await);
        found
    }

    /// What is kept of a client that has ended, though it says that it is not. One server speaks for itself.
    fn kept(&self, client: u32, id: &str, report: &ShutdownReport) -> Option<String> {
        // A release waits for no replica, so one that took over may lack it until the lease ends.
        if self.is_quorum() || self.inner.world.has_failed_over(0, self.longest_lease()) {
            return None;
        }
        let left = self.inner.story.left_to_their_leases(client);
        let names = (0..self.inner.plan.names).map(|name| format!("name:{name}"));
        let kept: Vec<_> = self.inner.world.at(0, |store| {
            // The field of a reader is left with the lock while others read. Its timeout key says whether it lives.
            let lives = |store: &mut Store, name: &str, field: &str| {
                let reads = store.run(&[&b"HGET"[..], name.as_bytes(), b"mode"]);
                let timeout = format!("{{{name}}}:{field}:rwlock_timeout:1");
                texts(reads) != ["read"]
                    || store.run(&[&b"EXISTS"[..], timeout.as_bytes()]) == Reply::Integer(1)
            };
            let kept = |name: &String| {
                let holds = texts(store.run(&[&b"HKEYS"[..], name.as_bytes()]));
                let simple = texts(store.run(&[&b"GET"[..], name.as_bytes()]));
                let mut fields = holds.iter().chain(&simple);
                fields.any(|field| field.contains(id) && lives(store, name, field))
            };
            let open =
                names.filter(|name| !left.contains(name) && !report.unreleased.contains(name));
            open.filter(kept).collect()
        });
        (!kept.is_empty()).then(|| format!("client {client} has ended, and {kept:?} is kept"))
    }

    /// Releases a lock from a process, whoever holds it. Returns whether that is certain.
    pub async fn force_unlock(&self, index: usize, name: usize) -> bool {
        let found = self.inner.members[index].lock().as_ref().map(|member| {
            let client = member.client.clone();
            (Arc::clone(&member.process), client)
        });
        let Some((process, Some(client))) = found else {
            return false;
        };
        let plan = Arc::clone(&self.inner.plan);
        let forced = process.run(async move {
            let kind = plan.kinds[name];
            let semaphore = client.semaphore(&plan, name);
            match semaphore.filter(|_| kind.is_counted()) {
                Some(semaphore) => semaphore.delete().await,
                None => client.force_unlock(kind, &format!("name:{name}")).await,
            }
        });
        forced.await.is_ok()
    }

    async fn start(&self, index: usize) {
        let inner = &self.inner;
        let plan = &inner.plan;
        let number = inner.next.fetch_add(1, Ordering::Relaxed);
        let process = Process::new(index, plan.drifts[index]);
        let client = process.run(connected(Arc::clone(plan))).await;
        let mut owners = Vec::new();
        for owner in 0..plan.owners {
            let owner = u32::try_from(owner).unwrap_or(0);
            let seed = plan.seed ^ u64::from(number + 1) << 40 ^ u64::from(owner + 1) << 32;
            let actor = Actor {
                client: client.clone(),
                number,
                owner_number: owner,
                story: inner.story.clone(),
                plan: Arc::clone(plan),
                shared: Arc::clone(&inner.shared),
                rng: Rng::with_seed(seed),
                closed: AtomicBool::new(false),
            };
            let over = Arc::clone(&inner.over);
            let running = actor.run(move || over.load(Ordering::Relaxed));
            owners.push(tokio::spawn(process.run(running)));
        }
        let member = Member {
            process,
            number,
            client: Some(client),
            owners,
        };
        *inner.members[index].lock() = Some(member);
    }
}

/// A client. One of a quorum needs most servers to begin with.
async fn connected(plan: Arc<Plan>) -> AnyClient {
    if plan.servers == 1 {
        let builder = Client::builder("redis://server:1/")
            .watchdog_lease(plan.watchdog_lease)
            .command_timeout(plan.command_timeout);
        let builder = match plan.replica {
            Some(_) => builder.acknowledged_by(1, ACKNOWLEDGED_WITHIN),
            None => builder,
        };
        return AnyClient::One(builder.connect_lazy().expect("the settings are right"));
    }
    loop {
        let servers = (1..=plan.servers).map(|server| format!("redis://server:{server}/"));
        let builder = Quorum::builder(servers)
            .watchdog_lease(plan.watchdog_lease)
            .command_timeout(plan.command_timeout)
            .max_lease(LONGEST_LEASE);
        if let Ok(quorum) = builder.connect().await {
            return AnyClient::Quorum(quorum);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn live(plan: &Plan, traced: Traced<'_>) -> Outcome {
    let begun = Instant::now();
    let world = World::new(plan.servers, plan.seed);
    match traced {
        Traced::Sum => {}
        Traced::Lines { watched } => world.keep_trace(watched),
    }
    simulated::begin(Host::of(&world));
    tokio::spawn(world.clone().run());
    for (process, link) in plan.links.iter().enumerate() {
        for server in 0..plan.servers {
            world.set_link(process, server, *link);
        }
    }
    if let Some(lag) = plan.replica {
        world.replicate(0, lag);
    }
    if plan.servers > 1 {
        // A server that has just started has no vote.
        sleep(LONGEST_LEASE + Duration::from_secs(5)).await;
    }
    let story = Story::begin();
    let over = Arc::new(AtomicBool::new(false));
    let members = Members {
        inner: Arc::new(Inner {
            plan: Arc::new(plan.clone()),
            world: world.clone(),
            story: story.clone(),
            shared: Arc::new(Mutex::new(vec![u64::MAX; plan.names])),
            over: Arc::clone(&over),
            members: (0..plan.processes).map(|_| Mutex::default()).collect(),
            next: AtomicU32::new(0),
            violations: Mutex::default(),
        }),
    };
    for index in 0..plan.processes {
        members.start(index).await;
    }
    let is_over = {
        let (story, over, wanted) = (story.clone(), Arc::clone(&over), plan.sections);
        move || {
            if story.sections() >= wanted || begun.elapsed() >= LONGEST {
                over.store(true, Ordering::Relaxed);
            }
            over.load(Ordering::Relaxed)
        }
    };
    let disturbing = faults::run(
        world.clone(),
        story.clone(),
        members.clone(),
        plan.clone(),
        is_over.clone(),
    );
    let disturbing = tokio::spawn(disturbing);
    while !is_over() {
        let _ = timeout_at(begun + LONGEST, story.next_section()).await;
    }
    let mut violations = Vec::new();
    let faults = disturbing.await.unwrap_or_else(|error| {
        violations.push(format!("the faults ended: {error}"));
        0
    });
    end(&members, &mut violations).await;
    leftovers(&world, plan, &mut violations).await;
    let records = story.records();
    let settings = settings(plan);
    let report = checker::check(&records, &settings);
    violations.extend(report.violations.iter().map(ToString::to_string));
    let (commands, trace) = world.ran();
    let (sections, simulated) = (story.sections(), begun.elapsed());
    let a_second = A_SECOND + OF_SPIN_LOCKS * u64::from(plan.kinds.contains(&LockKind::Spin));
    // Behind what a replica must acknowledge there is a `WAIT`.
    let each = plan.servers as u64 * if plan.replica.is_some() { 2 } else { 1 };
    // A release wakes a waiter of each process.
    let a_section = A_SECTION.max(plan.processes as u64);
    let most = each * (a_section * sections as u64 + a_second * simulated.as_secs() + a_second);
    if commands > most {
        violations.push(format!("{commands} commands, {most} at most"));
    }
    Outcome {
        sections,
        commands,
        faults,
        trace,
        simulated,
        violations,
        records,
        lines: world.trace(),
    }
}

/// All owners end, and then all clients.
async fn end(members: &Members, violations: &mut Vec<String>) {
    let all: Vec<Member> = members
        .inner
        .members
        .iter()
        .filter_map(|member| member.lock().take())
        .collect();
    violations.append(&mut members.inner.violations.lock());
    let until = Instant::now() + TO_END;
    for mut member in all {
        let left = until.saturating_duration_since(Instant::now());
        violations.extend(ended(&mut member, left).await);
        violations.extend(members.close(member, Duration::from_secs(5)).await);
    }
}

/// The owners of a process end within this time.
async fn ended(member: &mut Member, within: Duration) -> Vec<String> {
    let until = Instant::now() + within;
    let mut found = Vec::new();
    let owners = &mut member.owners;
    while let Some(owner) = owners.last_mut() {
        let left = until.saturating_duration_since(Instant::now());
        let number = member.number;
        match timeout(left, owner).await {
            Ok(Ok(())) => drop(owners.pop()),
            Ok(Err(error)) => {
                found.push(format!("an owner of client {number} panicked: {error}"));
                owners.pop();
            }
            Err(_) => {
                found.push(format!("an owner of client {number} waits for ever"));
                break;
            }
        }
    }
    found
}

/// The place of a waiter that was killed stays in the queue of a fair lock until somebody comes by, and so do permits of dead
/// holders. Everybody else is gone, so whoever comes gets the lock, and all permits.
async fn visit(plan: &Plan, violations: &mut Vec<String>) {
    let names = plan.kinds.iter().enumerate();
    let kept = |kind: LockKind| kind == LockKind::Fair || kind.is_counted();
    let kept: Vec<usize> = names
        .filter_map(|(name, kind)| kept(*kind).then_some(name))
        .collect();
    if kept.is_empty() {
        return;
    }
    let plan = Arc::new(plan.clone());
    let visiting = Process::new(plan.processes, 0).run(async move {
        let client = connected(Arc::clone(&plan)).await;
        let mut kept_out = Vec::new();
        for name in kept {
            let called = format!("name:{name}");
            let lock = client.lock_of(plan.kinds[name], &called);
            let semaphore = client.semaphore(&plan, name);
            let (wait, lease) = (Duration::from_secs(1), Lease::Watchdog);
            let got = match semaphore.filter(|_| plan.kinds[name].is_counted()) {
                Some(semaphore) => all_permits(&semaphore, &plan).await,
                None => match lock.try_lock(wait, lease).await {
                    Ok(Some(guard)) => guard.unlock().await.map(|()| true),
                    Ok(None) => Ok(false),
                    Err(error) => Err(error),
                },
            };
            match got {
                Ok(true) => {}
                Ok(false) => kept_out.push(format!("nobody can get \"{called}\" any more")),
                Err(error) => kept_out.push(format!("the last visitor of \"{called}\": {error}")),
            }
        }
        client.shutdown(Duration::from_secs(5)).await;
        kept_out
    });
    match timeout(Duration::from_secs(60), visiting).await {
        Ok(kept_out) => violations.extend(kept_out),
        Err(_) => violations.push("the last visitor does not end".to_owned()),
    }
}

/// Takes all permits at once, and gives them back. Returns whether they are all there before and after.
async fn all_permits(semaphore: &AnySemaphore, plan: &Plan) -> Result<bool, Error> {
    let (wait, lease) = (Duration::from_secs(1), Lease::Watchdog);
    let Some(all) = semaphore.take(plan.permits, wait, lease).await? else {
        return Ok(false);
    };
    let none_left = semaphore.available_permits().await? == 0;
    all.release().await?;
    let all_left = semaphore.available_permits().await? == i64::from(plan.permits);
    Ok(none_left && all_left)
}

/// Nothing is left once everything has had time to end.
async fn leftovers(world: &World, plan: &Plan, violations: &mut Vec<String>) {
    sleep(plan.watchdog_lease + Duration::from_secs(90)).await;
    visit(plan, violations).await;
    for server in 0..plan.servers {
        let (mut left, channels) = world.at(server, |store| {
            let keys = texts(store.run(&[&b"KEYS"[..], b"*"]));
            (keys, texts(store.run(&[&b"PUBSUB"[..], b"CHANNELS"])))
        });
        // The counter of the tokens stays, and the number of a semaphore's permits.
        left.retain(|key| !key.contains("token") && !is_number(plan, key));
        if !left.is_empty() {
            violations.push(format!("keys are left on server {server}: {left:?}"));
        }
        if !channels.is_empty() {
            let open = world.open_connections();
            violations.push(format!(
                "subscriptions are left on server {server}: {channels:?}, and connections: {open:?}"
            ));
        }
    }
}

fn is_number(plan: &Plan, key: &str) -> bool {
    let mut kinds = plan.kinds.iter().enumerate();
    kinds.any(|(name, kind)| kind.is_counted() && key == format!("name:{name}"))
}

fn texts(reply: Reply) -> Vec<String> {
    match reply {
        Reply::Array(all) => all.into_iter().flat_map(texts).collect(),
        Reply::Bulk(bytes) => vec![String::from_utf8_lossy(&bytes).into_owned()],
        _ => Vec::new(),
    }
}

/// How long a client leaves a lock free that others want.
const LONGEST_GAP: Duration = Duration::from_millis(50);

fn settings(plan: &Plan) -> Settings {
    let furthest = plan
        .links
        .iter()
        .map(|link| link.up + link.down + 2 * link.jitter)
        .max();
    let round_trip = Duration::from_micros(furthest.unwrap_or(0));
    // What a replica must acknowledge is behind what it was sent before, and waits for the batch before it.
    let acknowledged = Duration::from_micros(6 * plan.replica.unwrap_or(0));
    Settings {
        watchdog_lease: plan.watchdog_lease,
        command_timeout: plan.command_timeout,
        backoff_cap: Duration::from_secs(1),
        scheduling: Duration::from_millis(10) + round_trip,
        // A note of a waiting writer is removed behind the batch that is under way.
        given_up: acknowledged / 3,
        clean_wake: Duration::from_millis(100) + 3 * (round_trip + acknowledged),
        recovery: Duration::from_secs(3) + 6 * (round_trip + acknowledged),
        cleanup: Duration::from_secs(1) + 3 * (round_trip + acknowledged),
        drift: MOST_DRIFT,
        has_far_clients: round_trip > LONGEST_GAP,
        permits: plan.permits,
        keeps_what_it_grants: plan.replica.is_some(),
        ..Settings::default()
    }
}
