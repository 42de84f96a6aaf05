//! From options to Redis: a client of watchlock, for everything that takes or releases a lock, and plain connections to
//! each master, for what only looks.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use watchlock::redis::aio::MultiplexedConnection;
use watchlock::redis::{
    self, AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue,
    IntoConnectionInfo, ProtocolVersion, RedisError,
};
use watchlock::{
    Client, ClientBuilder, ConfigError, Error, Holder, Lock, PermitExpirableSemaphore, Quorum, Tls,
};

use crate::options::{Kind, ServerOptions};
use crate::status::{Failure, Status};

/// For how long to try to connect, as the library does with an acquire.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// For plain connections: people wait for what they say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Where the locks are: one deployment, or a majority of servers.
pub(crate) enum Locks {
    Of(Client),
    OfMajority(Quorum),
}

/// The same for the lock of each kind, whose types differ.
macro_rules! with_lock {
    ($locks:expr, $kind:expr, $name:expr, $lock:ident => $what:expr) => {
        match ($locks, $kind) {
            (Locks::Of(client), kind) => match kind {
                Kind::Plain => with_lock!(client.get_lock($name), $lock => $what),
                Kind::Fair => with_lock!(client.get_fair_lock($name), $lock => $what),
                Kind::Fenced => with_lock!(client.get_fenced_lock($name), $lock => $what),
                Kind::Read => with_lock!(client.get_read_write_lock($name).read_lock(), $lock => $what),
                Kind::Write => with_lock!(client.get_read_write_lock($name).write_lock(), $lock => $what),
                Kind::Simple => with_lock!(client.get_simple_lock($name), $lock => $what),
            },
            (Locks::OfMajority(quorum), Kind::Fenced) => with_lock!(quorum.get_fenced_lock($name), $lock => $what),
            // `check` refused the other kinds.
            (Locks::OfMajority(quorum), _) => with_lock!(quorum.get_lock($name), $lock => $what),
        }
    };
    ($value:expr, $lock:ident => $what:expr) => {{
        let $lock = $value;
        $what
    }};
}

impl Locks {
    /// The lock `name` of this kind.
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Arc<dyn Lock> {
        with_lock!(self, kind, name, lock => lock.into())
    }

    /// The expirable semaphore `name`; a quorum has none.
    pub(crate) fn semaphore(&self, name: &str) -> Option<PermitExpirableSemaphore> {
        match self {
            Self::Of(client) => Some(client.get_permit_expirable_semaphore(name)),
            Self::OfMajority(_) => None,
        }
    }

    /// The holders that Redis shows.
    pub(crate) async fn holders(&self, kind: Kind, name: &str) -> Vec<Holder> {
        let holders = with_lock!(self, kind, name, lock => lock.holders().await);
        holders.unwrap_or_default()
    }

    pub(crate) async fn shutdown(&self, timeout: Duration) {
        match self {
            Self::Of(client) => client.shutdown(timeout).await,
            Self::OfMajority(quorum) => quorum.shutdown(timeout).await,
        };
    }
}

/// How a client holds locks.
pub(crate) struct Holding {
    pub(crate) lease: Duration,
    pub(crate) label: String,
}

impl ServerOptions {
    /// What clap cannot check.
    pub(crate) fn check(&self, kind: Kind) -> Result<(), Failure> {
        let several = self.sentinel.is_some() || self.cluster || self.quorum;
        if self.url.len() > 1 && !several {
            let text = "several addresses need --sentinel, --cluster or --quorum";
            return Err(Failure::usage(text));
        }
        if self.quorum && !matches!(kind, Kind::Plain | Kind::Fenced) {
            return Err(Failure::usage(
                "with --quorum there are plain and fenced locks",
            ));
        }
        Ok(())
    }

    /// Connects, and tries again while Redis is unreachable or refuses: for five seconds, or for `wait` if that is shorter.
    /// One attempt is always made, and ends by the time-outs of the library.
    pub(crate) async fn connect(
        &self,
        holder: Option<&Holding>,
        wait: Option<Duration>,
    ) -> Result<Locks, Failure> {
        let tls = self.tls()?;
        let patience = wait.unwrap_or(PATIENCE).min(PATIENCE);
        let start = Instant::now();
        loop {
            match self.connect_once(holder, tls.as_ref()).await {
                Err(error) if error.is_transient() && start.elapsed() < patience => {
                    let left = patience.saturating_sub(start.elapsed());
                    tokio::time::sleep(left.min(PAUSE)).await;
                }
                result => return Ok(result?),
            }
        }
    }

