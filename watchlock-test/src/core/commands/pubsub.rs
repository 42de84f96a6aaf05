//! Messages.

use std::collections::BTreeSet;

use crate::core::call::Call;
use crate::core::failure::{Failure, Outcome};
use crate::core::hub::{Hub, Listeners};
use crate::core::session::Session;
use crate::core::{Bytes, Reply, glob};

/// What can be listened to.
#[derive(Clone, Copy)]
struct Space {
    joined: &'static str,
    left: &'static str,
    listeners: fn(&mut Hub) -> &mut Listeners,
    own: fn(&mut Session) -> &mut BTreeSet<Bytes>,
    /// What a reply counts.
    count: fn(&Session) -> usize,
}

const CHANNELS: Space = Space {
    joined: "subscribe",
    left: "unsubscribe",
    listeners: |hub| &mut hub.channels,
    own: |session| &mut session.channels,
    count: Session::subscriptions,
};

const PATTERNS: Space = Space {
    joined: "psubscribe",
    left: "punsubscribe",
    listeners: |hub| &mut hub.patterns,
    own: |session| &mut session.patterns,
    count: Session::subscriptions,
};

const SHARD_CHANNELS: Space = Space {
    joined: "ssubscribe",
    left: "sunsubscribe",
    listeners: |hub| &mut hub.shard_channels,
    own: |session| &mut session.shard_channels,
    count: |session| session.shard_channels.len(),
};

pub(super) fn subscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(join(call, arguments, CHANNELS))
}

pub(super) fn psubscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(join(call, arguments, PATTERNS))
}

pub(super) fn ssubscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if call.caller.is_in_transaction {
        let text = "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client";
        return Err(Failure::fixed(text));
    }
    Ok(join(call, arguments, SHARD_CHANNELS))
}

pub(super) fn unsubscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(leave(call, arguments, CHANNELS))
}

pub(super) fn punsubscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(leave(call, arguments, PATTERNS))
}

pub(super) fn sunsubscribe(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(leave(call, arguments, SHARD_CHANNELS))
}

fn join(call: &mut Call<'_>, arguments: &[Bytes], space: Space) -> Reply {
    let id = call.caller.session;
    let mut pushes = Vec::new();
    for name in &arguments[1..] {
        (space.listeners)(&mut call.state.hub).add(name, id);
        let count = call.session().map_or(0, |session| {
            (space.own)(session).insert(name.clone());
            (space.count)(session)
        });
        pushes.push(push(space.joined, Some(name), count));
    }
    Reply::Pushes(pushes)
}

/// Without names it leaves all.
fn leave(call: &mut Call<'_>, arguments: &[Bytes], space: Space) -> Reply {
    let id = call.caller.session;
    let all = call.session().map(|session| (space.own)(session).clone());
    let names: Vec<_> = match &arguments[1..] {
        [] => all.unwrap_or_default().into_iter().collect(),
        names => names.to_vec(),
    };
    let mut pushes = Vec::new();
    for name in &names {
        (space.listeners)(&mut call.state.hub).remove(name, id);
        let count = call.session().map_or(0, |session| {
            (space.own)(session).remove(name);
            (space.count)(session)
        });
        pushes.push(push(space.left, Some(name), count));
    }
    if pushes.is_empty() {
        let count = call.session().map_or(0, |session| (space.count)(session));
        pushes.push(push(space.left, None, count));
    }
    Reply::Pushes(pushes)
}

fn push(kind: &str, name: Option<&Bytes>, count: usize) -> Vec<Reply> {
    let name = Reply::bulk_or_null(name.cloned());
    vec![Reply::bulk(kind), name, Reply::count(count)]
}

pub(super) fn publish(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let heard = call.state.publish(&arguments[1], &arguments[2]);
    Ok(Reply::count(heard))
}

pub(super) fn spublish(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    let heard = call.state.publish_to_shard(&arguments[1], &arguments[2]);
    Ok(Reply::count(heard))
}

pub(super) fn channels(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() > 3 {
        return Err(Failure::wrong_subcommand("PUBSUB", "channels"));
    }
    Ok(names(&call.state.hub.channels, arguments.get(2)))
}

pub(super) fn shard_channels(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    if arguments.len() > 3 {
        return Err(Failure::wrong_subcommand("PUBSUB", "shardchannels"));
    }
    Ok(names(&call.state.hub.shard_channels, arguments.get(2)))
}

fn names(listeners: &Listeners, pattern: Option<&Bytes>) -> Reply {
    let names = listeners.names();
    let names = names.filter(|name| pattern.is_none_or(|pattern| glob::matches(pattern, name)));
    Reply::bulks(names.map(|name| &**name))
}

pub(super) fn numsub(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(counts(&call.state.hub.channels, arguments))
}

pub(super) fn shard_numsub(call: &mut Call<'_>, arguments: &[Bytes]) -> Outcome {
    Ok(counts(&call.state.hub.shard_channels, arguments))
}

fn counts(listeners: &Listeners, arguments: &[Bytes]) -> Reply {
    let counts = arguments[2..].iter().flat_map(|name| {
        let count = listeners.of(name).count();
        [Reply::bulk(&**name), Reply::count(count)]
    });
    Reply::Array(counts.collect())
}

pub(super) fn numpat(call: &mut Call<'_>, _arguments: &[Bytes]) -> Outcome {
    Ok(Reply::count(call.state.hub.patterns.len()))
}
