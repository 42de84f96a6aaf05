//! The ACL that the documents ask users to grant: enough for everything, and each right is there for a reason.

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tracing_subscriber::fmt::MakeWriter;
use watchlock::{Client, Error, Lease, LockGuard};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

const LONG: Duration = Duration::from_secs(30);
/// The wait for a step that is allowed or refused, on a busy machine; shorter than `unavailable_after`.
const PROMPT: Duration = Duration::from_secs(20);
/// The watchdog's lease of the clients under test.
const LEASE: Duration = Duration::from_millis(900);
const PASSWORD: &str = "secret";

/// The rights of the line in docs/acl.md, without the user's name and password.
pub(crate) fn documented_rights() -> Vec<&'static str> {
    let document = include_str!("../../docs/acl.md");
    let line = document
        .lines()
        .find(|line| line.starts_with("ACL SETUSER "))
        .expect("the document shows an ACL");
    let rights: Vec<_> = line.split_whitespace().skip(5).collect();
    assert!(rights.iter().all(|right| !right.contains('>')), "{line}");
    rights
}

/// The commands that the document allows.
fn documented_commands() -> Vec<&'static str> {
    let rights = documented_rights().into_iter();
    rights.filter_map(|right| right.strip_prefix('+')).collect()
}

/// A server with an all-powerful client, and users with the documented rights.
struct Scene {
    server: RedisServer,
    operator: Client,
}

impl Scene {
    async fn new() -> Self {
        let server = RedisServer::start();
        let operator = Client::builder(&server.url()).key_prefix("app:");
        let operator = operator.connect().await.expect("an operator");
        Self { server, operator }
    }

    /// A client of a user that has the documented rights without `missing`.
    async fn client_without(&self, missing: &str) -> Client {
        let user = format!("without-{missing}");
        let password = format!(">{PASSWORD}");
        let mut command = vec!["ACL", "SETUSER", &user, "on", &password];
        let less = format!("-{missing}");
        command.extend(documented_rights());
        if !missing.is_empty() {
            command.push(&less);
        }
        self.server.cmd(&command).await;
        let url = format!(
            "redis://{user}:{PASSWORD}@127.0.0.1:{}/",
            self.server.port()
        );
        let builder = Client::builder(&url).key_prefix("app:");
        let builder = builder.watchdog_lease(LEASE).unavailable_after(LONG * 2);
        let client = builder.connect().await;
        client.expect("the user may connect")
    }

    /// No key of these locks is without a lease, whatever was refused.
    async fn assert_leases(&self, names: &str) {
        let prefix = format!("app:{names}-");
        for key in self.server.keys().await {
            let ttl = self.server.pttl(&key).await;
            assert!(!key.starts_with(&prefix) || ttl != -1, "{key} has no TTL");
        }
    }

    async fn subscribed(&self, name: &str) {
        let channel = format!("redisson_lock__channel:{{app:{name}}}");
        eventually("somebody listens", LONG, async || {
            self.server.subscribers(&channel).await > 0
        })
        .await;
    }
}

/// One thing that users do with a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    LockAndUnlock,
    Reenter,
    TryWhileBusy,
    Wait,
    BeRenewed,
    ForceUnlock,
    IsLocked,
    TimeToLive,
}

const STEPS: [Step; 8] = [
    Step::LockAndUnlock,
    Step::Reenter,
    Step::TryWhileBusy,
    Step::Wait,
    Step::BeRenewed,
    Step::ForceUnlock,
    Step::IsLocked,
    Step::TimeToLive,
];

/// Which parts of it are refused without a command. All others work.
fn refused(missing: &str) -> &'static [Step] {
    use Step::{
        BeRenewed, ForceUnlock, IsLocked, LockAndUnlock, Reenter, TimeToLive, TryWhileBusy, Wait,
    };
    match missing {
        "evalsha" => &[
            LockAndUnlock,
            Reenter,
            TryWhileBusy,
            Wait,
            BeRenewed,
            ForceUnlock,
        ],
        "pttl" => &[
            LockAndUnlock,
            Reenter,
            TryWhileBusy,
            Wait,
            BeRenewed,
            IsLocked,
            TimeToLive,
        ],
        "hset" | "pexpire" | "hdel" => &[LockAndUnlock, Reenter, Wait, BeRenewed],
        "hlen" | "hgetall" => &[TryWhileBusy, Wait, ForceUnlock],
        "hexists" => &[Reenter, BeRenewed],
        "del" => &[ForceUnlock],
        _ => &[],
    }
}

