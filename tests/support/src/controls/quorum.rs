//! A quorum in as few lines as possible, and four ways to get it wrong.
//!
//! Holds have a fixed lease, a try is one script for each server, and waiters poll. When a command is not answered in
//! time, a release to all servers undoes what it may have done.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, RedisError, RedisResult};
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until, timeout};

use super::scripts::{ACQUIRE, ACQUIRED, RELEASE, channel};
use crate::history::{Call, LockKind, Outcome, Record, Recorder};
use crate::now_ns;

/// How long a server has to answer.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE_MS: std::ops::Range<u64> = 5..25;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuorumFlaw {
    /// Validity is counted from the replies, not from just before the commands were sent.
    ValidityFromReply,
    /// A server that has just started votes.
    VotesAtOnce,
    /// What went unanswered is not given back.
    ReleaseWhereAcquired,
    /// Half of the servers, rounded down, are enough.
    HalfIsEnough,
}

impl QuorumFlaw {
    /// All four.
    pub const ALL: [Self; 4] = [
        Self::ValidityFromReply,
        Self::VotesAtOnce,
        Self::ReleaseWhereAcquired,
        Self::HalfIsEnough,
    ];
}

/// A client of a quorum; each acquire is an owner of its own.
#[derive(Clone, Debug)]
pub struct PlainQuorum(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nodes: Vec<redis::Client>,
    client: u32,
    flaw: Option<QuorumFlaw>,
    /// How long a server must have been up before it votes.
    restart_delay: Duration,
    recorder: Recorder,
    next_owner: AtomicU32,
}

/// A hold; only [`unlock`](Self::unlock) gives it back.
#[derive(Debug)]
pub struct QuorumHold {
    inner: Arc<Inner>,
    owner: u32,
    name: String,
    /// The servers that the release goes to.
    places: Vec<usize>,
    watch: AbortHandle,
}

impl Inner {
    fn has(&self, flaw: QuorumFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn needed(&self) -> usize {
        let half = self.nodes.len() / 2;
        half + usize::from(!self.has(QuorumFlaw::HalfIsEnough))
    }

    async fn eval(&self, place: usize, script: &str, args: [&str; 4]) -> RedisResult<(i64, u64)> {
        let asking = async {
            let node = &self.nodes[place];
            let patient = AsyncConnectionConfig::new().set_response_timeout(None);
            let connecting = node.get_multiplexed_async_connection_with_config(&patient);
            let mut redis = connecting.await?;
            let info: String = redis::cmd("INFO")
                .arg("server")
                .query_async(&mut redis)
                .await?;
            let [name, field, number, channel] = args;
            let mut eval = redis::cmd("EVAL");
            eval.arg(script).arg(1).arg(name);
            eval.arg(field).arg(number).arg(channel);
            Ok((eval.query_async(&mut redis).await?, uptime(&info)))
        };
        let silence = |_| RedisError::from((redis::ErrorKind::Io, "no answer in time"));
        timeout(NODE_TIMEOUT, asking).await.map_err(silence)?
    }

    /// How many answered; the servers that granted it, and whether each votes.
    async fn ask(&self, name: &str, field: &str, lease: Duration) -> (usize, Vec<(usize, bool)>) {
        let lease = lease.as_millis().to_string();
        let args = [name, field, &lease, ""];
        let places = 0..self.nodes.len();
        let answers = join_all(places.map(|place| self.eval(place, ACQUIRE, args))).await;
        let answers: Vec<_> = answers.into_iter().enumerate().collect();
        let answers = answers.iter().filter_map(|(place, answer)| {
            let (code, uptime) = answer.as_ref().ok()?;
            Some((*place, *code, *uptime))
        });
        let granted = answers.clone().filter(|(_, code, _)| *code == ACQUIRED);
        let granted = granted.map(|(place, _, uptime)| {
            let old = Duration::from_secs(uptime) >= self.restart_delay;
            (place, old || self.has(QuorumFlaw::VotesAtOnce))
        });
        (answers.clone().count(), granted.collect())
    }

    async fn release(&self, name: &str, field: &str, places: &[usize]) -> bool {
        let args = [name, field, "0", &channel(name)];
        let releases = places.iter().map(|place| self.eval(*place, RELEASE, args));
        let there = join_all(releases).await.into_iter();
        there.filter(|answer| matches!(answer, Ok((1, _)))).count() >= self.needed()
    }

    /// The servers that a release goes to.
    fn places(&self, granted: &[(usize, bool)]) -> Vec<usize> {
        if self.has(QuorumFlaw::ReleaseWhereAcquired) {
            granted.iter().map(|(place, _)| *place).collect()
        } else {
            (0..self.nodes.len()).collect()
        }
    }
}

fn uptime(info: &str) -> u64 {
    let said = info
        .lines()
        .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    said.and_then(|said| said.trim().parse().ok()).unwrap_or(0)
}

impl PlainQuorum {
    /// A client by number, which makes one mistake or none.
    ///
    /// # Panics
    /// If a URL is not valid.
    #[must_use]
    pub fn new(
        urls: &[String],
        client: u32,
        flaw: Option<QuorumFlaw>,
        restart_delay: Duration,
        recorder: &Recorder,
    ) -> Self {
        let client_of = |url: &String| redis::Client::open(url.as_str()).expect("a redis URL");
        Self(Arc::new(Inner {
            nodes: urls.iter().map(client_of).collect(),
            client,
            flaw,
            restart_delay,
            recorder: recorder.clone(),
            next_owner: AtomicU32::new(0),
        }))
    }

