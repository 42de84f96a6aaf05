//! The scripts of the crate, sent raw.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

use crate::Result;

pub(super) const ACQUIRE: &str = include_str!("../../../../lua/lock/acquire.lua");
const REENTER: &str = include_str!("../../../../lua/lock/reenter.lua");
pub(super) const RELEASE: &str = include_str!("../../../../lua/lock/release.lua");

/// Lease of the raw locks.
pub(crate) const LEASE_MS: u64 = 30_000;

/// The digests of the scripts, once the server has them.
#[derive(Clone)]
pub(crate) struct Scripts {
    pub(crate) acquire: String,
    pub(crate) reenter: String,
    pub(crate) release: String,
}

impl Scripts {
    /// Loads the scripts.
    pub(crate) fn load(url: &str) -> Result<Self> {
        let mut connection = Client::open(url)?.get_connection()?;
        let mut load = |code: &str| -> Result<String> {
            let mut command = redis::cmd("SCRIPT");
            Ok(command.arg("LOAD").arg(code).query(&mut connection)?)
        };
        Ok(Self {
            acquire: load(ACQUIRE)?,
            reenter: load(REENTER)?,
            release: load(RELEASE)?,
        })
    }
}

/// One multiplexed connection with nodelay, and without a time-out for replies: nobody gives up.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client_with_nodelay(url)?
        .get_multiplexed_async_connection_with_config(&patient)
        .await?)
}

/// A client whose connections have nodelay.
///
/// # Errors
/// When the address is not valid.
pub fn client_with_nodelay(url: &str) -> Result<Client> {
    let info = url.into_connection_info()?;
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(Client::open(info.set_tcp_settings(tcp))?)
}

/// The channel of a name without braces.
pub(crate) fn channel(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}