/// One step on a lock of its own.
async fn walk(scene: &Scene, client: &Client, step: Step, name: &str) -> Result<(), Error> {
    let lock = client.get_lock(name);
    match step {
        Step::LockAndUnlock => lock.lock().await?.unlock().await,
        Step::Reenter => {
            let outer = lock.lock().await?;
            let inner = outer.reenter(Lease::Watchdog).await?;
            inner.verify().await?;
            inner.unlock().await?;
            outer.unlock().await
        }
        Step::TryWhileBusy => {
            let held = hold(scene, name).await;
            let busy = lock.try_lock(Duration::ZERO, Lease::Watchdog).await?;
            assert!(busy.is_none());
            held.unlock().await
        }
        Step::Wait => wait(scene, client, name).await,
        Step::BeRenewed => {
            let guard = lock.lock().await?;
            let over = tokio::time::timeout(LEASE * 2, guard.lost()).await;
            assert_eq!(over.is_err(), guard.is_valid());
            guard.unlock().await
        }
        Step::ForceUnlock => {
            let held = hold(scene, name).await;
            let forced = lock.force_unlock().await;
            assert_eq!(held.unlock().await.is_ok(), forced.is_err());
            assert!(forced?);
            Ok(())
        }
        Step::IsLocked => lock.is_locked().await.map(|locked| assert!(!locked)),
        Step::TimeToLive => lock.remain_time_to_live().await.map(drop),
    }
}

async fn hold(scene: &Scene, name: &str) -> LockGuard {
    let lock = scene.operator.get_lock(name);
    lock.lock_with_lease(LONG).await.expect("the operator may")
}

/// Waits behind another client until that gives the lock back.
async fn wait(scene: &Scene, client: &Client, name: &str) -> Result<(), Error> {
    let held = hold(scene, name).await;
    let lock = client.get_lock(name);
    let mut waiting = Box::pin(lock.try_lock(LONG, Lease::Watchdog));
    assert!((&mut waiting).now_or_never().is_none(), "it is asked");
    // On the same connection, behind the try: whatever the answer to this, the try ran before.
    let _ = lock.is_locked().await;
    held.unlock().await?;
    let guard = waiting.await?;
    guard.expect("free before the wait ends").unlock().await
}

/// Takes all steps without a right, and compares what is refused with what should be.
async fn life_without(scene: &Scene, missing: &str) {
    let client = scene.client_without(missing).await;
    for step in STEPS {
        let name = format!("{missing}-{step:?}");
        // What is refused is not tried again and again.
        let walked = tokio::time::timeout(PROMPT, walk(scene, &client, step, &name)).await;
        let result = walked.unwrap_or_else(|_| panic!("without {missing}, {step:?} hangs"));
        let expected = refused(missing).contains(&step);
        assert_eq!(
            result.is_err(),
            expected,
            "without {missing}, {step:?}: {result:?}"
        );
        let lost = step == Step::BeRenewed && matches!(result, Err(Error::Lost { .. }));
        let denied = matches!(result, Err(Error::Denied { .. }));
        assert!(
            !expected || denied || lost,
            "without {missing}, {step:?}: {result:?}"
        );
        scene.assert_leases(missing).await;
    }
}

#[tokio::test]
async fn the_documented_acl_is_enough() {
    let warnings = warnings();
    let scene = Scene::new().await;
    let client = scene.client_without("").await;
    for step in STEPS {
        let name = format!("enough-{step:?}");
        let result = walk(&scene, &client, step, &name).await;
        assert!(result.is_ok(), "{step:?}: {result:?}");
        scene.assert_leases("enough").await;
    }
    assert_eq!(warnings.of("enough-"), Vec::<String>::new());
}

