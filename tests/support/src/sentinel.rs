//! A master with replicas, watched by three sentinels: private, quick to fail over, gone when dropped.
//!
//! The sentinels know each other and the replicas from the start, by their configuration, so a fail-over may begin at
//! once. It takes between one and five seconds: the sentinels give up the master after half a second, and the rest is
//! their election.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::eventually;
use crate::port;
use crate::server::{RedisServer, ServerOptions};
use crate::tls::Certificates;

/// What the sentinels call the master.
pub const SERVICE: &str = "locks";

const DOWN_AFTER_MS: u32 = 500;
const SENTINELS: usize = 3;
const DEADLINE: Duration = Duration::from_secs(30);

/// A master, its replicas and their sentinels.
#[derive(Debug)]
pub struct SentinelDeployment {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    encrypted: bool,
    /// The servers' password.
    password: Option<String>,
}

/// Options of a [`SentinelDeployment`].
#[derive(Debug, Clone)]
#[must_use]
pub struct SentinelOptions {
    replicas: usize,
    preferred: Option<usize>,
    server: ServerOptions,
    password: Option<String>,
    sentinel_password: Option<String>,
    certificates: Option<Arc<Certificates>>,
}

impl Default for SentinelOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            preferred: None,
            server: RedisServer::options(),
            password: None,
            sentinel_password: None,
            certificates: None,
        }
    }
}

impl SentinelOptions {
    /// How many replicas follow the master. Default 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// The replica that the sentinels should promote, if they can.
    pub fn preferred(mut self, replica: usize) -> Self {
        self.preferred = Some(replica);
        self
    }

    /// One more line of the configuration of each server.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.server = self.server.config(key, value);
        self
    }

    /// The servers ask for a password (letters and digits).
    pub fn password(mut self, password: &str) -> Self {
        self.server = self
            .server
            .password(password)
            .config("masterauth", password);
        self.password = Some(password.to_owned());
        self
    }

    /// The sentinels ask for a password (letters and digits).
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Servers and sentinels speak TLS, also with each other, and ask clients for a certificate.
    pub fn encrypted(mut self, certificates: &Arc<Certificates>) -> Self {
        self.certificates = Some(Arc::clone(certificates));
        self
    }

    fn speaking(&self, options: ServerOptions, port: u16) -> ServerOptions {
        match &self.certificates {
            Some(certificates) => options.tls(certificates, port),
            None => options,
        }
    }

    /// Starts all of it; the replicas are in sync when it returns.
    ///
    /// # Panics
    /// If a server does not come up.
    pub async fn start(self) -> SentinelDeployment {
        let server = || self.speaking(self.server.clone(), port::draw());
        let master = server().start();
        let replicas: Vec<_> = (0..self.replicas)
            .map(|index| {
                let first = self.preferred == Some(index);
                let priority = if first { "1" } else { "100" };
                let replica = server().config("replica-priority", priority);
                replica.replica_of(&master).start()
            })
            .collect();
        for replica in &replicas {
            replica.synced().await;
        }
        // The sentinels know each other by these.
        let ports: Vec<_> = (0..SENTINELS).map(|_| port::draw()).collect();
        let sentinels = (0..SENTINELS)
            .map(|own| self.sentinel(own, &ports, &master, &replicas).start())
            .collect();
        let deployment = SentinelDeployment {
            servers: std::iter::once(master).chain(replicas).collect(),
            sentinels,
            encrypted: self.certificates.is_some(),
            password: self.password,
        };
        deployment.ready().await;
        deployment
    }

    fn sentinel(
        &self,
        own: usize,
        ports: &[u16],
        master: &RedisServer,
        replicas: &[RedisServer],
    ) -> ServerOptions {
        let at = |port: u16| format!("{SERVICE} 127.0.0.1 {port}");
        let mut lines = vec![
            format!("myid {:040x}", own + 1),
            format!("monitor {} 2", at(master.announced())),
            format!("down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"),
            format!("failover-timeout {SERVICE} 3000"),
        ];
        if let Some(password) = &self.password {
            lines.push(format!("auth-pass {SERVICE} {password}"));
        }
        let replicas = replicas.iter().map(|replica| at(replica.announced()));
        lines.extend(replicas.map(|replica| format!("known-replica {replica}")));
        for (other, port) in ports.iter().enumerate().filter(|(other, _)| *other != own) {
            lines.push(format!("known-sentinel {} {:040x}", at(*port), other + 1));
        }
        let options = RedisServer::options().sentinel();
        let mut options = match &self.certificates {
            Some(certificates) => options.tls(certificates, ports[own]),
            None => options.port(ports[own]),
        };
        if let Some(password) = &self.sentinel_password {
            options = options.password(password);
            lines.push(format!("sentinel-pass {password}"));
        }
        lines
            .iter()
            .fold(options, |options, line| options.config("sentinel", line))
    }
}

