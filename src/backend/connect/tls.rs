//! TLS for `rediss://` addresses: rustls with the certificates of the system. The provider of cryptography is the
//! process's if the application installed one, else ring, which is not installed for the process.

use std::io;
use std::sync::Arc;

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisResult, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::socket;
use crate::error::ConfigError;
use crate::host::HostStream;
use crate::log::log;
use crate::secrets::Tls;

/// How to encrypt a connection. None for an address without encryption, and for one without verification of certificates,
/// which is left to redis-rs.
pub(super) fn connector(
    address: &ConnectionAddr,
    tls: &Tls,
) -> Result<Option<TlsConnector>, ConfigError> {
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
    // A provider without a safe TLS version is left to redis-rs, which reports the error.
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
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| bad("the client's key"))?;
            let identity = trusting.with_client_auth_cert(chain(certificates)?, key);
            identity.map_err(|_| bad("the client's certificate, or it is not the key's"))?
        }
    };
    Ok(Some(Arc::new(config).into()))
}

/// A client that leaves TLS to redis-rs, with these certificates.
pub(super) fn left_to_redis_rs(
    info: ConnectionInfo,
    tls: &Tls,
) -> Result<redis::Client, ConfigError> {
    let client_tls = tls.client.as_ref().map(|(certificates, key)| {
        let (client_cert, client_key) = (certificates.to_vec(), key.to_vec());
        ClientTlsConfig {
            client_cert,
            client_key,
        }
    });
    let certificates = TlsCertificates {
        client_tls,
        root_cert: tls.ca.as_ref().map(|pem| pem.to_vec()),
    };
    redis::Client::build_with_tls(info, certificates).map_err(|_| bad("a certificate"))
}

pub(super) async fn connect(
    connector: &TlsConnector,
    info: &ConnectionInfo,
) -> RedisResult<TlsStream<HostStream>> {
    let ConnectionAddr::TcpTls { host, port, .. } = info.addr() else {
        return Err(io::Error::from(io::ErrorKind::Unsupported).into());
    };
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    let stream = socket::tcp(host, *port, info.tcp_settings()).await?;
    Ok(connector.connect(name, stream).await?)
}

/// Fails when a certificate or key cannot be read.
pub(crate) fn check_tls(tls: &Tls) -> Result<(), ConfigError> {
    let anywhere = ConnectionAddr::TcpTls {
        host: "localhost".to_owned(),
        port: 0,
        insecure: false,
        tls_params: None,
    };
    connector(&anywhere, tls).map(drop)
}

/// The certificate authorities in a PEM text.
fn of(pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in chain(pem)? {
        store
            .add(certificate)
            .map_err(|_| bad("an authority's certificate"))?;
    }
    Ok(store)
}

/// The certificates in a PEM text; fails when there is none.
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

/// The certificates of the system that can be read: one broken file must not cost the others. Without any certificate
/// each connection fails.
fn of_the_system() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        log(|| {
            tracing::warn!("no system certificate can be read: rediss:// connections will fail");
        });
    }
    store
}