    async fn connect_once(
        &self,
        holder: Option<&Holding>,
        tls: Option<&Tls>,
    ) -> Result<Locks, Error> {
        if self.quorum {
            let mut builder = Quorum::builder(&self.url).key_prefix(&self.prefix);
            if let Some(holder) = holder {
                builder = builder.watchdog_lease(holder.lease).label(&holder.label);
            }
            return Ok(Locks::OfMajority(builder.connect().await?));
        }
        let mut builder = self.builder().key_prefix(&self.prefix);
        if let Some(holder) = holder {
            builder = builder.watchdog_lease(holder.lease).label(&holder.label);
        }
        if let Some(tls) = tls {
            builder = builder.tls(tls.clone());
        }
        Ok(Locks::Of(builder.connect().await?))
    }

    fn builder(&self) -> ClientBuilder {
        if let Some(service) = &self.sentinel {
            let builder = ClientBuilder::sentinel(&self.url, service);
            return match &self.server_url {
                Some(url) => builder.server_url(url),
                None => builder,
            };
        }
        if self.cluster {
            return ClientBuilder::cluster(&self.url);
        }
        // clap requires one.
        Client::builder(self.url.first().map_or("", String::as_str))
    }

    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let pems = self.pems()?;
        if pems.ca.is_none() && pems.client.is_none() {
            return Ok(None);
        }
        let mut tls = Tls::new();
        if let Some(ca) = pems.ca {
            tls = tls.ca_pem(ca);
        }
        if let Some((cert, key)) = pems.client {
            tls = tls.client_pem(cert, key);
        }
        Ok(Some(tls))
    }

    fn pems(&self) -> Result<Pems, Failure> {
        let ca = self.tls_ca.as_deref().map(read).transpose()?;
        let client = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((read(cert)?, read(key)?)),
            _ => None,
        };
        Ok(Pems { ca, client })
    }
}

/// The files of `--tls-…`.
struct Pems {
    ca: Option<Vec<u8>>,
    client: Option<(Vec<u8>, Vec<u8>)>,
}

/// A plain connection to a server.
pub(crate) struct Server {
    /// Its host and port, or its socket.
    pub(crate) at: String,
    pub(crate) connection: MultiplexedConnection,
    pub(crate) in_cluster: bool,
    info: ConnectionInfo,
    /// All masters of its cluster, by their addresses.
    masters: Arc<[(String, MultiplexedConnection)]>,
}

impl Server {
    /// Runs one command.
    pub(crate) async fn ask<T: FromRedisValue>(&self, words: &[&[u8]]) -> Result<T, RedisError> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let answer = command.query_async(&mut self.connection.clone()).await;
        self.elsewhere(&command, answer).await
    }

    /// The answer to a command, which got this one. While a slot migrates, some of its keys are at the node that it leaves
    /// and the others at the next one: each answers for what it has, behind `ASKING`.
    pub(crate) async fn elsewhere<T: FromRedisValue>(
        &self,
        command: &Cmd,
        answer: Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        let Err(error) = &answer else {
            return answer;
        };
        let node = match (error.code(), error.redirect_node()) {
            (Some("MOVED"), _) => Some(&self.connection),
            (Some("ASK"), Some((at, _))) => {
                let mut masters = self.masters.iter();
                masters.find_map(|(known, node)| (known == at).then_some(node))
            }
            _ => None,
        };
        let Some(node) = node.filter(|_| self.in_cluster) else {
            return answer;
        };
        let mut asking = redis::pipe();
        asking.cmd("ASKING").ignore().add_command(command.clone());
        let asked = asking.query_async(&mut node.clone()).await;
        asked.map(|(answer,)| answer).or(answer)
    }

    /// The time of its clock, since 1970.
    pub(crate) async fn time(&self) -> Result<Duration, RedisError> {
        let (seconds, micros) = self.ask(&[b"TIME"]).await?;
        Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
    }
}

