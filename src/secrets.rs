//! Credentials of connections: user, password, certificates. They may change while a client lives, so they are asked for
//! at each connect.

use std::fmt;
use std::sync::Arc;

/// Returns the credentials of the next connection.
pub(crate) type Provider = Arc<dyn Fn() -> Secrets + Send + Sync>;

/// The credentials of a connection, see [`ClientBuilder::secrets`](crate::ClientBuilder::secrets). Those that are not set
/// come from the address.
///
/// ```
/// use watchlock::{Secrets, Tls};
///
/// fn secrets() -> std::io::Result<Secrets> {
///     let password = std::fs::read_to_string("/run/secrets/redis-password")?;
///     Ok(Secrets::new().user("app").password(password.trim()))
/// }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Secrets {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) tls: Option<Tls>,
}

impl Secrets {
    /// Everything as in the address.
    pub fn new() -> Self {
        Self::default()
    }

    /// The user.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The certificates of an encrypted connection.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }
}

/// Shows no secrets.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

type Pem = Arc<[u8]>;

/// Certificates for `rediss://` addresses, as texts in PEM form. Default: the certificate authorities of the system, and no
/// client certificate. Needs the feature `tls`.
///
/// The server's certificate must name the host that the client connects to. Sentinels and cluster nodes announce IP
/// addresses (`subjectAltName=IP:…`), unless they are configured to announce host names.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use watchlock::{Client, Tls};
///
/// let tls = Tls::new()
///     .ca_pem(std::fs::read("ca.crt")?)
///     .client_pem(std::fs::read("client.crt")?, std::fs::read("client.key")?);
/// let client = Client::builder("rediss://redis.internal/").tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Tls {
    pub(crate) ca: Option<Pem>,
    pub(crate) client: Option<(Pem, Pem)>,
}

impl Tls {
    /// The certificates of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities instead of those of the system.
    pub fn ca_pem(mut self, certificates: impl AsRef<[u8]>) -> Self {
        self.ca = Some(certificates.as_ref().into());
        self
    }

    /// The client's certificate, with intermediate certificates if there are any, and its key.
    pub fn client_pem(mut self, certificates: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.client = Some((certificates.as_ref().into(), key.as_ref().into()));
        self
    }
}

/// Shows no secrets.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

/// Adds `tls` to the credentials of `ask` if they have no certificates.
pub(crate) fn provider(ask: Option<Provider>, tls: Option<Tls>) -> Option<Provider> {
    let Some(tls) = tls else {
        return ask;
    };
    Some(Arc::new(move || {
        let mut secrets = ask.as_ref().map(|ask| ask()).unwrap_or_default();
        secrets.tls.get_or_insert_with(|| tls.clone());
        secrets
    }))
}
