//! TLS for addresses with `rediss://`: rustls, the certificates of the system, and a provider of cryptography that
//! is used here alone, unless the application has chosen one for its process.

use std::io;
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, RedisResult};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket;
use crate::error::ConfigError;
use crate::secrets::Tls;

/// How to encrypt a connection.
#[derive(Clone)]
pub(crate) struct Encryption {
    connector: TlsConnector,
}

impl Encryption {
    /// For an encrypted address; none for others, and for one that is to be trusted blindly, which only redis-rs
    /// does, if the application asks it to.
    pub(crate) fn for_address(
        address: &ConnectionAddr,
        tls: &Tls,
    ) -> Result<Option<Self>, ConfigError> {
        let ConnectionAddr::TcpTls {
            insecure: false, ..
        } = address
        else {
            return Ok(None);
        };
        let provider = CryptoProvider::get_default()
            .cloned()
            .unwrap_or_else(|| ring::default_provider().into());
        let versions =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        // A provider that knows no version of TLS is left to redis-rs, which says what is wrong with it.
        let Ok(versions) = versions else {
            return Ok(None);
        };
        let trusting = versions.with_root_certificates(match &tls.ca {
            None => of_the_system(),
            Some(pem) => of(pem)?,
        });
        let config = match &tls.client {
            None => trusting.with_no_client_auth(),
            Some((certificates, key)) => {
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|_| bad("the client's key"))?;
                let identity = trusting.with_client_auth_cert(chain(certificates)?, key);
                identity.map_err(|_| bad("the client's certificate, or it is not the key's"))?
            }
        };
        Ok(Some(Self {
            connector: Arc::new(config).into(),
        }))
    }

    pub(crate) async fn connect(&self, info: &ConnectionInfo) -> RedisResult<TlsStream<TcpStream>> {
        let ConnectionAddr::TcpTls { host, port, .. } = info.addr() else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let stream = socket::tcp(host, *port, info.tcp_settings()).await?;
        Ok(self.connector.connect(name, stream).await?)
    }
}

/// Whether all that `tls` says can be read.
pub(crate) fn check(tls: &Tls) -> Result<(), ConfigError> {
    let anywhere = ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 0,
        insecure: false,
        tls_params: None,
    };
    Encryption::for_address(&anywhere, tls).map(drop)
}

/// The authorities of a text.
fn of(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in chain(pem)? {
        store
            .add(certificate)
            .map_err(|_| bad("an authority's certificate"))?;
    }
    Ok(store)
}

/// The certificates of a text; at least one.
fn chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|_| bad("a certificate"))?;
    if found.is_empty() {
        return Err(bad("a certificate"));
    }
    Ok(found)
}

fn bad(what: &'static str) -> ConfigError {
    ConfigError::InvalidTls { what }
}

/// Those that could be read: a broken one must not cost the others. Without any no server is trusted, and
/// connecting says so.
fn of_the_system() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        tracing::warn!(
            "no certificate of the system can be read: no rediss:// server will be trusted"
        );
    }
    store
}
