//! The queue's arithmetic against a model of it: clients that come, go, die and come back, waiters of Redisson's among
//! them, in random order. The lock goes to the first who lives, a live one keeps its place, and nothing is left.

use std::collections::BTreeMap;

use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use watchlock_support::server::{RedisServer, connection};

use crate::common::{both, script};
use crate::{LINE, QUEUE, SCORES, WAITERS};

/// The fair wait.
const WAIT_MS: i64 = 300_000;
const LEASE_MS: &str = "60000";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    id: String,
    client: usize,
}

/// A server, and the state that it should have.
struct World {
    redis: MultiplexedConnection,
    scripts: BTreeMap<&'static str, String>,
    random: fastrand::Rng,
    /// The places of live clients, in the order of arrival.
    line: Vec<Place>,
    holder: Option<Place>,
    /// Per client; the last one is Redisson's.
    alive: [bool; CLIENTS],
    numbers: u64,
    /// What happened so far, for the message of a failure.
    steps: Vec<String>,
}

const CLIENTS: usize = 4;
const JAVA: usize = CLIENTS - 1;

fn uuid(client: usize) -> String {
    format!("00000000-0000-4000-8000-00000000000{client}")
}

impl World {
    async fn new(server: &RedisServer, seed: u64) -> Self {
        server.cmd(&["FLUSHALL"]).await;
        let files = ["acquire", "enqueue", "release", "vouch", "force_release"];
        let text = |file| script(&format!("fair/{file}.lua"));
        Self {
            redis: connection(&server.url()).await,
            scripts: files.into_iter().map(|file| (file, text(file))).collect(),
            random: fastrand::Rng::with_seed(seed),
            line: Vec::new(),
            holder: None,
            alive: [true; CLIENTS],
            numbers: 0,
            steps: Vec::new(),
        }
    }

    async fn cmd<T: FromRedisValue>(&mut self, args: &[&str]) -> T {
        let mut cmd = redis::cmd(args[0]);
        cmd.arg(&args[1..]);
        let answer = cmd.query_async(&mut self.redis).await;
        answer.unwrap_or_else(|error| panic!("{args:?}: {error}: {:#?}", self.steps))
    }

    /// The code of the reply, and its number.
    async fn run(&mut self, file: &str, args: &[&str]) -> (i64, i64) {
        let text = self.scripts[file].clone();
        let wait = WAIT_MS.to_string();
        let head = [
            "EVAL", &text, "4", LINE, QUEUE, SCORES, WAITERS, &wait, "channel",
        ];
        let call = [&head[..], args].concat();
        both(self.cmd(&call).await)
    }

    async fn now_ms(&mut self) -> i64 {
        let time: (i64, i64) = self.cmd(&["TIME"]).await;
        time.0 * 1000 + time.1 / 1000
    }

    fn new_place(&mut self, client: usize) -> Place {
        self.numbers += 1;
        let id = format!("{}:{}", uuid(client), self.numbers);
        Place { id, client }
    }

    /// The first waiter of a client.
    fn first_of(&self, client: usize) -> Option<Place> {
        self.line
            .iter()
            .find(|place| place.client == client)
            .cloned()
    }

    /// One of ours that lives.
    fn one(&mut self) -> Option<usize> {
        let alive: Vec<_> = (0..JAVA).filter(|client| self.alive[*client]).collect();
        self.random.choice(alive)
    }

    async fn step(&mut self) {
        let what = self.random.u32(0..16);
        let Some(client) = self.one() else {
            let client = self.random.usize(0..JAVA);
            return self.comes_back(client).await;
        };
        match what {
            0..=1 => self.comes(client).await,
            2 => self.changes_its_id(client).await,
            3..=5 => self.tries(client).await,
            6 => self.tries_once(client).await,
            7 => self.leaves().await,
            8..=9 => self.releases().await,
            10 => self.vouches(client).await,
            11 if self.random.bool() => self.dies(client).await,
            11 => {
                let client = self.random.usize(0..JAVA);
                self.comes_back(client).await;
            }
            12..=13 => self.java_comes().await,
            14 => self.java_tries().await,
            _ if self.random.bool() => self.java_drops_who_is_late(client).await,
            _ => self.java_dies().await,
        }
    }

    async fn comes(&mut self, client: usize) {
        let new: Vec<_> = (0..self.random.usize(1..4))
            .map(|_| self.new_place(client))
            .collect();
        let ids: Vec<_> = new.iter().map(|place| place.id.as_str()).collect();
        self.steps.push(format!("{client} queues {ids:?}"));
        let mut before = self.line.iter().rev();
        let ahead = before.find(|place| place.client == client);
        let ahead = ahead.map_or(String::new(), |place| place.id.clone());
        let (code, count) = self.run("enqueue", &[&[&*ahead], &*ids].concat()).await;
        assert!([-2, -9].contains(&code), "{code}");
        assert_eq!(usize::try_from(count), Ok(new.len()));
        self.line.extend(new);
    }

