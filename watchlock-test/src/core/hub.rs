//! Who listens to what.

use std::collections::{BTreeMap, BTreeSet};

use super::reply::Reply;
use super::session::SessionId;
use super::state::State;
use super::{Bytes, glob};

/// Listeners by channel or pattern.
#[derive(Debug, Default)]
pub(super) struct Listeners(BTreeMap<Bytes, BTreeSet<SessionId>>);

impl Listeners {
    pub(super) fn add(&mut self, name: &[u8], id: SessionId) {
        self.0.entry(name.to_vec()).or_default().insert(id);
    }

    pub(super) fn remove(&mut self, name: &[u8], id: SessionId) {
        if let Some(listeners) = self.0.get_mut(name) {
            listeners.remove(&id);
            if listeners.is_empty() {
                self.0.remove(name);
            }
        }
    }

    pub(super) fn of(&self, name: &[u8]) -> impl Iterator<Item = SessionId> {
        self.0.get(name).into_iter().flatten().copied()
    }

    /// Those who listen to it as a pattern, with their patterns.
    fn matching(&self, channel: &[u8]) -> impl Iterator<Item = (&Bytes, SessionId)> {
        let matching = self
            .0
            .iter()
            .filter(|(pattern, _)| glob::matches(pattern, channel));
        matching.flat_map(|(pattern, listeners)| listeners.iter().map(move |id| (pattern, *id)))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Bytes> {
        self.0.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Each listener counted.
    pub(super) fn total(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }
}

/// What a server's connections listen to.
#[derive(Debug, Default)]
pub(super) struct Hub {
    pub(super) channels: Listeners,
    pub(super) patterns: Listeners,
    pub(super) shard_channels: Listeners,
}

impl State {
    /// Sends a message to everybody who listens; returns to how many.
    pub(super) fn publish(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let direct: Vec<_> = self.hub.channels.of(channel).collect();
        let by_pattern = self.hub.patterns.matching(channel);
        let by_pattern: Vec<_> = by_pattern.map(|(name, id)| (name.clone(), id)).collect();
        let (kind, channel, message) = ("message", Reply::bulk(channel), Reply::bulk(message));
        for id in &direct {
            let items = [Reply::bulk(kind), channel.clone(), message.clone()];
            self.send(*id, &items);
        }
        for (pattern, id) in &by_pattern {
            let pattern = Reply::bulk(&**pattern);
            let items = [
                Reply::bulk("pmessage"),
                pattern,
                channel.clone(),
                message.clone(),
            ];
            self.send(*id, &items);
        }
        direct.len() + by_pattern.len()
    }

    /// The same in the channels of shards, which have no patterns.
    pub(super) fn publish_to_shard(&mut self, channel: &[u8], message: &[u8]) -> usize {
        let listeners: Vec<_> = self.hub.shard_channels.of(channel).collect();
        for id in &listeners {
            let items = [
                Reply::bulk("smessage"),
                Reply::bulk(channel),
                Reply::bulk(message),
            ];
            self.send(*id, &items);
        }
        listeners.len()
    }

    fn send(&mut self, id: SessionId, items: &[Reply]) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.push(items);
            self.ready.insert(id);
        }
    }

    /// Notes what happened to a key, and publishes it where `notify-keyspace-events` asks for it.
    pub(super) fn notify(&mut self, class: char, event: &str, db: usize, key: &[u8]) {
        self.databases[db].touch(key);
        let wanted = self.settings.notified();
        if wanted.is_empty() {
            return;
        }
        // A stands for most classes.
        let is_wanted =
            wanted.contains(class) || class != 'm' && class != 'n' && wanted.contains('A');
        if !is_wanted {
            return;
        }
        let (of_key, of_event) = (wanted.contains('K'), wanted.contains('E'));
        if of_key {
            let mut channel = format!("__keyspace@{db}__:").into_bytes();
            channel.extend_from_slice(key);
            self.publish(&channel, event.as_bytes());
        }
        if of_event {
            self.publish(format!("__keyevent@{db}__:{event}").as_bytes(), key);
        }
    }
}