impl SentinelDeployment {
    /// A master with one replica and three sentinels.
    ///
    /// # Panics
    /// If a server does not come up.
    pub async fn start() -> Self {
        Self::options().start().await
    }

    /// Options for a deployment that is not plain.
    pub fn options() -> SentinelOptions {
        SentinelOptions::default()
    }

    /// The addresses of the sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let url = if self.encrypted {
            RedisServer::tls_url
        } else {
            RedisServer::url
        };
        self.sentinels.iter().map(url).collect()
    }

    /// The address of a server, as a client connects to it.
    #[must_use]
    pub fn server_url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@anywhere/"),
            None if self.encrypted => "rediss://anywhere/".to_owned(),
            None => "redis://anywhere/".to_owned(),
        }
    }

    /// The servers; the first one is the original master.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The port of the master according to one of the sentinels, if it answers.
    async fn named_by(&self, sentinel: &RedisServer) -> Option<u16> {
        let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let answer = sentinel.try_cmd(&asked).await.ok()?;
        let (_, port): (String, u16) = redis::from_redis_value(answer).ok()?;
        Some(port)
    }

    /// Waits until all of `sentinels` name a master other than `old`, and returns that one.
    ///
    /// # Panics
    /// If that takes longer than 30 s.
    pub async fn master_after(&self, old: &RedisServer, sentinels: &[RedisServer]) -> &RedisServer {
        eventually("the sentinels name another master", DEADLINE, async || {
            for sentinel in sentinels {
                if self
                    .named_by(sentinel)
                    .await
                    .is_none_or(|port| port == old.announced())
                {
                    return false;
                }
            }
            true
        })
        .await;
        let port = self.named_by(&sentinels[0]).await;
        let named = self
            .servers
            .iter()
            .find(|server| Some(server.announced()) == port);
        named.expect("the master is one of the servers")
    }

    /// Makes the first sentinel begin a fail-over. The sentinel refuses while the previous one is not over for it.
    ///
    /// # Panics
    /// If that takes longer than 30 s.
    pub async fn fail_over(&self) {
        eventually("a sentinel begins a fail-over", DEADLINE, async || {
            let asked = ["SENTINEL", "FAILOVER", SERVICE];
            self.sentinels[0].try_cmd(&asked).await.is_ok()
        })
        .await;
    }

    /// Waits until each sentinel agrees to a fail-over: it sees the master, the replicas and the other sentinels.
    ///
    /// # Panics
    /// If that takes longer than 30 s.
    pub async fn ready(&self) {
        for sentinel in &self.sentinels {
            eventually("a sentinel sees all servers", DEADLINE, async || {
                let seen = sentinel.try_cmd(&["SENTINEL", "CKQUORUM", SERVICE]).await;
                let seen =
                    matches!(seen, Ok(redis::Value::SimpleString(text)) if text.starts_with("OK"));
                seen && self.sees_replicas(sentinel).await
            })
            .await;
        }
    }

    /// The sentinels choose a replica only after they have asked it about itself.
    async fn sees_replicas(&self, sentinel: &RedisServer) -> bool {
        let Ok(answer) = sentinel.try_cmd(&["SENTINEL", "REPLICAS", SERVICE]).await else {
            return false;
        };
        let replicas: Vec<BTreeMap<String, String>> =
            redis::from_redis_value(answer).expect("a sentinel's list of replicas");
        let up = |replica: &&BTreeMap<String, String>| {
            replica
                .get("master-link-status")
                .is_some_and(|status| status == "ok")
                && replica.get("flags").is_some_and(|flags| flags == "slave")
        };
        replicas.iter().filter(up).count() + 1 == self.servers.len()
    }
}
