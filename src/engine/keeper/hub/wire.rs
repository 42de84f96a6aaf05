//! The two ends of a connection with subscriptions: commands go into a [`Sink`], events come out of a [`Stream`].
//!
//! A connection to a node of a cluster speaks RESP3, in which the server's own messages (pushes) differ from replies.
//! In RESP2 the client would take the unrequested end of a subscription for a reply, and would not notice that it gets
//! no messages any more.

use futures_util::StreamExt;
use redis::aio::{PubSub, PubSubSink, PubSubStream};
use redis::{Cmd, PushInfo, PushKind, RedisError, RedisResult, Value};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::backend::Connection;
use crate::config::Publish;

/// A message that follows another one, for waiters of Redisson (`lua/rw/release.lua`). We ignore it.
const REPEATED: &[u8] = b"00";

/// An event of a channel.
pub(super) enum ChannelEvent {
    /// A message on that channel.
    Message(Box<str>),
    /// The subscription begins.
    Confirmed(Box<str>),
    /// The subscription has ended, whether or not we asked for that.
    Ended(Box<str>),
}

/// Takes commands.
#[derive(Clone)]
pub(super) enum Sink {
    Server(PubSubSink),
    Node(Connection, Publish),
}

/// Returns events.
pub(super) enum Stream {
    Server(PubSubStream),
    Node(UnboundedReceiver<PushInfo>),
}

/// Both ends of a connection to the one server.
pub(super) fn to_server(pubsub: PubSub) -> (Sink, Stream) {
    let (sink, stream) = pubsub.split();
    (Sink::Server(sink), Stream::Server(stream))
}

/// Both ends of a connection to a node, which sends its pushes to `pushes`.
pub(super) fn to_node(
    connection: Connection,
    publish: Publish,
    pushes: UnboundedReceiver<PushInfo>,
) -> (Sink, Stream) {
    (Sink::Node(connection, publish), Stream::Node(pushes))
}

impl Sink {
    /// Subscribes to a channel. Returns whether that is confirmed by now. If not, the stream returns
    /// [`ChannelEvent::Confirmed`] later.
    pub(super) async fn subscribe(&mut self, channel: &str) -> Result<bool, RedisError> {
        match self {
            Self::Server(sink) => sink.subscribe(channel).await.map(|()| true),
            Self::Node(connection, publish) => {
                let command = match publish {
                    Publish::Classic => "SUBSCRIBE",
                    Publish::Sharded => "SSUBSCRIBE",
                };
                send(connection, redis::cmd(command).arg(channel)).await?;
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
                match send(connection, redis::cmd(command).arg(channel)).await {
                    // The slot has moved, which ended the subscription.
                    Err(error) if error.redirect_node().is_some() => Ok(()),
                    result => result,
                }
            }
        }
    }

    pub(super) async fn ping(&mut self) -> RedisResult<()> {
        match self {
            Self::Server(sink) => sink.ping::<Value>().await.map(drop),
            Self::Node(connection, _) => send(connection, &redis::cmd("PING")).await,
        }
    }
}

async fn send(connection: &mut Connection, cmd: &Cmd) -> RedisResult<()> {
    let reply = connection.send_packed_command(cmd).await;
    reply.and_then(Value::extract_error).map(drop)
}

impl Stream {
    /// The next event, or `None` when the connection has ended.
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
                if let Some(event) = event_of(&push) {
                    return Some(event);
                }
            },
        }
    }
}

fn event_of(push: &PushInfo) -> Option<ChannelEvent> {
    let channel = redis::from_redis_value_ref::<String>(push.data.first()?).ok()?;
    let is_repeated =
        matches!(push.data.get(1), Some(Value::BulkString(message)) if message == REPEATED);
    let event = match push.kind {
        PushKind::Message | PushKind::SMessage if is_repeated => return None,
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
    fn a_repeated_message_of_a_node_is_ignored_too() {
        for kind in [PushKind::Message, PushKind::SMessage] {
            let push = |message: &str| PushInfo {
                kind: kind.clone(),
                data: ["channel", message]
                    .map(|part| Value::BulkString(part.into()))
                    .into(),
            };
            assert!(matches!(
                event_of(&push("1")),
                Some(ChannelEvent::Message(_))
            ));
            assert!(event_of(&push("00")).is_none());
        }
    }
}