/// A server that may be out of reach, with the name by which people know it.
pub(crate) type Reached = Result<Server, (String, Failure)>;

/// The masters that were reached, and why another was not.
pub(crate) struct Masters {
    pub(crate) servers: Vec<Server>,
    pub(crate) failure: Option<Failure>,
}

impl ServerOptions {
    pub(crate) async fn masters(&self) -> Result<Masters, Failure> {
        let (mut servers, mut failure) = (Vec::new(), None);
        for server in self.servers().await? {
            match server {
                Ok(server) => servers.push(server),
                Err((at, why)) => failure = Some(why.at(&at)),
            }
        }
        Ok(Masters { servers, failure })
    }

    /// Of the servers of a quorum.
    pub(crate) fn majority(&self) -> usize {
        self.url.len() / 2 + 1
    }

    /// Fails unless enough masters answered: of a quorum a majority, else all.
    pub(crate) fn enough(&self, answered: usize, failure: Option<Failure>) -> Result<(), Failure> {
        match failure {
            Some(failure) if !self.quorum || answered < self.majority() => Err(failure),
            _ => Ok(()),
        }
    }

    /// All masters, also those that cannot be reached.
    pub(crate) async fn servers(&self) -> Result<Vec<Reached>, Failure> {
        self.check(Kind::Plain)?;
        // For `rediss://` by redis-rs; set already is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pems = self.pems()?;
        if self.sentinel.is_some() {
            return Ok(vec![self.by_sentinel(&pems).await?]);
        }
        let infos: Vec<_> = self.url.iter().map(|url| info_of(url)).collect();
        let infos = infos.into_iter().collect::<Result<Vec<_>, _>>()?;
        if self.quorum {
            return Ok(open_all(infos, &pems).await);
        }
        // One address, or the seeds of a cluster: the first that answers knows the others.
        let mut failed = Vec::new();
        for info in infos {
            let seed = match open(info, &pems).await {
                Ok(seed) => seed,
                Err(why) => {
                    failed.push(Err(why));
                    continue;
                }
            };
            let at = seed.at.clone();
            match self.behind(seed, &pems).await {
                Ok(servers) => return Ok(servers),
                Err(why) => failed.push(Err((at, why))),
            }
        }
        // One is enough to say why.
        failed.truncate(1);
        Ok(failed)
    }

    /// The server, or the masters of its cluster.
    async fn behind(&self, mut seed: Server, pems: &Pems) -> Result<Vec<Reached>, Failure> {
        let hello: Vec<redis::Value> = seed.ask(&[b"HELLO"]).await.unwrap_or_default();
        let mode = hello.chunks(2).find_map(|pair| match pair {
            [name, value] if text(name) == "mode" => Some(text(value)),
            _ => None,
        });
        match (mode.as_deref(), self.cluster) {
            (Some("cluster"), _) | (None, true) => {}
            (_, false) => return Ok(vec![Ok(seed)]),
            (Some(_), true) => {
                let text = "it is not in cluster mode";
                return Err(Failure::new(Status::CONFIG, text));
            }
        }
        seed.in_cluster = true;
        nodes(&seed, pems).await
    }

    /// The master that most sentinels name.
    async fn by_sentinel(&self, pems: &Pems) -> Result<Reached, Failure> {
        let service = self.sentinel.as_deref().unwrap_or_default();
        let (mut named, mut failed) = (Vec::<(String, u16)>::new(), None);
        for url in &self.url {
            match open(info_of(url)?, pems).await {
                Ok(sentinel) => {
                    let words: [&[u8]; 3] =
                        [b"SENTINEL", b"get-master-addr-by-name", service.as_bytes()];
                    // Another may know.
                    match sentinel.ask::<Option<(String, u16)>>(&words).await {
                        Ok(address) => named.extend(address),
                        Err(error) => failed = Some(Failure::from(error).at(&sentinel.at)),
                    }
                }
                Err((at, failure)) => failed = Some(failure.at(&at)),
            }
        }
        let votes =
            |address: &&(String, u16)| named.iter().filter(|other| other == address).count();
        let Some((host, port)) = named.iter().max_by_key(votes) else {
            let unknown = Failure::new(Status::CONFIG, "no sentinel watches a master of that name");
            return Err(failed.unwrap_or(unknown));
        };
        let url = self.server_url.as_deref().unwrap_or("redis://master/");
        Ok(open(moved(&info_of(url)?, host, *port), pems).await)
    }
}