    /// A waiter of a client gets another hold id. It stays ahead of those behind it.
    async fn changes_its_id(&mut self, client: usize) {
        let own: Vec<_> = self.places_of(client);
        let Some(at) = (!own.is_empty()).then(|| self.random.usize(0..own.len())) else {
            return;
        };
        self.line.retain(|place| *place != own[at]);
        self.leave(&own[at]).await;
        let mut order = own.clone();
        order[at] = self.new_place(client);
        let behind = &order[at..];
        let ahead = at.checked_sub(1).map_or("", |ahead| &own[ahead].id);
        let ids: Vec<_> = behind.iter().map(|place| place.id.as_str()).collect();
        self.steps.push(format!("{client} asks again for {ids:?}"));
        let (code, _) = self.run("enqueue", &[&[ahead], &*ids].concat()).await;
        assert!([-2, -9].contains(&code), "{code}");
        self.line.push(order[at].clone());
        self.rearrange(&order);
    }

    fn places_of(&self, client: usize) -> Vec<Place> {
        let own = self.line.iter().filter(|place| place.client == client);
        own.cloned().collect()
    }

    /// The places that these have go to them in their order.
    fn rearrange(&mut self, order: &[Place]) {
        let mut movers = order.iter();
        for place in &mut self.line {
            if order.contains(place)
                && let Some(mover) = movers.next()
            {
                place.clone_from(mover);
            }
        }
    }

    /// The first waiter of a client tries. It gets the lock if the lock is free and it is the client's turn.
    async fn tries(&mut self, client: usize) {
        let first = self.first_of(client).filter(|_| self.random.u32(0..4) > 0);
        let place = first.unwrap_or_else(|| self.new_place(client));
        self.steps.push(format!("{client} tries for {}", place.id));
        let (code, _) = self.run("acquire", &[&place.id, LEASE_MS, "1"]).await;
        if !self.line.contains(&place) {
            self.line.push(place.clone());
        }
        let turn = self.holder.is_none() && self.line[0].client == client;
        assert!(
            if turn {
                [-2, -9].contains(&code)
            } else {
                code > 0
            },
            "{code} {:#?} {:#?}",
            self.steps,
            self.line
        );
        if turn {
            // It uses the first place of its client, and the others the next ones.
            let mut order = self.places_of(client);
            order.retain(|other| *other != place);
            order.insert(0, place.clone());
            self.rearrange(&order);
            self.line.remove(0);
            self.holder = Some(place);
        }
    }

    async fn tries_once(&mut self, client: usize) {
        if self.first_of(client).is_some() {
            return;
        }
        let place = self.new_place(client);
        self.steps.push(format!("{client} tries once"));
        let (code, _) = self.run("acquire", &[&place.id, LEASE_MS, "0"]).await;
        let free = self.holder.is_none() && self.line.is_empty();
        assert!(
            if free { code == -2 } else { code > 0 },
            "{code} {:#?} {:#?}",
            self.steps,
            self.line
        );
        if free {
            self.holder = Some(place);
        }
    }

    async fn leaves(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let place = self.random.usize(0..self.line.len());
        let place = self.line.remove(place);
        self.steps.push(format!("{} leaves", place.id));
        if place.client == JAVA {
            self.java_leaves(&place).await;
        } else {
            self.leave(&place).await;
        }
    }

    async fn leave(&mut self, place: &Place) {
        let answer = self.run("release", &[&place.id, "0"]).await;
        assert_eq!(answer, (-5, 0));
    }

    async fn releases(&mut self) {
        let Some(holder) = self.holder.take() else {
            return;
        };
        self.steps.push(format!("{} releases", holder.id));
        if holder.client == JAVA {
            self.cmd::<()>(&["DEL", LINE]).await;
            return;
        }
        let answer = self.run("release", &[&holder.id, "0"]).await;
        // Nobody listens.
        assert_eq!(answer, (-2, 0));
    }

    async fn vouches(&mut self, client: usize) {
        self.steps.push(format!("{client} vouches"));
        let own = self.line.iter().filter(|place| place.client == client);
        let ids: Vec<_> = own.map(|place| place.id.clone()).collect();
        let uuid = uuid(client);
        let args: Vec<_> = [&uuid].into_iter().chain(&ids).map(|id| &**id).collect();
        let answer = self.run("vouch", &args).await;
        // One that has no place left need not be known.
        assert!(
            usize::try_from(answer.1) == Ok(ids.len()),
            "{answer:?} {:#?} {:#?}",
            self.steps,
            self.line
        );
    }

