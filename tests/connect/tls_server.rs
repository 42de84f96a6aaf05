//! A server that speaks TLS, with certificates of an own authority.
#![cfg_attr(
    not(feature = "tls"),
    allow(dead_code, reason = "more of it is used with TLS")
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use watchlock_support::server::RedisServer;

const AUTHORITY: &str = "[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=ca\n\
    [dn]\nCN=watchlock test authority\n[ca]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n";
const SERVER: &str = "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=localhost\n\
    [server]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";

/// An authority and a server's certificate, in a folder of the server's.
pub(crate) struct Certificates {
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

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }
}

/// A server that takes both plain and encrypted connections.
pub(crate) struct TlsServer {
    pub(crate) server: RedisServer,
    port: u16,
    pub(crate) certificates: Certificates,
}

impl TlsServer {
    /// The certificates are made once the server has a folder; then its TLS port is opened.
    pub(crate) async fn start() -> Self {
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

    pub(crate) fn url(&self) -> String {
        format!("rediss://localhost:{}/", self.port)
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound listener").port()
}