    /// Acquires within `wait`. `None`: busy, or no majority.
    ///
    /// # Cancel safety
    /// None: what the call acquired stays.
    pub async fn lock(&self, name: &str, wait: Duration, lease: Duration) -> Option<QuorumHold> {
        let inner = &self.0;
        let owner = inner.next_owner.fetch_add(1, Ordering::Relaxed);
        let call = Call::Acquire {
            wait_ms: Some(super::millis(wait)),
            lease_ms: Some(super::millis(lease)),
        };
        let op = inner
            .recorder
            .invoke(inner.client, owner, LockKind::Red, name, call);
        let (field, end) = (format!("{}:{owner}", inner.client), Instant::now() + wait);
        loop {
            let sent = Instant::now();
            let (answered, granted) = inner.ask(name, &field, lease).await;
            let until = if inner.has(QuorumFlaw::ValidityFromReply) {
                Instant::now() + lease
            } else {
                sent + lease.mul_f64(0.99).saturating_sub(Duration::from_millis(2))
            };
            let votes = granted.iter().filter(|(_, votes)| *votes).count();
            let places = inner.places(&granted);
            if votes >= inner.needed() && Instant::now() < until {
                let hold = self.hold(owner, name, places, until);
                inner.recorder.returned(op, Outcome::Acquired(1));
                return Some(hold);
            }
            inner.release(name, &field, &places).await;
            if Instant::now() >= end {
                let known = answered >= inner.needed();
                let failed = || Outcome::Failed("quorum".to_owned());
                let outcome = if known { Outcome::Busy } else { failed() };
                inner.recorder.returned(op, outcome);
                return None;
            }
            sleep(Duration::from_millis(fastrand::u64(PAUSE_MS))).await;
        }
    }

    fn hold(&self, owner: u32, name: &str, places: Vec<usize>, until: Instant) -> QuorumHold {
        let inner = &self.0;
        let lost = Record::Lost {
            t: 0,
            client: inner.client,
            owner,
            kind: LockKind::Red,
            name: name.to_owned(),
            reason: "expired".to_owned(),
        };
        let watch = tokio::spawn(report(inner.recorder.clone(), lost, until));
        QuorumHold {
            inner: Arc::clone(inner),
            owner,
            name: name.to_owned(),
            places,
            watch: watch.abort_handle(),
        }
    }
}

async fn report(recorder: Recorder, mut lost: Record, until: Instant) {
    sleep_until(until.into()).await;
    if let Record::Lost { t, .. } = &mut lost {
        *t = now_ns();
    }
    recorder.push(lost);
}

impl QuorumHold {
    /// Gives the hold back.
    pub async fn unlock(self) {
        let Self {
            inner,
            owner,
            name,
            places,
            watch,
        } = self;
        let op = inner
            .recorder
            .invoke(inner.client, owner, LockKind::Red, &name, Call::Release);
        let reported = watch.is_finished();
        watch.abort();
        let field = format!("{}:{owner}", inner.client);
        let there = inner.release(&name, &field, &places).await;
        let outcome = if there && !reported {
            Outcome::Released(0)
        } else {
            Outcome::Failed("lost".to_owned())
        };
        inner.recorder.returned(op, outcome);
    }
}