    /// The client dies, and 15 s pass.
    async fn dies(&mut self, client: usize) {
        self.steps.push(format!("{client} dies"));
        self.alive[client] = false;
        self.line.retain(|place| place.client != client);
        if self.cmd(&["EXISTS", WAITERS]).await {
            self.cmd::<()>(&["ZADD", WAITERS, "XX", "1", &uuid(client)])
                .await;
        }
        if self
            .holder
            .as_ref()
            .is_some_and(|holder| holder.client == client)
        {
            // Its lease ends.
            self.holder = None;
            self.cmd::<()>(&["DEL", LINE]).await;
        }
    }

    /// A client that was silent asks for its places again. It keeps those that nobody dropped.
    async fn comes_back(&mut self, client: usize) {
        if self.alive[client] {
            return;
        }
        self.steps.push(format!("{client} comes back"));
        self.alive[client] = true;
        let listed: Vec<String> = self.cmd(&["LRANGE", QUEUE, "0", "-1"]).await;
        let own = format!("{}:", uuid(client));
        let ids: Vec<_> = listed.iter().filter(|id| id.starts_with(&own)).collect();
        if let Some(first) = ids.first() {
            self.run("enqueue", &["", first]).await;
        }
        // They stand among the live ones in the order of the list.
        let live: Vec<_> = self.line.iter().map(|place| place.id.clone()).collect();
        let placed = listed
            .iter()
            .filter(|id| live.contains(id) || ids.contains(id));
        self.line = placed
            .map(|id| Place {
                id: id.clone(),
                client: (0..CLIENTS)
                    .find(|client| id.starts_with(&uuid(*client)))
                    .unwrap(),
            })
            .collect();
    }

    /// As Redisson's script does: with a score after that of the last one.
    async fn java_comes(&mut self) {
        let place = self.new_place(JAVA);
        self.steps.push(format!("{} queues", place.id));
        self.java_drops_heads().await;
        let now = self.now_ms().await;
        let last: Option<String> = self.cmd(&["LINDEX", QUEUE, "-1"]).await;
        let score: Option<f64> = match &last {
            Some(last) => self.cmd(&["ZSCORE", SCORES, last]).await,
            None => None,
        };
        #[expect(clippy::cast_possible_truncation, reason = "ms")]
        let after = score.map_or(now, |score| score as i64);
        let score = (after + WAIT_MS).to_string();
        self.cmd::<()>(&["RPUSH", QUEUE, &place.id]).await;
        self.cmd::<()>(&["ZADD", SCORES, &score, &place.id]).await;
        self.line.push(place);
    }

    async fn java_drops_heads(&mut self) {
        let now = self.now_ms().await;
        loop {
            let head: Option<String> = self.cmd(&["LINDEX", QUEUE, "0"]).await;
            let Some(head) = head else { return };
            let score: Option<f64> = self.cmd(&["ZSCORE", SCORES, &head]).await;
            #[expect(clippy::cast_possible_truncation, reason = "ms")]
            let over = score.is_some_and(|score| score as i64 <= now);
            if !over {
                return;
            }
            self.cmd::<()>(&["LPOP", QUEUE]).await;
            self.cmd::<()>(&["ZREM", SCORES, &head]).await;
        }
    }

    /// Redisson's first waiter tries. Redisson does not know vouches, so it may wait behind dead waiters.
    async fn java_tries(&mut self) {
        let Some(place) = self.first_of(JAVA) else {
            return;
        };
        self.steps.push(format!("{} tries", place.id));
        self.java_drops_heads().await;
        let head: Option<String> = self.cmd(&["LINDEX", QUEUE, "0"]).await;
        if self.holder.is_some() || head.is_some_and(|head| head != place.id) {
            return;
        }
        assert_eq!(self.line[0], place, "{:#?}", self.steps);
        self.cmd::<()>(&["LPOP", QUEUE]).await;
        self.cmd::<()>(&["ZREM", SCORES, &place.id]).await;
        let rest: Vec<String> = self.cmd(&["ZRANGE", SCORES, "0", "-1"]).await;
        for id in rest {
            let less = (-WAIT_MS).to_string();
            self.cmd::<()>(&["ZINCRBY", SCORES, &less, &id]).await;
        }
        self.cmd::<()>(&["HSET", LINE, &place.id, "1"]).await;
        self.cmd::<()>(&["PEXPIRE", LINE, LEASE_MS]).await;
        self.line.remove(0);
        self.holder = Some(place);
        // It may lower scores too far. Whoever notices repairs them.
        if let Some(client) = self.one() {
            self.run("vouch", &[&uuid(client)]).await;
        }
    }

