//! A password never shows: neither in an error, a builder or a client, nor in an event.

use std::error::Error as _;
use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use watchlock::{Client, Error};
use watchlock_support::eventually;
use watchlock_support::server::RedisServer;

use crate::common::{LONG, ms, soon, try_once};
use crate::works;

const SECRET: &str = "hunter2secret";

/// Every event of this process, as text.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

static LOG: LazyLock<Log> = LazyLock::new(|| {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(log.clone())
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    log
});

impl Log {
    /// From the first call on, it records all events.
    pub(crate) fn start() -> &'static Self {
        &LOG
    }

    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The whole text of an error, including its causes.
fn everything(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text} {error} {error:?}");
        cause = error.source();
    }
    text
}

fn assert_silent(what: &str, text: &str) {
    assert!(!text.contains(SECRET), "{what}: {text}");
}

#[tokio::test]
async fn a_bad_address_is_not_repeated() {
    let log = Log::start();
    for url in [
        format!("redis://:{SECRET}@host:notaport/"),
        format!("redis://{SECRET}:{SECRET}@/"),
        format!("{SECRET}://host/"),
        format!("redis://host/{SECRET}"),
        format!("redis://host/?protocol={SECRET}"),
        format!("http://:{SECRET}@host/"),
        format!("unix://{SECRET}?pass={SECRET}&db={SECRET}"),
        SECRET.to_owned(),
    ] {
        let builder = Client::builder(&url);
        assert_silent("builder", &format!("{builder:?} {builder:#?}"));
        let error = soon(builder.connect()).await.map(drop).unwrap_err();
        assert_silent(&url, &everything(&error));
    }
    assert_silent("events", &log.text());
}

#[tokio::test]
async fn a_server_that_refuses_learns_it_and_nobody_else() {
    let log = Log::start();
    let server = RedisServer::options().password("other").start();
    let full = RedisServer::start();
    full.cmd(&["CONFIG", "SET", "maxclients", "1"]).await;
    for url in [
        format!("redis://:{SECRET}@127.0.0.1:{}/", server.port()),
        format!(
            "redis://{SECRET}:{SECRET}@127.0.0.1:{}/?protocol=resp3",
            server.port()
        ),
        format!("redis://:{SECRET}@127.0.0.1:{}/", full.port()),
        format!("redis://:{SECRET}@127.0.0.1:1/"),
        format!("unix:///nowhere.sock?pass={SECRET}"),
    ] {
        let builder = Client::builder(&url).connect_timeout(ms(500));
        let error = soon(builder.connect()).await.map(drop).unwrap_err();
        assert_silent(&url, &everything(&error));
    }
    assert_silent("events", &log.text());
}

#[tokio::test]
async fn a_client_that_lives_through_an_outage_keeps_it() {
    let log = Log::start();
    let server = RedisServer::options().password(SECRET).start();
    let builder = Client::builder(&server.url())
        .watchdog_lease(ms(1_000))
        .command_timeout(ms(500));
    assert_silent("builder", &format!("{builder:#?}"));
    let client = builder.connect().await.unwrap();
    works(&client).await;
    let lock = client.get_lock("secret-keeper");
    let guard = lock.lock().await.unwrap();
    let owner = client.new_owner();
    assert_silent(
        "client",
        &format!(
            "{client:#?} {lock:#?} {guard:#?} {:#?} {owner:#?}",
            guard.hold()
        ),
    );
    assert_silent("lock of an owner", &format!("{:#?}", owner.get_lock("x")));
    server.kill();
    let error = try_once(&client, "other").await.unwrap_err();
    assert_silent("outage", &everything(&error));
    soon(guard.lost()).await;
    let error = guard.unlock().await.unwrap_err();
    assert_silent("loss", &everything(&error));
    server.restart();
    eventually("it is back", LONG, async || lock.is_locked().await.is_ok()).await;
    drop(client);
    let text = log.text();
    assert!(
        text.contains("hold lost"),
        "events are written down: {text}"
    );
    assert_silent("events", &text);
}
