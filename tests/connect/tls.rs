//! `rediss://`: certificates of a private authority that a client of the `redis` crate, or the system, trusts.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use redis::TlsCertificates;
use watchlock::{Client, ClientBuilder, ConfigError, Error, Secrets, Tls};
use watchlock_support::eventually;
use watchlock_support::server::{RedisServer, connection};

use crate::alone;
use crate::common::{LONG, clean, ms, soon, subscribed, try_once};
use crate::tls_server::TlsServer;
use crate::works;

fn trusting(tls: &TlsServer) -> redis::Client {
    // The application that builds the client chooses the provider; here it is the feature's.
    static PROVIDER: OnceLock<()> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let root_cert = pem(tls, "ca.crt");
    let trust = TlsCertificates {
        client_tls: None,
        root_cert: Some(root_cert),
    };
    redis::Client::build_with_tls(tls.url(), trust).expect("a client")
}

#[tokio::test]
async fn a_client_that_trusts_the_authority() {
    let tls = TlsServer::start().await;
    let client = Client::builder_from(&trusting(&tls)).connect();
    let client = soon(client).await.unwrap();
    works(&client).await;
    tls.server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
    drop(try_once(&client, "x").await.unwrap().expect("it is free"));
    clean(&tls.server).await;
}

#[tokio::test]
async fn a_pool_and_an_address_that_both_trust_it() {
    let tls = TlsServer::start().await;
    let plain = deadpool_redis::Config::from_url(tls.server.url());
    let pool = plain.create_pool(None).unwrap();
    let client = Client::builder_from(&trusting(&tls)).pool(pool).connect();
    works(&soon(client).await.unwrap()).await;
}

#[tokio::test]
async fn an_unknown_authority_is_an_error() {
    let tls = TlsServer::start().await;
    let client = Client::builder(&tls.url())
        .connect_timeout(ms(2_000))
        .connect();
    let error = soon(client).await.map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. } | Error::Refused { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_an_error() {
    let server = RedisServer::start();
    let url = format!("rediss://127.0.0.1:{}/", server.port());
    let client = Client::builder(&url).connect_timeout(ms(2_000)).connect();
    let error = soon(client).await.map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. } | Error::Refused { .. }),
        "{error:?}"
    );
}

/// A server behind TLS ends a plain connection without a word that Redis would say.
#[tokio::test]
async fn a_plain_connection_to_a_tls_port_says_so() {
    let tls = TlsServer::start().await;
    let plain = tls.url().replace("rediss://", "redis://");
    let connecting = Client::builder(&plain).connect_timeout(LONG).connect();
    let error = soon(connecting).await.map(drop).unwrap_err();
    let Error::Config(ConfigError::Unsupported { reason, .. }) = &error else {
        panic!("{error:?}");
    };
    assert!(reason.contains("rediss://"), "{reason}");
}

#[test]
fn the_certificates_of_the_system() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tls = runtime.block_on(TlsServer::start());
    let authority = tls.certificates.path("ca.crt");
    let (url, plain) = (tls.url(), tls.server.url());
    alone::run(
        "tls::an_address_is_enough",
        &[
            ("SSL_CERT_FILE", &authority),
            ("TLS_URL", Path::new(&url)),
            ("PLAIN_URL", Path::new(&plain)),
        ],
    );
}

/// The encrypted connections of this client have ended with it.
async fn only_ours_is_left() {
    let plain = std::env::var("PLAIN_URL").expect("run by the_certificates_of_the_system");
    let mut plain = connection(&plain).await;
    eventually("the client's connections end", LONG, async || {
        let mut list = redis::cmd("CLIENT");
        let list: String = list.arg("LIST").query_async(&mut plain).await.unwrap();
        // Ours, and that of the test that looks into the server.
        list.lines()
            .all(|line| !line.contains("cmd=evalsha") && !line.contains("cmd=hello"))
            && list.lines().count() <= 2
    })
    .await;
}

#[tokio::test]
#[ignore = "needs its own environment; run by the_certificates_of_the_system"]
async fn an_address_is_enough() {
    let url = std::env::var("TLS_URL").expect("run by the_certificates_of_the_system");
    works(&soon(Client::connect(&url)).await.unwrap()).await;
    let chosen = rustls::crypto::CryptoProvider::get_default();
    assert!(chosen.is_none(), "that is the application's to choose");
    only_ours_is_left().await;
    let resp3 = format!("{url}?protocol=resp3");
    works(&soon(Client::connect(&resp3)).await.unwrap()).await;
    let secret = url.replace("rediss://", "rediss://:some@");
    let error = soon(Client::connect(&secret)).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}

/// A client by an address, with certificates of its own.
fn with(tls: &TlsServer, certificates: Tls) -> ClientBuilder {
    let builder = Client::builder(&tls.url()).connect_timeout(ms(2_000));
    builder.tls(certificates).command_timeout(ms(5_000))
}