    async fn java_leaves(&mut self, place: &Place) {
        let queue: Vec<String> = self.cmd(&["LRANGE", QUEUE, "0", "-1"]).await;
        let behind = queue.iter().skip_while(|id| **id != place.id).skip(1);
        for id in behind {
            let less = (-WAIT_MS).to_string();
            self.cmd::<()>(&["ZADD", SCORES, "XX", "INCR", &less, id])
                .await;
        }
        self.cmd::<()>(&["ZREM", SCORES, &place.id]).await;
        self.cmd::<()>(&["LREM", QUEUE, "0", &place.id]).await;
    }

    /// Redisson drops some of our waiters whose scores have passed. Then a client of ours looks at the queue.
    async fn java_drops_who_is_late(&mut self, client: usize) {
        self.steps.push(format!("Java drops; {client} notices"));
        let listed: Vec<String> = self.cmd(&["LRANGE", QUEUE, "0", "1"]).await;
        let live: Vec<_> = self.line.iter().map(|place| place.id.clone()).collect();
        let java = uuid(JAVA);
        let late = listed
            .iter()
            .take_while(|id| live.contains(id) && !id.starts_with(&java));
        let late: Vec<_> = late.cloned().collect();
        for id in late {
            self.cmd::<()>(&["ZADD", SCORES, "XX", "1", &id]).await;
        }
        self.java_drops_heads().await;
        if self.first_of(client).is_none() {
            let place = self.new_place(client);
            self.line.push(place.clone());
            self.run("enqueue", &["", &place.id]).await;
        }
        self.run("vouch", &[&uuid(client)]).await;
    }

    /// A waiter of Redisson's dies, and its score passes when it is the head.
    async fn java_dies(&mut self) {
        let Some(place) = self.first_of(JAVA) else {
            return;
        };
        let head: Option<String> = self.cmd(&["LINDEX", QUEUE, "0"]).await;
        if head.as_ref() != Some(&place.id) {
            return;
        }
        self.steps.push(format!("{} dies", place.id));
        self.cmd::<()>(&["ZADD", SCORES, "XX", "1", &place.id])
            .await;
        self.line.retain(|other| *other != place);
    }

    /// Live waiters are in the queue in the order of arrival, and each key has a TTL exactly while it needs one.
    async fn check(&mut self) {
        let listed: Vec<String> = self.cmd(&["LRANGE", QUEUE, "0", "-1"]).await;
        let live: Vec<_> = self.line.iter().map(|place| place.id.clone()).collect();
        let found: Vec<_> = listed
            .iter()
            .filter(|id| live.contains(id))
            .cloned()
            .collect();
        assert_eq!(found, live, "{:#?} {listed:#?}", self.steps);
        let held: Vec<String> = self.cmd(&["HKEYS", LINE]).await;
        let holder: Vec<_> = self.holder.iter().map(|holder| holder.id.clone()).collect();
        assert_eq!(held, holder, "{:#?}", self.steps);
        let ours: u64 = self
            .cmd(&["ZCOUNT", WAITERS, "100000000000000", "+inf"])
            .await;
        for key in [QUEUE, SCORES] {
            let ttl: i64 = self.cmd(&["PTTL", key]).await;
            assert!(ours == 0 || ttl > 0, "{key}: {ttl} {:#?}", self.steps);
        }
        let ttl: i64 = self.cmd(&["PTTL", WAITERS]).await;
        assert!(ttl != -1, "{:#?}", self.steps);
    }

    /// Everybody releases and leaves. Then one more comes and goes, and no key is left.
    async fn end(&mut self) {
        self.comes_back(0).await;
        self.releases().await;
        while !self.line.is_empty() {
            self.leaves().await;
        }
        let place = self.new_place(0);
        let answer = self.run("acquire", &[&place.id, LEASE_MS, "1"]).await;
        assert_eq!(answer, (-2, 0), "{:#?}", self.steps);
        self.run("release", &[&place.id, "0"]).await;
        let keys: Vec<String> = self.cmd(&["KEYS", "*"]).await;
        assert!(keys.is_empty(), "{keys:?} {:#?}", self.steps);
    }
}

#[tokio::test]
async fn whoever_comes_goes_and_dies_the_first_who_lives_is_next() {
    let server = RedisServer::start();
    let seeds = std::env::var("FAIR_SEEDS").map_or(20, |seeds| seeds.parse().expect("a number"));
    for seed in 0..seeds {
        println!("seed {seed}");
        let mut world = World::new(&server, seed).await;
        for _ in 0..200 {
            world.step().await;
            world.check().await;
        }
        world.end().await;
    }
}