/// The masters of a cluster.
async fn nodes(seed: &Server, pems: &Pems) -> Result<Vec<Reached>, Failure> {
    let slots: Vec<Vec<redis::Value>> = seed.ask(&[b"CLUSTER", b"SLOTS"]).await?;
    let mut masters = Vec::new();
    for range in slots {
        let Some(redis::Value::Array(master)) = range.get(2) else {
            continue;
        };
        let [host, redis::Value::Int(port), ..] = master.as_slice() else {
            continue;
        };
        let host = match (text(host), seed.info.addr()) {
            (host, _) if !host.is_empty() && host != "?" => host,
            // A node that does not know its name has that under which it was found.
            (_, ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host.clone(),
            _ => continue,
        };
        let master = (host, u16::try_from(*port).unwrap_or(0));
        if !masters.contains(&master) {
            masters.push(master);
        }
    }
    if masters.is_empty() {
        let text = "no node of the cluster has slots";
        return Err(Failure::new(Status::UNAVAILABLE, text));
    }
    let infos = masters.iter();
    let infos = infos.map(|(host, port)| moved(&seed.info, host, *port));
    let servers = open_all(infos.collect(), pems).await;
    let masters = servers.iter().flatten();
    let masters = masters.map(|server| (server.at.clone(), server.connection.clone()));
    let masters: Arc<[_]> = masters.collect();
    let in_cluster = |server| Server {
        in_cluster: true,
        masters: Arc::clone(&masters),
        ..server
    };
    let servers = servers.into_iter();
    Ok(servers.map(|server| server.map(in_cluster)).collect())
}

fn info_of(url: &str) -> Result<ConnectionInfo, Failure> {
    // Its own text may hold the password.
    url.into_connection_info()
        .map_err(|_| Error::from(ConfigError::InvalidUrl).into())
}

/// The same user, database and encryption at another server.
fn moved(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let there = match info.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(there)
}

/// Opens connections at once: each may take as long as it may.
async fn open_all(infos: Vec<ConnectionInfo>, pems: &Pems) -> Vec<Reached> {
    join_all(infos.into_iter().map(|info| open(info, pems))).await
}

async fn open(info: ConnectionInfo, pems: &Pems) -> Reached {
    // Whatever the address asks for: answers have another form in each version of the protocol.
    let settings = info.redis_settings().clone();
    let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP2));
    let at = info.addr().to_string();
    let encrypted = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(ANSWER_TIMEOUT));
    let connecting = async {
        let client = if encrypted {
            let certificates = redis::TlsCertificates {
                client_tls: pems.client.clone().map(|(client_cert, client_key)| {
                    redis::ClientTlsConfig {
                        client_cert,
                        client_key,
                    }
                }),
                root_cert: pems.ca.clone(),
            };
            redis::Client::build_with_tls(info.clone(), certificates)?
        } else {
            redis::Client::open(info.clone())?
        };
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    };
    match connecting.await {
        Ok(connection) => Ok(Server {
            at,
            connection,
            in_cluster: false,
            info,
            masters: Arc::default(),
        }),
        Err(error) => Err((at, error.into())),
    }
}

/// A text in an answer; empty if it is none.
pub(crate) fn text(value: &redis::Value) -> String {
    String::from_redis_value_ref(value).unwrap_or_default()
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let status = match (error.kind(), error.code()) {
            (redis::ErrorKind::AuthenticationFailed, _)
            | (_, Some("NOPERM" | "WRONGPASS" | "NOAUTH")) => Status::DENIED,
            (redis::ErrorKind::InvalidClientConfig, _) => Status::CONFIG,
            _ => Status::UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path)
        .map_err(|error| Failure::new(Status::CONFIG, format!("{}: {error}", path.display())))
}
