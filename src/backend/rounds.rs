//! Calls on one connection: a pipeline of all of them, and more of those whose scripts the node does not know.
//!
//! A node knows a script by its text alone until it ran it. It is told the text once: what comes behind it in the pipeline
//! finds it known. When that one was refused, each has the text with it.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisResult, Value};

use super::Answer;
use super::failure::Failure;
use super::lane::{Connected, Lane};
use super::send::{Wrong, connected, refused, said, says_unknown_script};
use super::server::Server;
use super::together::Calls;
use crate::clock::Moment;

/// What was exchanged on one connection.
pub(super) struct Exchanged {
    generation: u64,
    server: Option<Server>,
    /// Each is of the calls whose scripts were unknown in the one before it.
    rounds: Vec<Round>,
}

/// One pipeline, and what it was answered.
struct Round {
    indices: Vec<usize>,
    sent_at: Moment,
    replies: RedisResult<Vec<Value>>,
}

impl Round {
    /// Those that are to be sent again, with the texts of their scripts.
    fn unknown(&self) -> Vec<usize> {
        let replies = self.replies.iter().flatten();
        let answered = self.indices.iter().zip(replies);
        let unknown = answered.filter(|(_, reply)| says_unknown_script(reply));
        unknown.map(|(index, _)| *index).collect()
    }
}

impl Exchanged {
    /// What it says of each call, and of the lane.
    pub(super) fn heard(self, lane: &Lane, mut hear: impl FnMut(usize, Result<Answer, Wrong>)) {
        let last = self.rounds.len().saturating_sub(1);
        for (number, round) in self.rounds.into_iter().enumerate() {
            let sent_at = round.sent_at;
            let up_since = self.server.as_ref().map(|server| server.up_since);
            let server_age = up_since.map(|up_since| up_since.until(sent_at));
            let replies = match round.replies {
                Ok(replies) => replies,
                Err(error) => {
                    for index in round.indices {
                        hear(index, Err(refused(lane, self.generation, error.clone())));
                    }
                    continue;
                }
            };
            lane.heard();
            for (index, reply) in round.indices.into_iter().zip(replies) {
                if number < last && says_unknown_script(&reply) {
                    continue;
                }
                let answer = said(reply).map(|reply| Answer {
                    reply,
                    sent_at,
                    server_age,
                });
                hear(
                    index,
                    answer.map_err(|error| refused(lane, self.generation, error)),
                );
            }
        }
    }
}

/// All of them on one connection of `lane`; `commands` are `calls` as they are sent first.
pub(super) async fn exchanged(
    lane: &Lane,
    calls: &impl Calls,
    indices: Vec<usize>,
    commands: Pipeline,
) -> Result<Exchanged, Failure> {
    let mut connected = connected(lane).await?;
    let turn = connected.turn.take();
    let exchange = on_connection(lane, connected, calls, indices, commands);
    match turn {
        None => Ok(exchange.await),
        // Nothing that the old master says counts.
        Some(mut turn) => turn.within(exchange).await.ok_or_else(Failure::no_reply),
    }
}

async fn on_connection(
    lane: &Lane,
    connected: Connected,
    calls: &impl Calls,
    mut indices: Vec<usize>,
    mut commands: Pipeline,
) -> Exchanged {
    let Connected {
        mut connection,
        generation,
        server,
        ..
    } = connected;
    let mut rounds = Vec::new();
    for texts in [Some(Texts::One), Some(Texts::All), None] {
        let sent_at = lane.now();
        let replies = round(&mut connection, &commands).await;
        let round = Round {
            indices,
            sent_at,
            replies,
        };
        indices = round.unknown();
        rounds.push(round);
        let Some(texts) = texts.filter(|_| !indices.is_empty()) else {
            break;
        };
        commands = with_texts(calls, &indices, texts);
    }
    Exchanged {
        generation,
        server,
        rounds,
    }
}

/// Which calls of a pipeline have the texts of their scripts with them.
#[derive(Clone, Copy, PartialEq)]
enum Texts {
    /// The first of each script: those behind it find the script known.
    One,
    /// The first one may have been refused.
    All,
}

fn with_texts(calls: &impl Calls, indices: &[usize], texts: Texts) -> Pipeline {
    let mut told = Vec::new();
    let mut commands = Pipeline::with_capacity(indices.len());
    for index in indices {
        let call = calls.call(*index).encode();
        let digest = call.digest();
        let needed = texts == Texts::All || !told.contains(&digest);
        let text = if needed { call.with_text() } else { None };
        if needed {
            told.push(digest);
        }
        commands.add_command(text.unwrap_or_else(|| call.into_cmd()));
    }
    commands
}

/// One pipeline; a reply for each of its commands.
async fn round(
    connection: &mut MultiplexedConnection,
    commands: &Pipeline,
) -> RedisResult<Vec<Value>> {
    let count = commands.len();
    let mut replies = connection.send_packed_commands(commands, 0, count).await?;
    replies.resize(count, Value::Nil);
    Ok(replies)
}
