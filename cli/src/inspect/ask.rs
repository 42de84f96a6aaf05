//! Many questions to a server in a round trip.

use std::collections::HashSet;

use futures_util::future::join_all;
use futures_util::stream::{self, Stream};
use watchlock::redis::{self, Cmd, FromRedisValue, RedisError};

use crate::connect::Server;
use crate::status::Failure;

/// How many keys a step of SCAN looks at.
const STEP: &[u8] = b"1000";
/// How many pages of keys are asked about at once.
pub(super) const PAGES: usize = 2;

/// The keys of a type that match a pattern, in pages, and each once.
pub(super) fn pages(
    server: &Server,
    pattern: &[u8],
    of_type: &'static [u8],
) -> impl Stream<Item = Result<Vec<Vec<u8>>, Failure>> {
    let start = Some((b"0".to_vec(), HashSet::new()));
    stream::try_unfold(start, async move |walk| {
        let Some((cursor, mut seen)) = walk else {
            return Ok(None);
        };
        let (next, mut keys) = scan(server, &cursor, pattern, of_type).await?;
        // SCAN may return a key twice.
        keys.retain(|key| seen.insert(key.clone()));
        let walk = (next != b"0").then_some((next, seen));
        Ok(Some((keys, walk)))
    })
}

/// A step of a walk over the keys of a type that match a pattern: where it goes on, and what it found.
pub(super) async fn scan(
    server: &Server,
    cursor: &[u8],
    pattern: &[u8],
    of_type: &[u8],
) -> Result<(Vec<u8>, Vec<Vec<u8>>), Failure> {
    let words: [&[u8]; 8] = [
        b"SCAN", cursor, b"MATCH", pattern, b"COUNT", STEP, b"TYPE", of_type,
    ];
    Ok(server.ask(&words).await?)
}

/// The same command for each key, in one round trip; None where it fails, as when the key has another type by now.
pub(super) async fn each<T: FromRedisValue>(
    server: &Server,
    keys: &[Vec<u8>],
    before: &[&[u8]],
    behind: &[&[u8]],
) -> Result<Vec<Option<T>>, RedisError> {
    existing(answers(server, keys, before, behind).await?)
}

pub(super) async fn answers<T: FromRedisValue>(
    server: &Server,
    keys: &[Vec<u8>],
    before: &[&[u8]],
    behind: &[&[u8]],
) -> Result<Vec<Result<T, RedisError>>, RedisError> {
    let commands = keys.iter().map(|key| {
        let mut command = Cmd::new();
        command.arg(before).arg(key).arg(behind);
        command
    });
    ask_all(server, commands).await
}

/// Runs commands in one round trip, and those once more that were sent elsewhere.
pub(super) async fn ask_all<T: FromRedisValue>(
    server: &Server,
    commands: impl IntoIterator<Item = Cmd>,
) -> Result<Vec<Result<T, RedisError>>, RedisError> {
    let commands: Vec<_> = commands.into_iter().collect();
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = redis::pipe();
    for command in &commands {
        pipeline.add_command(command.clone());
    }
    let mut connection = server.connection.clone();
    let answers: Vec<_> = (pipeline.ignore_errors())
        .query_async(&mut connection)
        .await?;
    let answers = commands.iter().zip(answers);
    let answers = answers.map(|(command, answer)| server.elsewhere(command, answer));
    Ok(join_all(answers).await)
}

/// None for an error, except that of a command which this user may not run at all.
pub(super) fn existing<T>(
    answers: Vec<Result<T, RedisError>>,
) -> Result<Vec<Option<T>>, RedisError> {
    let answers = answers.into_iter().map(|answer| match answer {
        Err(error) if denies_command(&error) => Err(error),
        answer => Ok(answer.ok()),
    });
    answers.collect()
}

/// Not if only this key is denied: "no permissions to access a key".
fn denies_command(error: &RedisError) -> bool {
    let keys_only = |detail: &str| detail.contains(" access ");
    error.code() == Some("NOPERM") && !error.detail().is_some_and(keys_only)
}

/// A command about a key.
pub(super) fn command(name: &str, key: &[u8]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key);
    command
}
