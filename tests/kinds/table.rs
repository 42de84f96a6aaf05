//! The kinds of lock: how each is made, what it writes to Redis, and where it differs.

use futures_util::future::LocalBoxFuture;
use watchlock::{Client, Error, Holder, Lock, LockGuard, Owner};

/// A body that runs under a lock.
pub(crate) type Body<'a> = Box<dyn FnOnce(&LockGuard) -> LocalBoxFuture<'a, ()> + 'a>;
/// `run` and `try_run` of a handle of this client.
type Run = for<'a> fn(&'a Client, &'a str, Body<'a>) -> LocalBoxFuture<'a, Result<(), Error>>;

/// A question about the lock of this name.
type Ask<T> = for<'a> fn(&'a Client, &'a str) -> LocalBoxFuture<'a, Result<T, Error>>;

/// Boxes a closure as a [`Body`].
pub(crate) fn body<'a, F>(body: impl FnOnce(&LockGuard) -> F + 'a) -> Body<'a>
where
    F: Future<Output = ()> + 'a,
{
    Box::new(|guard| Box::pin(body(guard)))
}

/// Why a kind differs from the others.
#[derive(Clone, Copy)]
pub(crate) struct Because(pub(crate) &'static str);

/// How handles are made.
pub(crate) struct Made {
    pub(crate) handle: fn(&Client, &str) -> Box<dyn Lock>,
    pub(crate) owned: fn(&Owner, &str) -> Box<dyn Lock>,
    pub(crate) run: Run,
    /// Waits for a minute, for a lease of a minute.
    pub(crate) try_run: Run,
    pub(crate) holders: Ask<Vec<Holder>>,
    pub(crate) waiters: Ask<u64>,
}

/// The [`Made`] of a kind, from how a client or an owner makes its handle.
macro_rules! made {
    (|$of:ident, $name:ident| $get:expr) => {
        Made {
            handle: |$of, $name| Box::new($get),
            owned: |$of, $name| Box::new($get),
            run: |$of, $name, body| {
                Box::pin(async move {
                    let lock = $get;
                    lock.run(async |guard| body(guard).await).await
                })
            },
            try_run: |$of, $name, body| {
                let minute = std::time::Duration::from_secs(60);
                Box::pin(async move {
                    let lock = $get;
                    let ran = lock.try_run(minute, minute, async |guard| body(guard).await);
                    ran.await.map(|ran| ran.expect("not busy for a minute"))
                })
            },
            holders: |$of, $name| Box::pin(async move { $get.holders().await }),
            waiters: |$of, $name| Box::pin(async move { $get.waiters().await }),
        }
    };
}

/// A Redis command with `KEY` for the lock's name and `TTL` for a time in ms.
pub(crate) type Write = &'static [&'static str];

/// The number of commands per operation when nothing interferes.
pub(crate) struct Costs {
    pub(crate) lock: u64,
    pub(crate) unlock: u64,
    /// Entering a hold again.
    pub(crate) enter: u64,
    /// Giving back a level that is not the last.
    pub(crate) leave: u64,
    pub(crate) extend: u64,
    pub(crate) verify: u64,
    /// One try for a lock that another client has.
    pub(crate) busy: u64,
    /// A section, when tasks of one client wait in line.
    pub(crate) in_line: u64,
    /// Commands without which a free lock cannot be taken, including those inside scripts: at least so many.
    pub(crate) needed: u64,
    /// What one renewal sends at most.
    pub(crate) renewal_bytes: u64,
}

/// A kind of lock.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) made: Made,
    /// A lock of the same name that excludes this one, and that excludes itself.
    pub(crate) rival: fn(&Client, &str) -> Box<dyn Lock>,
    /// Writes somebody else's hold, which excludes this kind's, to Redis.
    pub(crate) stranger: &'static [Write],
    /// Each writes something that is no lock of this kind.
    pub(crate) foreign: &'static [Write],
    /// The prefixes of the keys that stay when the lock is free.
    pub(crate) remains: &'static [&'static str],
    /// Its name in the worker process.
    pub(crate) worker: &'static str,
    /// The prefix of the files of its scripts, under `lua/`.
    pub(crate) lua: &'static [&'static str],
    /// Those of its scripts that no scenario here reaches, and why.
    pub(crate) elsewhere: &'static [(&'static str, Because)],
    pub(crate) costs: Costs,

    /// Its holds do not exclude each other.
    pub(crate) shared: Option<Because>,
    /// Its waiters listen to no channel.
    pub(crate) deaf: Option<Because>,
    /// Redis does not have the number of levels.
    pub(crate) local_levels: Option<Because>,
    /// A fixed level ends with its own lease, though others keep the hold.
    pub(crate) levels_end_alone: Option<Because>,
    /// The client relies on no more than the watchdog's lease, however long a fixed one is.
    pub(crate) assured: Option<Because>,
}

impl Kind {
    /// Whether it differs; the test's output says why.
    pub(crate) fn differs(&self, how: Option<Because>) -> bool {
        if let Some(Because(why)) = how {
            println!("{}: {why}", self.name);
        }
        how.is_some()
    }
}

const HASH_STRANGER: &[Write] = &[
    &["HSET", "KEY", "stranger:1", "1"],
    &["PEXPIRE", "KEY", "TTL"],
];

