//! `connect` refuses servers that cannot be used, and does not mistake one answer of a server for another.

use std::error::Error as _;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use watchlock::{Client, ConfigError, Error};
use watchlock_support::server::RedisServer;

use crate::common::{ms, soon, try_once};
use crate::fake::{Say, serve};

const SENTINEL: &str = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n\
    $5\r\nproto\r\n:2\r\n$2\r\nid\r\n:3\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n\
    $4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n";

async fn refusal(url: &str) -> Error {
    let connecting = Client::builder(url).connect_timeout(ms(2_000)).connect();
    soon(connecting).await.map(drop).expect_err("it is unfit")
}

fn unsupported(error: &Error) -> Option<&'static str> {
    match error {
        Error::Config(ConfigError::Unsupported { reason, .. }) => Some(reason),
        _ => None,
    }
}

#[tokio::test]
async fn a_sentinel_is_refused_at_connect() {
    let url = serve(|name| match name {
        "HELLO" => Say::Now(SENTINEL),
        "CLIENT" => Say::Now("+OK\r\n"),
        _ => Say::Now("-ERR unknown command\r\n"),
    })
    .await;
    let error = refusal(&url).await;
    let reason = unsupported(&error).unwrap_or_else(|| panic!("{error:?}"));
    assert!(reason.contains("sentinel"), "{reason}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn a_replica_is_refused_at_connect() {
    let master = RedisServer::start();
    let replica = RedisServer::options().replica_of(&master).start();
    for url in [replica.url(), format!("{}?protocol=resp3", replica.url())] {
        let error = refusal(&url).await;
        let reason = unsupported(&error).unwrap_or_else(|| panic!("{error:?}"));
        assert!(reason.contains("replica"), "{reason}");
    }
}

/// Redis says this to connections from outside while no password is set, and hangs up.
#[tokio::test]
async fn a_server_in_protected_mode_denies() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let said =
                "-DENIED Redis is running in protected mode because protected mode is enabled\r\n";
            let _ = stream.write_all(said.as_bytes()).await;
            // Hanging up with unread data would be a reset, which may overtake the answer.
            let mut rest = Vec::new();
            let _ = stream.shutdown().await;
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        }
    });
    for path in ["", "3", "?protocol=resp3"] {
        let error = refusal(&format!("redis://{address}/{path}")).await;
        assert!(matches!(error, Error::Denied { .. }), "{path:?}: {error:?}");
    }
}

/// A server that does not know a command repeats its arguments in the error.
#[tokio::test]
async fn a_name_in_an_errors_text_changes_nothing_and_no_hold_id_is_shown() {
    let options = RedisServer::options();
    let server = options.config("rename-command", "EVALSHA \"\"").start();
    let client = Client::connect(&server.url()).await.unwrap();
    let names = [
        "plain",
        "a: NOPERM b",
        "a -LOADING b",
        "a: READONLY b",
        "max number of clients",
        "this user has no permissions",
    ];
    for name in names {
        let error = soon(try_once(&client, name)).await.unwrap_err();
        let Error::Refused { transient, .. } = &error else {
            panic!("{name:?}: {error:?}");
        };
        assert!(!transient, "{name:?}: it will not know it later");
        let cause = error.source().expect("what the server said");
        let said = format!("{error} {cause} {cause:?}");
        assert!(said.contains("unknown command"), "{said}");
        assert!(!said.contains(&client.id().to_string()), "{said}");
    }
}