fn pem(tls: &TlsServer, file: &str) -> Vec<u8> {
    tls.certificates.pem(file)
}

#[tokio::test]
async fn an_authority_that_is_named_is_trusted_and_no_other() {
    let (tls, other) = (TlsServer::start().await, TlsServer::start().await);
    let trusts = Tls::new().ca_pem(pem(&tls, "ca.crt"));
    let client = soon(with(&tls, trusts.clone()).connect()).await.unwrap();
    works(&client).await;
    let error = soon(with(&other, trusts).connect()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// The server's certificate also serves for a client: both are from the same authority.
#[tokio::test]
async fn a_server_that_asks_for_certificates_gets_them_on_every_connection() {
    let tls = TlsServer::start().await;
    tls.server
        .cmd(&["CONFIG", "SET", "tls-auth-clients", "yes"])
        .await;
    let trusts = Tls::new().ca_pem(pem(&tls, "ca.crt"));
    let without = soon(with(&tls, trusts.clone()).connect()).await;
    assert!(without.is_err());
    let shows = trusts.client_pem(pem(&tls, "server.crt"), pem(&tls, "server.key"));
    let client = soon(with(&tls, shows.clone()).connect()).await.unwrap();
    let other = soon(with(&tls, shows).connect()).await.unwrap();
    // A subscription, too.
    let held = try_once(&client, "x").await.unwrap().unwrap();
    let waiter = tokio::spawn({
        let lock = other.get_lock("x");
        async move { lock.lock().await }
    });
    subscribed(&tls.server, "x").await;
    held.unlock().await.unwrap();
    soon(waiter).await.unwrap().unwrap().unlock().await.unwrap();
}

#[tokio::test]
#[ignore = "needs --features tls,redis/tls-rustls-insecure: else the redis crate refuses the address"]
async fn a_client_that_trusts_blindly_shows_its_certificate_all_the_same() {
    let tls = TlsServer::start().await;
    tls.server
        .cmd(&["CONFIG", "SET", "tls-auth-clients", "yes"])
        .await;
    // It chooses the provider.
    drop(trusting(&tls));
    let shows = Tls::new().client_pem(pem(&tls, "server.crt"), pem(&tls, "server.key"));
    let builder = Client::builder(format!("{}#insecure", tls.url())).connect_timeout(ms(2_000));
    let client = soon(builder.tls(shows).connect()).await.unwrap();
    works(&client).await;
}

#[tokio::test]
async fn a_certificate_that_changes_is_shown_at_the_next_connect() {
    let tls = TlsServer::start().await;
    tls.server
        .cmd(&["CONFIG", "SET", "tls-auth-clients", "yes"])
        .await;
    let trusts = Tls::new().ca_pem(pem(&tls, "ca.crt"));
    let shows = trusts
        .clone()
        .client_pem(pem(&tls, "server.crt"), pem(&tls, "server.key"));
    let shown = Arc::new(Mutex::new(shows.clone()));
    let builder = Client::builder(&tls.url()).connect_timeout(ms(2_000));
    let builder = builder.secrets({
        let shown = Arc::clone(&shown);
        move || Secrets::new().tls(shown.lock().clone())
    });
    let client = soon(builder.connect()).await.unwrap();
    let held = try_once(&client, "x").await.unwrap().unwrap();
    // The next text is not a certificate.
    *shown.lock() = trusts;
    eventually("it is noticed", LONG, async || {
        // Again, because one that was being made is not killed.
        tls.server.cmd(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        try_once(&client, "y").await.is_err()
    })
    .await;
    *shown.lock() = shows;
    eventually("it is good again", LONG, async || {
        held.verify().await.is_ok()
    })
    .await;
    held.unlock().await.unwrap();
}

#[tokio::test]
async fn texts_that_are_no_certificates_are_refused_before_anything_is_sent() {
    let tls = TlsServer::start().await;
    let (certificate, key) = (pem(&tls, "server.crt"), pem(&tls, "server.key"));
    for bad in [
        Tls::new().ca_pem("none"),
        Tls::new().ca_pem(&key),
        Tls::new().client_pem(&certificate, "none"),
        Tls::new().client_pem("none", &key),
        Tls::new().client_pem(pem(&tls, "ca.crt"), &key),
    ] {
        let error = with(&tls, bad).connect_lazy().unwrap_err();
        let invalid = matches!(error, Error::Config(ConfigError::InvalidTls { .. }));
        assert!(invalid, "{error:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn encrypted_connections_have_keepalive() {
    let tls = TlsServer::start().await;
    let trusts = Tls::new().ca_pem(pem(&tls, "ca.crt"));
    let client = soon(with(&tls, trusts).connect()).await.unwrap();
    crate::sockets::have_keepalive(&client, &tls.server).await;
}