pub(crate) const PLAIN: Kind = Kind {
    name: "plain",
    made: made!(|of, name| of.get_lock(name)),
    rival: |client, name| Box::new(client.get_lock(name)),
    stranger: HASH_STRANGER,
    foreign: &[
        &["SET", "KEY", "x"],
        &["LPUSH", "KEY", "x"],
        &["SADD", "KEY", "x"],
        &["ZADD", "KEY", "1", "x"],
        &["XADD", "KEY", "*", "a", "b"],
        &["HSET", "KEY", "mode", "write"],
        &["HSET", "KEY", "mode", "1"],
        &["HSET", "KEY", "name", "Ada"],
        &["HSET", "KEY", "mode", "read", "a:1", "1"],
        &["HSET", "KEY", "mode", "write", "a:1:write", "1"],
        &["HSET", "KEY", "a:1", "1", "b:2", "1"],
    ],
    remains: &[],
    worker: "lock",
    lua: &["lock/"],
    elsewhere: &[(
        "lock/probe.lua",
        Because("`connect` sends it, as tests/connect shows"),
    )],
    costs: Costs {
        lock: 1,
        unlock: 1,
        enter: 1,
        leave: 1,
        extend: 1,
        verify: 1,
        busy: 1,
        in_line: 2,
        needed: 2,
        renewal_bytes: 160,
    },
    shared: None,
    deaf: None,
    local_levels: None,
    levels_end_alone: None,
    assured: None,
};

/// The plain lock with a number for each hold.
pub(crate) const FENCED: Kind = Kind {
    name: "fenced",
    made: made!(|of, name| of.get_fenced_lock(name)),
    rival: |client, name| Box::new(client.get_fenced_lock(name)),
    // The token's key, which has to outlive the hold.
    remains: &["redisson_lock_token:"],
    worker: "fenced",
    lua: &[
        "fenced/",
        "lock/force_release",
        "lock/release",
        "lock/verify",
    ],
    elsewhere: &[
        (
            "fenced/reenter.lua",
            Because("for a fenced level in a plain hold, which tests/fenced shows"),
        ),
        (
            "fenced/raise.lua",
            Because("for a token of several servers, which tests/scripts shows"),
        ),
    ],
    ..PLAIN
};

/// The plain lock, whose waiters poll.
pub(crate) const SPIN: Kind = Kind {
    name: "spin",
    made: made!(|of, name| of.get_spin_lock(name)),
    rival: |client, name| Box::new(client.get_spin_lock(name)),
    worker: "spin",
    deaf: Some(Because(
        "those who wait for a spin lock poll by its backoff",
    )),
    ..PLAIN
};

/// One string, as other libraries write it.
pub(crate) const SIMPLE: Kind = Kind {
    name: "simple",
    made: made!(|of, name| of.get_simple_lock(name)),
    rival: |client, name| Box::new(client.get_simple_lock(name)),
    stranger: &[&["SET", "KEY", "kR3b+token/==", "NX", "PX", "TTL"]],
    foreign: &[
        &["HSET", "KEY", "a:1", "1"],
        &["LPUSH", "KEY", "x"],
        &["SADD", "KEY", "x"],
        &["ZADD", "KEY", "1", "x"],
        &["XADD", "KEY", "*", "a", "b"],
    ],
    worker: "simple",
    lua: &["simple/"],
    local_levels: Some(Because("a string holds the hold id and no count")),
    ..PLAIN
};

/// The plain lock's hash, and Redisson's queue beside it.
pub(crate) const FAIR: Kind = Kind {
    name: "fair",
    made: made!(|of, name| of.get_fair_lock(name)),
    rival: |client, name| Box::new(client.get_fair_lock(name)),
    worker: "fair",
    lua: &["fair/", "lock/reenter", "lock/verify"],
    elsewhere: &[(
        "fair/vouch.lua",
        Because("a waiter sends it after five seconds, as tests/fair shows"),
    )],
    costs: Costs {
        // Each waiter first gets its place, and listens to a channel of its own when it is next but one: it subscribes
        // and leaves again, unless its turn comes before.
        in_line: 5,
        // To see that nobody waits.
        needed: 5,
        ..PLAIN.costs
    },
    ..PLAIN
};

/// Readers; to Redis, the readers of one client are one.
pub(crate) const READ: Kind = Kind {
    name: "read",
    made: made!(|of, name| of.get_read_write_lock(name).read_lock()),
    rival: |client, name| Box::new(client.get_read_write_lock(name).write_lock()),
    stranger: &[
        &["HSET", "KEY", "mode", "write", "stranger:1:write", "1"],
        &["PEXPIRE", "KEY", "TTL"],
    ],
    foreign: &[
        &["SET", "KEY", "x"],
        &["LPUSH", "KEY", "x"],
        &["SADD", "KEY", "x"],
        &["ZADD", "KEY", "1", "x"],
        &["XADD", "KEY", "*", "a", "b"],
        &["HSET", "KEY", "mode", "1"],
        &["HSET", "KEY", "name", "Ada"],
        &["HSET", "KEY", "a:1", "1"],
    ],
    worker: "read",
    lua: &[
        "rw/assert.lua",
        "rw/force_release",
        "rw/look",
        "rw/read_acquire",
        "rw/release",
    ],
    costs: Costs {
        enter: 0,
        leave: 0,
        needed: 6,
        renewal_bytes: 300,
        ..PLAIN.costs
    },
    shared: Some(Because("many read at once")),
    local_levels: Some(Because("a client is one reader for Redis")),
    levels_end_alone: Some(Because("who reads reads for as long as it asked for")),
    assured: Some(Because(
        "a Java peer may cut the key's lease short; what was promised is asserted again all the time",
    )),
    ..PLAIN
};

/// The writer.
pub(crate) const WRITE: Kind = Kind {
    name: "write",
    made: made!(|of, name| of.get_read_write_lock(name).write_lock()),
    worker: "write",
    lua: &[
        "rw/assert.lua",
        "rw/force_release",
        "rw/look",
        "rw/release",
        "rw/write_acquire",
    ],
    costs: Costs {
        renewal_bytes: 300,
        ..PLAIN.costs
    },
    shared: None,
    local_levels: None,
    levels_end_alone: None,
    assured: None,
    ..READ
};
