//! A client process driven by JSON lines: what holds locks and is killed, frozen and cut off.
//!
//! A request is one line on the worker's standard input, `{"id":7,"op":"lock","owner":"a","name":"x",…}`; each is
//! answered by one line with the same `id`, in any order: `{"id":7,"ok":true,"t_inv":…,"t_ret":…,"result":{…}}` or
//! `{"id":7,"ok":false,"t_inv":…,"t_ret":…,"error":{"kind":…,"message":…}}`. Lines with `event` come unasked. Times
//! are nanoseconds of `CLOCK_MONOTONIC`, as from [`crate::now_ns`].
//!
//! A process with several clients knows whose a request is by the number in its `client`.
//!
//! The driver's own threads read and write, so it works from any runtime, and a frozen worker blocks nobody.

mod find;
mod ops;
mod others;
mod router;

use std::ffi::OsStr;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub use router::{Lost, Reply, WorkerError};

use crate::controls::Flaw;
use crate::process::{self, Leash};
use router::{Lines, Router};

/// A worker that answers later than this hangs; no call of a test takes half as long.
pub const SILENCE: Duration = Duration::from_secs(180);

/// A worker process; killed when dropped, or when the process that owns it dies.
///
/// ```no_run
/// # async fn example() {
/// use serde_json::json;
/// use watchlock_support::server::RedisServer;
/// use watchlock_support::worker::Worker;
///
/// let server = RedisServer::start();
/// let worker = Worker::rust();
/// worker.open(&server.url(), None).await.unwrap();
/// let call = json!({"owner": "a", "kind": "lock", "name": "x"});
/// let result = worker.call("lock", call).await.unwrap();
/// assert_eq!(result["count"], 1);
/// worker.kill();
/// # }
/// ```
#[derive(Debug)]
pub struct Worker {
    process: Arc<Process>,
    /// Its number among the clients of the process, unless it is the only one.
    client: Option<u64>,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    child: Mutex<Leashed>,
    lines: Mutex<Option<Lines>>,
    router: Arc<Router>,
    next_id: AtomicU64,
    /// Without a name: what is never dropped leaves no file.
    log: File,
}

#[derive(Debug)]
struct Leashed {
    child: Child,
    leash: Option<Leash>,
}

