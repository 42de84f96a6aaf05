//! The floors of the other kinds of lock: their own commands, raw, on the same kind of connection, without a library.

use std::marker::PhantomData;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Value};
use uuid::Uuid;

use super::script::{self, LEASE_MS};
use super::{LockUnderTest, Setup};
use crate::Result;

/// The commands of a kind for a lock that nobody else wants.
pub(crate) trait Commands: Send + Sync + 'static {
    /// The scripts that they call.
    const SCRIPTS: &'static [&'static str];

    fn acquire(call: &Calls, name: &str) -> Cmd;
    fn release(call: &Calls, name: &str) -> Cmd;
    /// Whether the answer to an acquire says that it got the lock.
    fn got(answer: &Value) -> bool;
}

/// The arguments of the commands.
pub(crate) struct Calls {
    digests: Vec<String>,
    hold_id: String,
}

impl Calls {
    fn script(&self, number: usize, keys: &[&str]) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.digests[number]).arg(keys.len()).arg(keys);
        call
    }
}

/// Raw commands of the kind `K`.
pub(crate) struct Raw<K> {
    connection: MultiplexedConnection,
    calls: Arc<Calls>,
    of: PhantomData<fn() -> K>,
}

impl<K> Clone for Raw<K> {
    fn clone(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            calls: Arc::clone(&self.calls),
            of: PhantomData,
        }
    }
}

impl<K: Commands> LockUnderTest for Raw<K> {
    async fn connect(url: &str, _setup: Setup) -> Result<Self> {
        let mut loading = Client::open(url)?.get_connection()?;
        let digests = K::SCRIPTS.iter().map(|script| {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(script);
            load.query(&mut loading)
        });
        let digests = digests.collect::<redis::RedisResult<_>>()?;
        Ok(Self {
            connection: script::connect(url).await?,
            calls: Arc::new(Calls {
                digests,
                hold_id: format!("{}:1", Uuid::new_v4()),
            }),
            of: PhantomData,
        })
    }

    async fn section<B>(&self, name: &str, body: B) -> Result<()>
    where
        B: Future<Output = ()> + Send + 'static,
    {
        let mut connection = self.connection.clone();
        let acquire = K::acquire(&self.calls, name);
        let answer = acquire.query_async(&mut connection).await?;
        if !K::got(&answer) {
            return Err(format!("the floor found {name} taken: {answer:?}").into());
        }
        body.await;
        let release = K::release(&self.calls, name);
        Ok(release.exec_async(&mut connection).await?)
    }
}

/// `lua/fenced`, and the plain lock's release.
pub(crate) enum Fenced {}

impl Commands for Fenced {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/fenced/acquire.lua"),
        script::RELEASE,
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let token = format!("redisson_lock_token:{{{name}}}");
        let mut acquire = call.script(0, &[name, &token]);
        acquire.arg(&call.hold_id).arg(LEASE_MS).arg(0);
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        let mut release = call.script(1, &[name]);
        release.arg(&call.hold_id).arg(0).arg(script::channel(name));
        release
    }

    fn got(answer: &Value) -> bool {
        matches!(answer, Value::Array(token) if token.first() == Some(&Value::Int(-10)))
    }
}

/// The scripts of `lua/simple`.
pub(crate) enum Simple {}

impl Commands for Simple {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/simple/acquire.lua"),
        include_str!("../../../../lua/simple/release.lua"),
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        Spin::acquire(call, name)
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        Fenced::release(call, name)
    }

    fn got(answer: &Value) -> bool {
        Spin::got(answer)
    }
}

/// The plain lock's scripts.
pub(crate) enum Spin {}

impl Commands for Spin {
    const SCRIPTS: &'static [&'static str] = &[script::ACQUIRE, script::RELEASE];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let mut acquire = call.script(0, &[name]);
        acquire.arg(&call.hold_id).arg(LEASE_MS);
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        Fenced::release(call, name)
    }

    fn got(answer: &Value) -> bool {
        *answer == Value::Int(-2)
    }
}

/// `lua/fair`.
pub(crate) enum Fair {}

