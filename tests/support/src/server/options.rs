//! The options of a server, and the configuration file that they make.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::RedisServer;
use crate::tls::Certificates;

/// Options of a [`RedisServer`]; by default nothing is saved, and only 127.0.0.1 is listened on.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct ServerOptions {
    pub(super) saves: Saves,
    pub(super) sentinel: bool,
    pub(super) port: Option<u16>,
    pub(super) unix_socket: bool,
    pub(super) password: Option<String>,
    /// It is a cluster by itself.
    pub(super) cluster: bool,
    /// Its port for TLS.
    pub(super) tls_port: Option<u16>,
    config: Vec<(String, String)>,
    /// Files to write into its directory before it starts: name and text.
    files: Vec<(String, String)>,
}

/// Where it keeps data and configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Saves {
    /// No data, and the configuration in a file.
    #[default]
    Nothing,
    /// Data in an append-only file.
    Data,
    /// Everything in a folder in memory.
    InMemory,
}

impl ServerOptions {
    /// Keeps an append-only file, written before each answer, so that data survives [`RedisServer::kill`].
    pub fn aof(mut self) -> Self {
        self.saves = Saves::Data;
        self
    }

    /// Listens on a unix socket as well.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Asks clients for a password (letters and digits).
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Follows `master`, which has no password; see [`RedisServer::synced`].
    pub fn replica_of(self, master: &RedisServer) -> Self {
        let address = format!("127.0.0.1 {}", master.announced());
        self.config("replicaof", &address)
    }

    /// Speaks TLS on this port, too, and to other servers; clients there must show a certificate.
    pub(crate) fn tls(mut self, certificates: &Certificates, port: u16) -> Self {
        self.tls_port = Some(port);
        for (key, path) in certificates.lines() {
            self = self.config(key, &path);
        }
        self.config("tls-port", &port.to_string())
            .config("tls-auth-clients", "yes")
            .config("tls-replication", "yes")
    }

    /// Starts a sentinel instead of a server; the configuration says what it watches.
    pub(crate) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Makes the server a cluster of one node, which has all slots. It is up after two seconds.
    pub fn cluster_of_one(mut self) -> Self {
        self.cluster = true;
        self.config("cluster-enabled", "yes")
    }

    /// Listens on this port, even if it is taken.
    pub(crate) fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// One more line of the configuration file; it overrides earlier ones.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The same, for a setting that Redis 6.2 does not know; 6.2 runs without it.
    pub fn config_since_7(self, key: &str, value: &str) -> Self {
        if super::run::is_before_7() {
            return self;
        }
        self.config(key, value)
    }

    /// Keeps its directory in memory: a cluster node waits for the disk at each change of its slots, and on a busy
    /// machine the tests would wait with it.
    pub(crate) fn in_memory(mut self) -> Self {
        self.saves = Saves::InMemory;
        self
    }

    /// Writes this file into its directory.
    pub(crate) fn file(mut self, name: &str, text: String) -> Self {
        self.files.push((name.to_owned(), text));
        self
    }

    /// Starts the server and waits until it is ready.
    ///
    /// # Panics
    /// If there is no redis-server or it does not come up.
    #[must_use]
    pub fn start(self) -> RedisServer {
        RedisServer::start_with(&self)
    }

    pub(super) fn write_config(&self, dir: &Path, port: u16) -> PathBuf {
        let mut text = String::new();
        for (key, value) in self.lines(dir, port) {
            writeln!(text, "{key} {value}").expect("writing to a string");
        }
        if self.cluster {
            fs::write(dir.join("nodes.conf"), of_one(port)).expect("a file is written");
        }
        for (name, text) in &self.files {
            fs::write(dir.join(name), text).expect("a file is written");
        }
        let path = dir.join("redis.conf");
        fs::write(&path, text).expect("the configuration file is written");
        path
    }

    fn lines(&self, dir: &Path, port: u16) -> Vec<(String, String)> {
        let mut lines = vec![
            ("bind", "127.0.0.1".to_owned()),
            ("port", port.to_string()),
            ("dir", dir.display().to_string()),
            // Redis must not mistake the owner's pipes for a terminal or a supervisor.
            ("daemonize", "no".to_owned()),
        ];
        if !self.sentinel {
            lines.extend([
                ("save", "\"\"".to_owned()),
                ("appendonly", yes_no(self.saves == Saves::Data)),
                ("appendfsync", "always".to_owned()),
                // A replica must not wait 5 s for others that want the same snapshot.
                ("repl-diskless-sync-delay", "0".to_owned()),
            ]);
        }
        if let Some(password) = &self.password {
            lines.push(("requirepass", password.clone()));
        }
        if self.unix_socket {
            lines.push(("unixsocket", dir.join("redis.sock").display().to_string()));
        }
        let own = lines
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value));
        own.chain(self.config.iter().cloned()).collect()
    }
}

/// The `nodes.conf` of a cluster of one node.
fn of_one(port: u16) -> String {
    let id = "1".repeat(40);
    let bus = port + crate::port::BUS;
    let node = format!("{id} 127.0.0.1:{port}@{bus} myself,master - 0 0 1 connected 0-16383");
    format!("{node}\nvars currentEpoch 1 lastVoteEpoch 0\n")
}

fn yes_no(on: bool) -> String {
    if on { "yes" } else { "no" }.to_owned()
}
