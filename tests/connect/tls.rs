//! `rediss://`: certificates of an own authority, trusted by a client of the `redis` crate or by the system.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use redis::TlsCertificates;
use watchlock::{Client, Error};
use watchlock_support::server::RedisServer;

use crate::alone;
use crate::common::{clean, ms, soon, try_once};
use crate::works;

const AUTHORITY: &str = "[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=ca\n\
    [dn]\nCN=watchlock test authority\n[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n";
const SERVER: &str = "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=localhost\n\
    [server]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";

/// An authority and a server's certificate, in a folder of the server's.
struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    fn make(folder: &Path) -> Self {
        std::fs::write(folder.join("ca.conf"), AUTHORITY).expect("a file");
        std::fs::write(folder.join("server.conf"), SERVER).expect("a file");
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        for line in [
            format!("req -x509 -config ca.conf {key} -keyout ca.key -out ca.crt -days 2"),
            format!("req -config server.conf {key} -keyout server.key -out server.csr"),
            "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 2 -out server.crt \
             -extfile server.conf -extensions server"
                .to_owned(),
        ] {
            let output = Command::new("openssl")
                .args(line.split_whitespace())
                .current_dir(folder)
                .output()
                .expect("openssl is installed");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Self {
            folder: folder.to_owned(),
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }
}

/// A server that takes both plain and encrypted connections.
struct TlsServer {
    server: RedisServer,
    port: u16,
    certificates: Certificates,
}

impl TlsServer {
    /// The certificates are made once the server has a folder; then its TLS port is opened.
    async fn start() -> Self {
        let server = RedisServer::start();
        let certificates = Certificates::make(server.dir());
        let path = |file| certificates.path(file).display().to_string();
        let (cert, key, ca) = (path("server.crt"), path("server.key"), path("ca.crt"));
        for _ in 0..20 {
            let port = free_port();
            let opened = server
                .try_cmd(&[
                    "CONFIG",
                    "SET",
                    "tls-cert-file",
                    &cert,
                    "tls-key-file",
                    &key,
                    "tls-ca-cert-file",
                    &ca,
                    "tls-auth-clients",
                    "no",
                    "tls-port",
                    &port.to_string(),
                ])
                .await;
            if opened.is_ok() {
                return Self {
                    server,
                    port,
                    certificates,
                };
            }
        }
        panic!("no port for TLS:\n{}", server.log());
    }

    fn url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }

    fn trusting(&self) -> redis::Client {
        // Whoever builds the client chooses the provider; here it is what the feature brings.
        static PROVIDER: OnceLock<()> = OnceLock::new();
        PROVIDER.get_or_init(|| {
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let root_cert = std::fs::read(self.certificates.path("ca.crt")).expect("the certificate");
        let trust = TlsCertificates {
            client_tls: None,
            root_cert: Some(root_cert),
        };
        redis::Client::build_with_tls(self.url(), trust).expect("a client")
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound listener").port()
}

#[tokio::test]
async fn a_client_that_trusts_the_authority() {
    let tls = TlsServer::start().await;
    let client = Client::builder("").redis_client(tls.trusting()).connect();
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
    let client = Client::builder("")
        .redis_client(tls.trusting())
        .pool(pool)
        .connect();
    works(&soon(client).await.unwrap()).await;
}

#[tokio::test]
async fn an_authority_that_nobody_knows_is_an_error() {
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

#[test]
fn the_certificates_of_the_system() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tls = runtime.block_on(TlsServer::start());
    let authority = tls.certificates.path("ca.crt");
    let url = tls.url();
    alone::run(
        "tls::an_address_is_enough",
        &[("SSL_CERT_FILE", &authority), ("TLS_URL", Path::new(&url))],
    );
}

#[tokio::test]
#[ignore = "needs its own environment; run by the_certificates_of_the_system"]
async fn an_address_is_enough() {
    let url = std::env::var("TLS_URL").expect("run by the_certificates_of_the_system");
    works(&soon(Client::connect(&url)).await.unwrap()).await;
    let resp3 = format!("{url}?protocol=resp3");
    works(&soon(Client::connect(&resp3)).await.unwrap()).await;
    let secret = url.replace("rediss://", "rediss://:some@");
    let error = soon(Client::connect(&secret)).await.map(drop).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error:?}");
}
