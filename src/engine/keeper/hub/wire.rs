//! What is said on a connection with subscriptions, to the one server or to a node of a cluster.
//!
//! To a node it is a connection for nothing else, by which the server can tell what nobody asked for (RESP3): the older
//! protocol takes the end of a subscription for an answer, and its listener would be deaf without knowing.

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::backend::Connection;
use crate::config::Publish;

/// Said behind another message, for waiters of Redisson (`lua/rw/release.lua`): to us it is no event.
const REPEATED: &[u8] = b"00";

/// What comes.
pub(super) enum ChannelEvent {
    Message(Box<str>),
    /// The channel is subscribed from now on.
    Confirmed(Box<str>),
    /// It is not any more, whether that was asked for or not.
    Ended(Box<str>),
}

/// Where commands go.
#[derive(Clone)]
pub(super) enum Sink {
    Server(PubSubSink),
    Node(Connection, Publish),
}

/// Where it comes from.
pub(super) enum Stream {
    Server(PubSubStream),
    Node(UnboundedReceiver<PushInfo>),
}

/// Both ends of a connection to the one server.
pub(super) fn to_server(pubsub: PubSub) -> (Sink, Stream) {
    let (sink, stream) = pubsub.split();
    (Sink::Server(sink), Stream::Server(stream))
}

/// Both ends of a connection to a node, whose pushes come out of `pushes`.
pub(super) fn to_node(
    connection: Connection,
    publish: Publish,
    pushes: UnboundedReceiver<PushInfo>,
) -> (Sink, Stream) {
    (Sink::Node(connection, publish), Stream::Node(pushes))
}

impl Sink {
    /// Subscribes to a channel. Whether that is confirmed by now; it is told as [`ChannelEvent::Confirmed`] otherwise.
    pub(super) async fn subscribe(&mut self, channel: &str) -> Result<bool, RedisError> {
        match self {
            Self::Server(sink) => sink.subscribe(channel).await.map(|()| true),
            Self::Node(connection, publish) => {
                let command = match publish {
                    Publish::Classic => "SUBSCRIBE",
                    Publish::Sharded => "SSUBSCRIBE",
                };
                said(connection, redis::cmd(command).arg(channel)).await?;
                Ok(false)
            }
        }
    }

    pub(super) async fn unsubscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Server(sink) => sink.unsubscribe(channel).await,
            Self::Node(connection, publish) => {
                let command = match publish {
                    Publish::Classic => "UNSUBSCRIBE",
                    Publish::Sharded => "SUNSUBSCRIBE",
                };
                match said(connection, redis::cmd(command).arg(channel)).await {
                    // The slot is elsewhere by now, and the subscription ended with that.
                    Err(error) if error.redirect_node().is_some() => Ok(()),
                    said => said,
                }
            }
        }
    }

    pub(super) async fn ping(&mut self) -> RedisResult<()> {
        match self {
            Self::Server(sink) => sink.ping::<Value>().await.map(drop),
            Self::Node(connection, _) => said(connection, &redis::cmd("PING")).await,
        }
    }
}

async fn said(connection: &mut Connection, cmd: &Cmd) -> RedisResult<()> {
    let reply = connection.send_packed_command(cmd).await;
    reply.and_then(Value::extract_error).map(drop)
}

impl Stream {
    /// What comes next, until the connection ends.
    pub(super) async fn next(&mut self) -> Option<ChannelEvent> {
        match self {
            Self::Server(stream) => loop {
                let message = stream.next().await?;
                if message.get_payload_bytes() != REPEATED {
                    return Some(ChannelEvent::Message(message.get_channel_name().into()));
                }
            },
            Self::Node(pushes) => loop {
                let push = pushes.recv().await?;
                if push.kind == PushKind::Disconnection {
                    return None;
                }
                if let Some(event) = of_push(&push) {
                    return Some(event);
                }
            },
        }
    }
}

fn of_push(push: &PushInfo) -> Option<ChannelEvent> {
    let channel = redis::from_redis_value_ref::<String>(push.data.first()?).ok()?;
    let said_again = matches!(push.data.get(1), Some(Value::BulkString(said)) if said == REPEATED);
    let event = match push.kind {
        PushKind::Message | PushKind::SMessage if said_again => return None,
        PushKind::Message | PushKind::SMessage => ChannelEvent::Message,
        PushKind::Subscribe | PushKind::SSubscribe => ChannelEvent::Confirmed,
        PushKind::Unsubscribe | PushKind::SUnsubscribe => ChannelEvent::Ended,
        _ => return None,
    };
    Some(event(channel.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_is_no_news_of_a_node_either() {
        for kind in [PushKind::Message, PushKind::SMessage] {
            let push = |said: &str| PushInfo {
                kind: kind.clone(),
                data: ["channel", said]
                    .map(|part| Value::BulkString(part.into()))
                    .into(),
            };
            assert!(matches!(
                of_push(&push("1")),
                Some(ChannelEvent::Message(_))
            ));
            assert!(of_push(&push("00")).is_none());
        }
    }
}
