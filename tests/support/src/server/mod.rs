//! A private redis-server for one test.
//!
//! Own port, own directory, loopback only, nothing saved unless asked for. It is killed when dropped and also when
//! the process that owns it dies in any way. Starting blocks for some 20 ms and works inside and outside a runtime.
//!
//! Ports are drawn below the range of the kernel's outgoing connections, so that a port stays free between a kill and a
//! restart. If somebody else took the port in the meantime, the kit notices and draws another one.

mod inspect;
mod options;
mod run;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use inspect::{ClientInfo, connection};
use options::Saves;
pub use options::ServerOptions;

use crate::{port, process};
use inspect::Inspector;
use run::{Launch, Process, binary};

const READY_DEADLINE: Duration = Duration::from_secs(20);
const PORTS_TRIED: usize = 20;

/// A running redis-server that ends when this value is dropped.
///
/// ```no_run
/// # async fn example() {
/// use watchlock_support::server::RedisServer;
///
/// let server = RedisServer::start();
/// server.cmd(&["SET", "name", "value"]).await;
/// assert_eq!(server.keys().await, ["name"]);
/// server.kill();
/// server.restart();
/// assert!(server.keys().await.is_empty());
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    process: Process,
    inspector: Inspector,
    port: u16,
    tls_port: Option<u16>,
    password: Option<String>,
    socket: Option<std::path::PathBuf>,
    cluster: bool,
    dir: TempDir,
}

impl RedisServer {
    /// A server with the default options, ready for use.
    ///
    /// # Panics
    /// If there is no redis-server or it does not come up.
    #[must_use]
    pub fn start() -> Self {
        Self::options().start()
    }

    /// A server that somebody else runs on this port, to look into it.
    ///
    /// # Panics
    /// If there is no place for temporary files.
    #[must_use]
    pub fn of_others(port: u16) -> Self {
        Self::prepare(&ServerOptions::default(), port)
    }

    /// Options for a server that is not plain.
    pub fn options() -> ServerOptions {
        ServerOptions::default()
    }

    /// What `redis-server --version` prints.
    ///
    /// # Panics
    /// If there is no redis-server.
    #[must_use]
    pub fn version() -> String {
        run::version()
    }

    pub(crate) fn start_with(options: &ServerOptions) -> Self {
        let options = &if in_cluster() && !options.sentinel {
            options.clone().cluster_of_one()
        } else {
            options.clone()
        };
        let draw = if options.cluster {
            port::draw_for_node
        } else {
            port::draw
        };
        for _ in 0..PORTS_TRIED {
            let server = Self::prepare(options, options.port.unwrap_or_else(draw));
            server.launch();
            match server.wait_ready() {
                Ok(()) => return server,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("redis-server did not come up:\n{log}"),
            }
        }
        panic!("no free port for redis-server after {PORTS_TRIED} tries");
    }

    /// Starts servers with ports of their own, all at once.
    ///
    /// # Errors
    /// The log of the first that did not come up.
    pub(crate) fn start_all(options: &[ServerOptions]) -> Result<Vec<Self>, String> {
        let servers: Vec<_> = options
            .iter()
            .map(|options| Self::prepare(options, options.port.unwrap_or_else(port::draw)))
            .collect();
        servers.iter().for_each(Self::launch);
        for server in &servers {
            server.wait_ready()?;
        }
        Ok(servers)
    }