/// The fair lock's keys: the lock, the queue, the scores and the waiters.
fn fair_keys(name: &str) -> [String; 4] {
    [
        name.to_owned(),
        format!("redisson_lock_queue:{{{name}}}"),
        format!("redisson_lock_timeout:{{{name}}}"),
        format!("watchlock_waiters:{{{name}}}"),
    ]
}

/// How long a waiter of the fair lock keeps its place.
const FAIR_WAIT_MS: u64 = 300_000;

impl Fair {
    fn call(call: &Calls, number: usize, name: &str) -> Cmd {
        let keys = fair_keys(name);
        let keys: Vec<_> = keys.iter().map(String::as_str).collect();
        let mut command = call.script(number, &keys);
        command.arg(FAIR_WAIT_MS).arg(script::channel(name));
        command.arg(&call.hold_id);
        command
    }
}

impl Commands for Fair {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/fair/acquire.lua"),
        include_str!("../../../../lua/fair/release.lua"),
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let mut acquire = Self::call(call, 0, name);
        acquire.arg(LEASE_MS).arg(0);
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        let mut release = Self::call(call, 1, name);
        release.arg(0);
        release
    }

    fn got(answer: &Value) -> bool {
        *answer == Value::Int(-2)
    }
}

/// `lua/rw`, to read.
pub(crate) enum Read {}

/// `lua/rw`, to write.
pub(crate) enum Write {}

const RW_RELEASE: &str = include_str!("../../../../lua/rw/release.lua");

fn writers(name: &str) -> String {
    format!("watchlock_writers:{{{name}}}")
}

/// Redisson's key for a read hold's lease.
fn timeout(call: &Calls, name: &str) -> String {
    format!("{{{name}}}:{}:rwlock_timeout:1", call.hold_id)
}

fn rw_release(call: &Calls, name: &str) -> Cmd {
    let channel = format!("redisson_rwlock:{{{name}}}");
    let mut release = call.script(1, &[name, &timeout(call, name), &channel]);
    release.arg(&call.hold_id);
    release
}

impl Commands for Read {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/rw/read_acquire.lua"),
        RW_RELEASE,
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let keys = [name, &timeout(call, name), &writers(name)];
        let mut acquire = call.script(0, &keys);
        acquire.arg(&call.hold_id).arg(LEASE_MS);
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        rw_release(call, name)
    }

    fn got(answer: &Value) -> bool {
        *answer == Value::Int(-2)
    }
}

impl Commands for Write {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/rw/write_acquire.lua"),
        RW_RELEASE,
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let mut acquire = call.script(0, &[name, &writers(name)]);
        acquire.arg(&call.hold_id).arg(LEASE_MS).arg(0);
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        rw_release(call, name)
    }

    fn got(answer: &Value) -> bool {
        *answer == Value::Int(-2)
    }
}

/// `lua/permits`, for one of [`PERMITS`](super::PERMITS).
pub(crate) enum Permits {}

/// The channel on which waiters for permits hear of them.
fn permits_channel(name: &str) -> String {
    format!("redisson_sc:{{{name}}}")
}

fn taken(name: &str) -> String {
    format!("watchlock_permits:{{{name}}}")
}

impl Commands for Permits {
    const SCRIPTS: &'static [&'static str] = &[
        include_str!("../../../../lua/permits/acquire.lua"),
        include_str!("../../../../lua/permits/release.lua"),
    ];

    fn acquire(call: &Calls, name: &str) -> Cmd {
        let needs = format!("watchlock_needs:{{{name}}}");
        let mut acquire = call.script(0, &[name, &taken(name), &needs]);
        acquire.arg(LEASE_MS).arg(super::PERMITS);
        acquire.arg(&call.hold_id).arg(permits_channel(name));
        acquire.arg(1).arg(1).arg("0123456789abcdef");
        acquire
    }

    fn release(call: &Calls, name: &str) -> Cmd {
        let mut release = call.script(1, &[name, &taken(name)]);
        release.arg(permits_channel(name)).arg("given").arg(1);
        release.arg("0123456789abcdef");
        release
    }

    fn got(answer: &Value) -> bool {
        matches!(answer, Value::Array(taken) if taken.first() == Some(&Value::Int(-2)))
    }
}