impl Worker {
    /// Starts the program `argv[0]` with the arguments behind it.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn<S: AsRef<OsStr>>(argv: &[S]) -> Self {
        Self {
            process: Arc::new(Process::spawn(argv)),
            client: None,
        }
    }

    /// Starts the Rust worker, `tests/worker/process`: the binary named by `WATCHLOCK_WORKER`, else the one built along
    /// with the running tests; if there is none, it builds one.
    ///
    /// # Panics
    /// If it cannot be found, built or started.
    #[must_use]
    pub fn rust() -> Self {
        Self::spawn(&[find::rust_worker()])
    }

    /// Starts the plain client of [`crate::controls`] as a worker, with a flaw or none.
    ///
    /// # Panics
    /// If it cannot be found, built or started.
    #[must_use]
    pub fn plain(flaw: Option<Flaw>) -> Self {
        let mut command = vec![find::plain_worker().as_os_str().to_owned()];
        command.extend(flaw.map(|flaw| format!("{flaw:?}").into()));
        Self::spawn(&command)
    }

    /// A client of the Java worker, `tests/interop`, on the Redisson that `INTEROP_REDISSON` names (4). All of them are in
    /// one process, which nobody kills, freezes or ends: a JVM takes long to start. `None`, with a message, if there is no
    /// JDK or Maven to build it.
    ///
    /// # Panics
    /// If it cannot be started; with `CI=true` also if it cannot be built.
    #[must_use]
    pub fn java() -> Option<Self> {
        static SHARED: LazyLock<Option<Arc<Process>>> = LazyLock::new(|| {
            let command = others::java_worker()?;
            Some(Arc::new(Process::spawn(command)))
        });
        static CLIENTS: AtomicU64 = AtomicU64::new(1);
        SHARED.as_ref().map(|process| Self {
            process: Arc::clone(process),
            client: Some(CLIENTS.fetch_add(1, Ordering::Relaxed)),
        })
    }

    /// The same in a process of its own.
    ///
    /// # Panics
    /// As [`Self::java`].
    #[must_use]
    pub fn java_alone() -> Option<Self> {
        others::java_worker().map(|command| Self::spawn(command))
    }

    /// Whether there is a Java worker. It is built, and not started.
    ///
    /// # Panics
    /// With `CI=true`, if it cannot be built.
    #[must_use]
    pub fn has_java() -> bool {
        others::java_worker().is_some()
    }

    /// Starts the worker on the real redsync, `tests/interop/redsync`. `None`, with a message, if there is no Go to
    /// build it.
    ///
    /// # Panics
    /// If it cannot be started; with `CI=true` also if it cannot be built.
    #[must_use]
    pub fn redsync() -> Option<Self> {
        others::redsync_worker().map(|command| Self::spawn(command))
    }

    /// Sends a request at once; the answer may be awaited later, or never. `fields` is an object, or null for none.
    ///
    /// # Panics
    /// If `fields` is neither.
    pub fn request(&self, op: &str, fields: Value) -> Call {
        let mut request = match fields {
            Value::Object(fields) => fields,
            Value::Null => serde_json::Map::new(),
            other => panic!("the fields of {op} are no object: {other}"),
        };
        let id = self.process.next_id.fetch_add(1, Ordering::Relaxed);
        request.insert("id".to_owned(), json!(id));
        request.insert("op".to_owned(), json!(op));
        if let Some(client) = self.client {
            request.insert("client".to_owned(), json!(client));
        }
        let answer = self.process.router.expect(id);
        self.send_line(&Value::Object(request).to_string());
        Call { id, answer }
    }

    /// Sends a request and awaits its answer.
    ///
    /// # Panics
    /// As [`Self::request`], and if there is no answer within [`SILENCE`].
    ///
    /// # Cancel safety
    /// The request is sent when first polled, and goes on without the future.
    pub async fn answer(&self, op: &str, fields: Value) -> Reply {
        let asked = fields.to_string();
        let answered = tokio::time::timeout(SILENCE, self.request(op, fields)).await;
        answered.unwrap_or_else(|_| panic!("no answer to {op} {asked} within {SILENCE:?}"))
    }

    /// Sends a request and awaits its result.
    ///
    /// # Errors
    /// What the worker answered, or kind `dead` if it ended before it answered.
    ///
    /// # Panics
    /// As [`Self::answer`].
    ///
    /// # Cancel safety
    /// The request is sent when first polled, and goes on without the future.
    pub async fn call(&self, op: &str, fields: Value) -> Result<Value, WorkerError> {
        self.answer(op, fields).await.outcome
    }

    /// Sends a line as it is. Answers without one of our ids are [`Self::strays`].
    pub fn send_line(&self, line: &str) {
        self.process.send_line(line);
    }

    /// The events so far, in the order in which they came.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        self.process.router.events()
    }

    /// The events that came since this was last called.
    #[must_use]
    pub fn new_events(&self) -> Vec<Value> {
        self.process.router.new_events()
    }

    /// The `lost` events so far.
    #[must_use]
    pub fn lost(&self) -> Vec<Lost> {
        self.events().iter().filter_map(Lost::from_event).collect()
    }

    /// Lines that were neither events nor answers to a request.
    #[must_use]
    pub fn strays(&self) -> Vec<String> {
        self.process.router.strays()
    }

    /// What the worker wrote to standard error.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid
    }

    /// Whether the process runs; a frozen one does.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// The process, for what ends or stops it.
    fn own(&self) -> &Process {
        let alone = self.client.is_none();
        assert!(alone, "its process has clients of other tests, too");
        &self.process
    }

    /// Kills the process with -9; returns when it is gone.
    ///
    /// # Panics
    /// If it has other clients, too.
    pub fn kill(&self) {
        self.own().kill();
    }

    /// Stops the process (SIGSTOP); returns when it stands still.
    ///
    /// # Panics
    /// If it does not stand still within five seconds, or has other clients, too.
    pub fn freeze(&self) {
        if self.own().is_alive() {
            process::freeze(self.pid());
        }
    }

    /// Lets a frozen process go on.
    pub fn resume(&self) {
        if self.is_alive() {
            process::resume(self.pid());
        }
    }

    /// Ends the worker's input, after what was sent; it then closes its client and ends.
    ///
    /// # Panics
    /// If its process has other clients, too.
    pub fn close_stdin(&self) {
        drop(self.own().lines.lock().take());
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it does not end within `deadline`.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    pub async fn wait_exit(&self, deadline: Duration) -> ExitStatus {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.process.child.lock().status() {
                return status;
            }
            let late = Instant::now() >= end;
            assert!(!late, "the worker did not end within {deadline:?}");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
}

impl Process {
    fn spawn<S: AsRef<OsStr>>(argv: &[S]) -> Self {
        let (program, rest) = argv.split_first().expect("a program to start");
        let log = tempfile::tempfile().expect("a file for the worker's log");
        let stderr = log.try_clone().expect("the worker's log can be written");
        let mut child = Command::new(program)
            .args(rest)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.as_ref().display()));
        let leash = Leash::on(child.id()).expect("a shell holds the leash");
        let stdin = child.stdin.take().expect("standard input is piped");
        let stdout = child.stdout.take().expect("standard output is piped");
        let router = Arc::new(Router::default());
        Arc::clone(&router).read(stdout);
        Self {
            pid: child.id(),
            child: Mutex::new(Leashed {
                child,
                leash: Some(leash),
            }),
            lines: Mutex::new(Some(Lines::to(stdin))),
            router,
            next_id: AtomicU64::new(1),
            log,
        }
    }

    fn send_line(&self, line: &str) {
        if let Some(lines) = &*self.lines.lock() {
            lines.send(line);
        }
    }

    fn is_alive(&self) -> bool {
        self.child.lock().status().is_none()
    }

    fn kill(&self) {
        let mut leashed = self.child.lock();
        let _ = leashed.child.kill();
        drop(leashed.leash.take());
        let _ = leashed.child.wait();
    }

    fn log(&self) -> String {
        let length = self.log.metadata().map_or(0, |log| log.len());
        let mut log = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = self.log.read_exact_at(&mut log, 0);
        read.map_or_else(
            |error| error.to_string(),
            |()| String::from_utf8_lossy(&log).into_owned(),
        )
    }
}

impl Drop for Worker {
    /// A failing test shows the worker's standard error.
    fn drop(&mut self) {
        if self.client.is_some() {
            drop(self.request("end", Value::Null));
        } else {
            self.process.kill();
        }
        let log = self.log();
        if std::thread::panicking() && !log.is_empty() {
            eprintln!("worker {} wrote:\n{log}", self.pid());
        }
    }
}

impl Leashed {
    fn status(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok()??;
        drop(self.leash.take());
        Some(status)
    }
}

/// A request that was sent; awaiting it gives the [`Reply`].
///
/// # Cancel safety
/// Dropping it leaves the request to the worker, and nobody gets the answer.
#[derive(Debug)]
#[must_use = "the answer, and any error in it, is lost unless awaited"]
pub struct Call {
    id: u64,
    answer: oneshot::Receiver<Reply>,
}

impl Call {
    /// The request's number in the lines.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Future for Call {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        answer.map(|reply| reply.unwrap_or_else(|_| Reply::dead()))
    }
}