    fn prepare(options: &ServerOptions, port: u16) -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if options.saves == Saves::InMemory && memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let dir = tempfile::Builder::new()
            .prefix("watchlock-redis-")
            .tempdir_in(parent)
            .expect("a directory for redis-server");
        let config = options.write_config(dir.path(), port);
        let launch = Launch {
            binary: binary(),
            config,
            arguments: if options.sentinel {
                &["--sentinel"]
            } else {
                &[]
            },
            log: dir.path().join("redis.log"),
        };
        let password = options.password.clone();
        Self {
            inner: Arc::new(Inner {
                process: Process::new(launch),
                inspector: Inspector::new(url_for(port, password.as_deref())),
                port,
                tls_port: options.tls_port,
                password,
                cluster: options.cluster,
                socket: options.unix_socket.then(|| dir.path().join("redis.sock")),
                dir,
            }),
        }
    }

    /// The address for clients, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.port())
    }

    /// The address for clients that connect through another port, a proxy's.
    #[must_use]
    pub fn url_via(&self, port: u16) -> String {
        url_for(port, self.inner.password.as_deref())
    }

    /// The address of the unix socket.
    ///
    /// # Panics
    /// If the server was started without [`ServerOptions::unix_socket`].
    #[must_use]
    pub fn socket_url(&self) -> String {
        let socket = self.inner.socket.as_ref().expect("started with a socket");
        format!("redis+unix://{}", socket.display())
    }

    /// The TCP port, the same over restarts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner.port
    }

    /// The port under which other servers know it: the one for TLS, if it has one.
    #[must_use]
    pub fn announced(&self) -> u16 {
        self.inner.tls_port.unwrap_or(self.inner.port)
    }

    /// The address by TLS.
    ///
    /// # Panics
    /// If it does not speak TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        let port = self.inner.tls_port.expect("it speaks TLS");
        format!("rediss://127.0.0.1:{port}/")
    }

    /// The process id.
    ///
    /// # Panics
    /// If the server is not running.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.process.pid().expect("the server is running")
    }

    /// Whether its process exists, frozen or not.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.process.is_running()
    }

    /// Its directory: configuration, log and append-only file.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.inner.dir.path()
    }

    /// What the server has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.inner.process.log()
    }

    /// Kills the server with -9; returns when it is gone.
    pub fn kill(&self) {
        self.inner.process.kill();
    }

    /// Starts the killed server again, on the same port and directory, without waiting until it is ready.
    ///
    /// # Panics
    /// If the process cannot be started.
    pub fn launch(&self) {
        self.inner.process.launch();
    }

    /// Kills the server if it runs, starts it again and waits until it is ready.
    ///
    /// Without an append-only file all data is gone; with one it is kept.
    ///
    /// # Panics
    /// If the server does not come up.
    pub fn restart(&self) {
        self.kill();
        self.launch();
        if let Err(log) = self.wait_ready() {
            panic!("redis-server did not come up again:\n{log}");
        }
    }

    /// Waits until the server answers PING with PONG.
    ///
    /// # Panics
    /// If it has ended, or is not ready within 20 s.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting and nothing else.
    pub async fn ready(&self) {
        if let Err(log) = self.inner.ready().await {
            panic!("redis-server did not come up:\n{log}");
        }
    }

    /// Stops the process (SIGSTOP): connections stay, nothing is answered. Returns when it stands still.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn freeze(&self) {
        process::freeze(self.pid());
    }

    /// Lets a frozen server go on.
    ///
    /// # Panics
    /// If the server is not running.
    pub fn resume(&self) {
        process::resume(self.pid());
    }

    fn wait_ready(&self) -> Result<(), String> {
        let inner = Arc::clone(&self.inner);
        inspect::block_on(async move { inner.ready().await })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Inner {
    /// Returns the log when the process has ended or the deadline has passed.
    async fn ready(&self) -> Result<(), String> {
        let end = Instant::now() + READY_DEADLINE;
        while Instant::now() < end && self.process.is_running() {
            if self.answers_as_ours().await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        Err(self.process.log())
    }

    /// A starting node waits for others, whether or not there are any.
    async fn has_slots(&self) -> bool {
        let mut info = redis::cmd("CLUSTER");
        info.arg("INFO");
        let info = self.inspector.run(info).await;
        let info = info.and_then(|info| Ok(redis::from_redis_value::<String>(info)?));
        info.is_ok_and(|info| info.contains("cluster_state:ok"))
    }

    /// A stranger may have taken the port just before us, and would answer instead.
    async fn answers_as_ours(&self) -> bool {
        if self.inspector.run(redis::cmd("PING")).await.is_err() {
            return false;
        }
        let pid = self.inspector.info("server", "process_id").await;
        if pid.and_then(|pid| pid.parse().ok()) != self.process.pid() {
            return false;
        }
        !self.cluster || self.has_slots().await
    }
}

/// Whether tests run on clusters of one node, so that every scenario is tested there, too: `TEST_IN_CLUSTER` is set.
#[must_use]
pub fn in_cluster() -> bool {
    std::env::var_os("TEST_IN_CLUSTER").is_some()
}

fn url_for(port: u16, password: Option<&str>) -> String {
    match password {
        Some(password) => format!("redis://:{password}@127.0.0.1:{port}/"),
        None => format!("redis://127.0.0.1:{port}/"),
    }
}