#[tokio::test]
async fn a_waiter_with_the_documented_acl_listens() {
    let scene = Scene::new().await;
    let client = scene.client_without("").await;
    let held = hold(&scene, "listen").await;
    let lock = client.get_lock("listen");
    let waiting = tokio::spawn(async move { lock.lock().await });
    scene.subscribed("listen").await;
    held.unlock().await.unwrap();
    let guard = tokio::time::timeout(LONG, waiting).await.unwrap();
    guard.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn each_missing_command_is_reported_and_leaves_no_key_without_a_lease() {
    let scene = Arc::new(Scene::new().await);
    let mut lives = tokio::task::JoinSet::new();
    // Without `eval` it depends on whether the server knows the scripts; another test covers that.
    for missing in documented_commands().into_iter().filter(|c| *c != "eval") {
        let scene = Arc::clone(&scene);
        lives.spawn(async move { life_without(&scene, missing).await });
    }
    assert!(lives.len() >= 13, "the commands were found");
    while let Some(life) = lives.join_next().await {
        life.expect("a life");
    }
}

#[tokio::test]
async fn without_eval_a_server_that_lacks_the_scripts_denies() {
    let scene = Scene::new().await;
    let client = scene.client_without("eval").await;
    let lock = client.get_lock("no-eval");
    let denied = lock.lock().await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    assert!(scene.server.keys().await.is_empty());

    // A client with the right has loaded them; from then on the digests work.
    for _ in 0..2 {
        walk(&scene, &scene.operator, Step::LockAndUnlock, "loads")
            .await
            .unwrap();
    }
    lock.lock().await.unwrap().unlock().await.unwrap();
}

#[tokio::test]
async fn a_denied_subscription_is_one_warning_and_polls() {
    let warnings = warnings();
    let scene = Scene::new().await;
    let client = scene.client_without("subscribe").await;
    for round in 0..3 {
        let held = hold(&scene, &format!("polled-{round}")).await;
        let lock = client.get_lock(&format!("polled-{round}"));
        let waiting = tokio::spawn(async move { lock.lock().await });
        if round == 0 {
            eventually("the warning", LONG, async || {
                !warnings.of("polled-").is_empty()
            })
            .await;
        }
        held.unlock().await.unwrap();
        waiting.await.unwrap().unwrap().unlock().await.unwrap();
    }
    let logged = warnings.of("polled-");
    assert_eq!(logged.len(), 1, "{logged:?}");
    assert!(
        logged[0].contains("waiters poll until it works"),
        "{logged:?}"
    );
}

#[tokio::test]
async fn a_denied_wake_up_is_one_warning() {
    let warnings = warnings();
    let scene = Scene::new().await;
    for missing in ["publish", "@pubsub"] {
        let client = scene.client_without(missing).await;
        for round in 0..3 {
            let lock = client.get_lock(&format!("unheard-{missing}-{round}"));
            lock.lock().await.unwrap().unlock().await.unwrap();
        }
        let logged = warnings.of(&format!("unheard-{missing}-"));
        assert_eq!(logged.len(), 1, "{logged:?}");
        assert!(logged[0].contains("allow the channel"), "{logged:?}");
    }
}

#[tokio::test]
async fn keys_and_channels_of_others_are_out_of_reach() {
    let scene = Scene::new().await;
    scene.client_without("").await;
    let user = "without-";
    let url = format!(
        "redis://{user}:{PASSWORD}@127.0.0.1:{}/",
        scene.server.port()
    );
    let stranger = Client::builder(&url)
        .key_prefix("other:")
        .connect()
        .await
        .unwrap();
    let denied = stranger.get_lock("x").lock().await;
    assert!(matches!(denied, Err(Error::Denied { .. })), "{denied:?}");
    assert!(scene.server.keys().await.is_empty());
}

/// What was logged at `WARN` in this program, a line each.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Warnings {
    /// Those of locks whose name begins with this.
    fn of(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock()).into_owned();
        let name = format!("name=\"{name}");
        let lines = text.lines().filter(|line| line.contains(&name));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Warnings {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Warnings {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// The one log of this program's tests.
fn warnings() -> Warnings {
    static WARNINGS: LazyLock<Warnings> = LazyLock::new(|| {
        let warnings = Warnings::default();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(warnings.clone())
            .init();
        warnings
    });
    WARNINGS.clone()
}
