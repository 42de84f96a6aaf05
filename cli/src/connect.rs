//! From options to Redis: a client of watchlock, for everything that takes or releases a lock.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watchlock::{Client, ClientBuilder, Error, Lock, Quorum, Tls};

use crate::options::{Kind, ServerOptions};
use crate::status::{Failure, Status};

/// For how long to try to connect, as the library does with an acquire.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);

/// Where the locks are: one deployment, or a majority of servers.
pub(crate) enum Locks {
    Of(Client),
    OfMajority(Quorum),
}

impl Locks {
    /// The lock `name` of this kind.
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Arc<dyn Lock> {
        match (self, kind) {
            (Self::Of(client), Kind::Plain) => client.get_lock(name).into(),
            (Self::Of(client), Kind::Fair) => client.get_fair_lock(name).into(),
            (Self::Of(client), Kind::Fenced) => client.get_fenced_lock(name).into(),
            (Self::Of(client), Kind::Read) => client.get_read_write_lock(name).read_lock().into(),
            (Self::Of(client), Kind::Write) => client.get_read_write_lock(name).write_lock().into(),
            (Self::Of(client), Kind::Simple) => client.get_simple_lock(name).into(),
            (Self::OfMajority(quorum), Kind::Fenced) => quorum.get_fenced_lock(name).into(),
            // The other kinds were refused by `check`.
            (Self::OfMajority(quorum), _) => quorum.get_lock(name).into(),
        }
    }

    pub(crate) async fn shutdown(&self, timeout: Duration) {
        match self {
            Self::Of(client) => client.shutdown(timeout).await,
            Self::OfMajority(quorum) => quorum.shutdown(timeout).await,
        };
    }
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
        watchdog: Option<Duration>,
        wait: Option<Duration>,
    ) -> Result<Locks, Failure> {
        let tls = self.tls()?;
        let patience = wait.unwrap_or(PATIENCE).min(PATIENCE);
        let start = Instant::now();
        loop {
            match self.connect_once(watchdog, tls.as_ref()).await {
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
        watchdog: Option<Duration>,
        tls: Option<&Tls>,
    ) -> Result<Locks, Error> {
        if self.quorum {
            let mut builder = Quorum::builder(&self.url).key_prefix(&self.prefix);
            if let Some(lease) = watchdog {
                builder = builder.watchdog_lease(lease);
            }
            return Ok(Locks::OfMajority(builder.connect().await?));
        }
        let mut builder = self.builder().key_prefix(&self.prefix);
        if let Some(lease) = watchdog {
            builder = builder.watchdog_lease(lease);
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
        if self.tls_ca.is_none() && self.tls_cert.is_none() {
            return Ok(None);
        }
        let mut tls = Tls::new();
        if let Some(ca) = &self.tls_ca {
            tls = tls.ca_pem(read(ca)?);
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            tls = tls.client_pem(read(cert)?, read(key)?);
        }
        Ok(Some(tls))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path)
        .map_err(|error| Failure::new(Status::CONFIG, format!("{}: {error}", path.display())))
}
