//! One database: keys, their values, and when they expire.

use std::collections::{BTreeMap, BTreeSet};

use super::Bytes;
use super::failure::Failure;
use super::value::{Kind, Value};

/// What is stored under a key.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// Milliseconds since 1970.
    expires_at: Option<i64>,
}

/// Keys in the order of their bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Database {
    entries: BTreeMap<Bytes, Entry>,
    expiries: BTreeSet<(i64, Bytes)>,
    /// How often keys changed that somebody watches, or has watched.
    watched: BTreeMap<Bytes, u64>,
}

impl Database {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn expiring(&self) -> usize {
        self.expiries.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.entries.keys()
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key)
    }

    pub(super) fn value(&self, key: &[u8]) -> Option<&Value> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// The value, if there is one and it is of this kind.
    pub(super) fn read<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, Failure> {
        let value = self.value(key);
        let read = |value| K::of(value).ok_or(Failure::WRONG_TYPE);
        value.map(read).transpose()
    }

    /// The same, to be changed.
    pub(super) fn write<K: Kind>(&mut self, key: &[u8]) -> Result<Option<&mut K>, Failure> {
        let Some(entry) = self.entries.get_mut(key) else {
            return Ok(None);
        };
        let inner = K::of_mut(&mut entry.value).ok_or(Failure::WRONG_TYPE)?;
        Ok(Some(inner))
    }

    /// The same; the key is created if there is none.
    pub(super) fn open<K: Kind>(&mut self, key: &[u8]) -> Result<&mut K, Failure> {
        let entry = self.entries.entry(key.to_vec()).or_insert_with(|| Entry {
            value: K::default().into_value(),
            expires_at: None,
        });
        K::of_mut(&mut entry.value).ok_or(Failure::WRONG_TYPE)
    }

    /// Puts a value in place of whatever was there.
    pub(super) fn put(&mut self, key: &[u8], value: Value, expires_at: Option<i64>) {
        self.remove(key);
        let entry = Entry { value, expires_at };
        if let Some(at) = expires_at {
            self.expiries.insert((at, key.to_vec()));
        }
        self.entries.insert(key.to_vec(), entry);
    }

    pub(super) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        if let Some(at) = entry.expires_at {
            self.expiries.remove(&(at, key.to_vec()));
        }
        Some(entry)
    }

    /// Removes the key if its value is an empty container; returns whether it did.
    pub(super) fn tidy(&mut self, key: &[u8]) -> bool {
        let is_hollow = self.value(key).is_some_and(Value::is_hollow);
        is_hollow && self.remove(key).is_some()
    }

    pub(super) fn expires_at(&self, key: &[u8]) -> Option<i64> {
        self.entries.get(key)?.expires_at
    }

    /// Does nothing if there is no such key.
    pub(super) fn set_expiry(&mut self, key: &[u8], at: Option<i64>) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut entry.expires_at, at) {
            self.expiries.remove(&(old, key.to_vec()));
        }
        if let Some(at) = at {
            self.expiries.insert((at, key.to_vec()));
        }
    }

    /// When the next key expires, and which.
    pub(super) fn next_expiry(&self) -> Option<&(i64, Bytes)> {
        self.expiries.first()
    }

    /// Counts the changes of this key from now on; returns their number so far.
    pub(super) fn watch(&mut self, key: &[u8]) -> u64 {
        *self.watched.entry(key.to_vec()).or_default()
    }

    /// A number that is another one after each change of a watched key.
    pub(super) fn revision(&self, key: &[u8]) -> u64 {
        self.watched.get(key).copied().unwrap_or(0)
    }

    /// The key has changed.
    pub(super) fn touch(&mut self, key: &[u8]) {
        if let Some(changes) = self.watched.get_mut(key) {
            *changes += 1;
        }
    }

    pub(super) fn clear(&mut self) {
        for (key, changes) in &mut self.watched {
            *changes += u64::from(self.entries.contains_key(key));
        }
        self.entries.clear();
        self.expiries.clear();
    }
}
