//! A server that speaks TLS, with certificates of a private authority.
#![cfg_attr(
    not(feature = "tls"),
    allow(dead_code, reason = "more of it is used with TLS")
)]

use watchlock_support::server::RedisServer;
use watchlock_support::tls::Certificates;

/// A server that takes both plain and encrypted connections.
pub(crate) struct TlsServer {
    pub(crate) server: RedisServer,
    port: u16,
    pub(crate) certificates: Certificates,
}

impl TlsServer {
    pub(crate) async fn start() -> Self {
        let server = RedisServer::start();
        let certificates = Certificates::make();
        let lines = certificates.lines();
        for _ in 0..20 {
            let port = free_port();
            let number = port.to_string();
            let mut command = vec!["CONFIG", "SET"];
            command.extend(lines.iter().flat_map(|(key, value)| [*key, value.as_str()]));
            command.extend(["tls-auth-clients", "no", "tls-port", &number]);
            let opened = server.try_cmd(&command).await;
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
