//! Count-down latches, which have no owner.

use std::time::Duration;

use serde_json::{Value, json};
use watchlock::{CountDownLatch, Error};

use crate::failure::Failure;
use crate::kinds::Connected;

/// What is done with a latch.
#[derive(Clone, Copy)]
pub(crate) enum LatchVerb {
    Set(u64),
    Count,
    Down,
    Await(Duration),
    Delete,
}

pub(crate) fn of(client: &Connected, name: &str) -> Result<CountDownLatch, Failure> {
    match client {
        Connected::Client(client) => Ok(client.get_count_down_latch(name)),
        Connected::Quorum(_) => Err(Failure::unsupported("latch of a quorum")),
    }
}

pub(crate) async fn ask(latch: CountDownLatch, verb: LatchVerb) -> Result<Value, Error> {
    Ok(match verb {
        LatchVerb::Set(count) => {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            json!({"set": latch.try_set_count(count).await?})
        }
        LatchVerb::Count => json!({"count": latch.count().await?}),
        LatchVerb::Down => {
            latch.count_down().await?;
            json!({})
        }
        LatchVerb::Await(limit) => match tokio::time::timeout(limit, latch.wait()).await {
            Ok(waited) => {
                waited?;
                json!({"reached": true})
            }
            Err(_) => json!({"reached": false}),
        },
        LatchVerb::Delete => json!({"deleted": latch.delete().await?}),
    })
}
