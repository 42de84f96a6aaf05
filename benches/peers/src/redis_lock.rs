//! The crate `redis-lock`: SET NX PX and EVAL for unlock, polling, no renewal.
//!
//! `lock_across` is what its documentation recommends for one name; its other lock scans the whole
//! keyspace at each release.

use std::sync::Arc;
use std::time::Duration;

use redis_027::aio::MultiplexedConnection;
use redis_lock::{LockAcrossOptions, lock_across};
use tokio::sync::Mutex;

use watchlock_compare::{LockUnderTest, Result, Setup};

#[derive(Clone)]
pub(crate) struct RedisLock {
    client: redis_027::Client,
    connection: Arc<Mutex<MultiplexedConnection>>,
    setup: Setup,
}

async fn open(client: &redis_027::Client) -> Result<Arc<Mutex<MultiplexedConnection>>> {
    let connection = client.get_multiplexed_async_connection().await?;
    Ok(Arc::new(Mutex::new(connection)))
}

fn options(setup: Setup) -> LockAcrossOptions {
    match setup {
        Setup::Default => LockAcrossOptions::default(),
        Setup::Tuned => LockAcrossOptions {
            ttl: Duration::from_secs(30),
            retry: Duration::from_millis(1),
            duration: Duration::from_secs(3600),
        },
    }
}

impl LockUnderTest for RedisLock {
    async fn connect(url: &str, setup: Setup) -> Result<Self> {
        let client = redis_027::Client::open(url)?;
        let connection = open(&client).await?;
        Ok(Self {
            client,
            connection,
            setup,
        })
    }

    async fn for_task(&self) -> Result<Self> {
        let mut own = self.clone();
        if self.setup == Setup::Tuned {
            own.connection = open(&self.client).await?;
        }
        Ok(own)
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let connections = [Arc::clone(&self.connection)];
        let run = lock_across(&connections, name, body, options(self.setup));
        // Its error holds a panic payload that is not `Sync`.
        run.await.map_err(|error| error.to_string().into())
    }
}
