//! Several commands at once: those for one node are one pipeline, one write and one read.
//!
//! 1. Each is answered for itself. What a node refuses, or sends elsewhere, costs the others nothing: they are told when
//!    the pipeline is answered, and who goes on from there is told later.
//! 2. A pipeline that is cut off or not answered in time says nothing of any of its commands.
//! 3. Where replicas must acknowledge, the commit lane makes pipelines of its own.
//! 4. What is not answered in time leaves its connection, if it waited for long enough to tell: longer than an answer
//!    may wait for replicas.
//! 5. A node that does not know a script is told its text once: what comes behind it in the pipeline finds it known.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use super::failure::Failure;
use super::fleet::Fleet;
use super::lane::{Connected, Lane};
use super::send::{Wrong, connected, follow, heard, is_unknown_script};
use super::{Answer, Outcome, Pending};
use crate::clock::Moment;
use crate::script::{Call, Encoded, Order};

/// A silence that is shorter says nothing of the connection, nor of the server.
pub(crate) const TELLING: Duration = Duration::from_millis(100);

/// Sends `calls` and waits for at most `limit`; `tell` hears what came of each, by its index, as soon as that is known.
/// None of them asks on behind a nil.
pub(crate) async fn send_together(
    fleet: &Arc<Fleet>,
    calls: &[Call<'_>],
    limit: Duration,
    tell: &(impl Fn(usize, Outcome) + Sync),
) {
    let mut shares: Vec<Share> = Vec::new();
    let mut alone = Vec::new();
    let acknowledged = fleet.home().commits().is_some();
    for (index, call) in calls.iter().enumerate() {
        if acknowledged && call.order() != Order::Free {
            alone.push((index, Pending::start(fleet, call.clone())));
            continue;
        }
        match fleet.lane(call.target()) {
            Ok(lane) => add(&mut shares, lane, (index, call)),
            Err(failure) => tell(index, Err(failure)),
        }
    }
    let telling = TELLING + fleet.acknowledged_within();
    let alone = alone
        .into_iter()
        .map(async |(index, pending): (_, Pending)| {
            tell(index, pending.within_one_try(limit, telling).await);
        });
    let shares = shares
        .into_iter()
        .map(|share| share.send(fleet, limit, tell));
    tokio::join!(join_all(alone), join_all(shares));
}

/// The commands for one node, with their indices.
struct Share<'c, 'a> {
    lane: Arc<Lane>,
    calls: Vec<Indexed<'c, 'a>>,
}

type Indexed<'c, 'a> = (usize, &'c Call<'a>);

fn add<'c, 'a>(shares: &mut Vec<Share<'c, 'a>>, lane: Arc<Lane>, call: Indexed<'c, 'a>) {
    let known = shares.iter_mut().rev();
    let mut known = known.filter(|share| Arc::ptr_eq(&share.lane, &lane));
    match known.next() {
        Some(share) => share.calls.push(call),
        None => shares.push(Share {
            lane,
            calls: vec![call],
        }),
    }
}

impl Share<'_, '_> {
    async fn send(
        self,
        fleet: &Arc<Fleet>,
        limit: Duration,
        tell: &(impl Fn(usize, Outcome) + Sync),
    ) {
        let Self { lane, calls } = self;
        let (generation, began) = (lane.generation(), lane.now());
        let exchange = lane.timers().within(limit, exchanged(&lane, &calls));
        let Some(results) = exchange.await else {
            give_up(&lane, generation, limit, TELLING);
            for (index, _) in calls {
                tell(index, Err(Failure::no_reply()));
            }
            return;
        };
        let mut elsewhere = Vec::new();
        for ((index, call), result) in calls.into_iter().zip(results) {
            match result {
                Ok(answer) => tell(index, Ok(answer)),
                Err(wrong) if fleet.cluster().is_joined() => elsewhere.push((index, call, wrong)),
                Err(wrong) => tell(index, Err(wrong.failure)),
            }
        }
        let left = limit.saturating_sub(began.until(lane.now()));
        let elsewhere = elsewhere.into_iter().map(async |(index, call, wrong)| {
            let following = lane
                .timers()
                .within(left, follow(fleet, call.encode(), wrong));
            let outcome = following.await;
            tell(index, outcome.unwrap_or_else(|| Err(Failure::no_reply())));
        });
        join_all(elsewhere).await;
    }
}

/// The next try shall be on another connection, while there is time for one: after a silence of `limit`, if that is
/// `telling`.
pub(super) fn give_up(lane: &Lane, generation: Option<u64>, limit: Duration, telling: Duration) {
    lane.overdue();
    let silent = limit >= telling && lane.is_silent_for(limit);
    if let Some(generation) = generation.filter(|_| silent) {
        lane.replace(generation);
    }
}

/// All of them on one connection of `lane`, each with its result.
async fn exchanged(lane: &Lane, calls: &[Indexed<'_, '_>]) -> Vec<Result<Answer, Wrong>> {
    let mut connected = match connected(lane).await {
        Ok(connected) => connected,
        Err(failure) => return all(calls.len(), &failure),
    };
    let turn = connected.turn.take();
    let exchange = on_connection(lane, connected, calls);
    match turn {
        None => exchange.await,
        // Nothing that the old master says counts.
        Some(mut turn) => {
            let answered = turn.within(exchange).await;
            answered.unwrap_or_else(|| all(calls.len(), &Failure::no_reply()))
        }
    }
}

fn all(count: usize, failure: &Failure) -> Vec<Result<Answer, Wrong>> {
    let each = || Err(failure.clone().into());
    std::iter::repeat_with(each).take(count).collect()
}

async fn on_connection(
    lane: &Lane,
    connected: Connected,
    calls: &[Indexed<'_, '_>],
) -> Vec<Result<Answer, Wrong>> {
    let Connected {
        mut connection,
        generation,
        server,
        ..
    } = connected;
    let mut sent: Vec<Sent> = vec![(Ok(Value::Nil), lane.now()); calls.len()];
    let mut left: Vec<usize> = (0..calls.len()).collect();
    for texts in [Texts::None, Texts::One, Texts::All] {
        let sent_at = lane.now();
        let encoded = left.iter().map(|index| encode(calls[*index].1, lane));
        let cmds = written(encoded, texts);
        let results = round(&mut connection, cmds, left.len()).await;
        for (index, result) in left.iter().zip(results) {
            sent[*index] = (result, sent_at);
        }
        left.retain(|index| is_unknown_script(&sent[*index].0));
        if left.is_empty() {
            break;
        }
    }
    let heard = sent.into_iter().map(|(result, sent_at)| {
        let mut answer = heard(lane, generation, result, sent_at)?;
        answer.server_age = server.as_ref().map(|server| server.up_since.until(sent_at));
        Ok(answer)
    });
    heard.collect()
}

type Sent = (RedisResult<Value>, Moment);

/// Not kept: a call that is sent a second time, which is rare, is encoded a second time.
fn encode(call: &Call<'_>, lane: &Lane) -> Encoded {
    let mut call = call.encode();
    call.publish_as(lane.publish());
    call
}

/// Which calls of a pipeline have the texts of their scripts with them: a node knows a script by its text alone until it
/// ran it.
#[derive(Clone, Copy)]
enum Texts {
    None,
    /// The first of each script: those behind it find the script known.
    One,
    /// The first one may have been refused.
    All,
}

fn written(calls: impl Iterator<Item = Encoded>, texts: Texts) -> impl Iterator<Item = Cmd> {
    let mut told = Vec::new();
    calls.map(move |call| {
        let digest = call.digest();
        let needed = match texts {
            Texts::None => false,
            Texts::One => !told.contains(&digest),
            Texts::All => true,
        };
        let text = if needed { call.with_text() } else { None };
        if needed {
            told.push(digest);
        }
        text.unwrap_or_else(|| call.into_cmd())
    })
}

/// One pipeline; a result for each of `count` commands.
async fn round(
    connection: &mut MultiplexedConnection,
    cmds: impl Iterator<Item = Cmd>,
    count: usize,
) -> Vec<RedisResult<Value>> {
    let mut pipeline = Pipeline::with_capacity(count);
    for cmd in cmds {
        pipeline.add_command(cmd);
    }
    match connection.send_packed_commands(&pipeline, 0, count).await {
        Ok(mut values) => {
            values.resize(count, Value::Nil);
            values.into_iter().map(Ok).collect()
        }
        Err(error) => vec![Err(error); count],
    }
}
