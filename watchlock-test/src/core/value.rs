//! What a key holds.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Bytes;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    String(Bytes),
    Hash(Hash),
    List(VecDeque<Bytes>),
    SortedSet(SortedSet),
    Set(BTreeSet<Bytes>),
}

impl Value {
    /// As `TYPE` says it.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::SortedSet(_) => "zset",
            Self::Set(_) => "set",
        }
    }

    /// Whether it is a container without content, which no key keeps.
    pub(super) fn is_hollow(&self) -> bool {
        match self {
            Self::String(_) => false,
            Self::Hash(hash) => hash.len() == 0,
            Self::List(list) => list.is_empty(),
            Self::SortedSet(set) => set.len() == 0,
            Self::Set(set) => set.is_empty(),
        }
    }
}

/// A type of value, to be found in a [`Value`].
pub(super) trait Kind: Sized + Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
}

macro_rules! kind {
    ($type:ty, $variant:ident) => {
        impl Kind for $type {
            fn of(value: &Value) -> Option<&Self> {
                match value {
                    Value::$variant(inner) => Some(inner),
                    _ => None,
                }
            }

            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(inner) => Some(inner),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }
        }
    };
}

kind!(Bytes, String);
kind!(Hash, Hash);
kind!(VecDeque<Bytes>, List);
kind!(SortedSet, SortedSet);
kind!(BTreeSet<Bytes>, Set);

/// Fields with values, in the order in which the fields came.
#[derive(Debug, Clone, Default)]
pub(super) struct Hash {
    places: BTreeMap<Bytes, u64>,
    fields: BTreeMap<u64, (Bytes, Bytes)>,
    next: u64,
}

impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Hash {
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    pub(super) fn get(&self, field: &[u8]) -> Option<&Bytes> {
        let place = self.places.get(field)?;
        self.fields.get(place).map(|(_, value)| value)
    }

    /// Returns whether the field is new.
    pub(super) fn set(&mut self, field: &[u8], value: Bytes) -> bool {
        if let Some(place) = self.places.get(field) {
            if let Some((_, old)) = self.fields.get_mut(place) {
                *old = value;
            }
            return false;
        }
        self.places.insert(field.to_vec(), self.next);
        self.fields.insert(self.next, (field.to_vec(), value));
        self.next += 1;
        true
    }

    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let place = self.places.remove(field);
        place.is_some_and(|place| self.fields.remove(&place).is_some())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.fields.values().map(|(field, value)| (field, value))
    }
}

/// A score, ordered as a number; it is never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Score(pub(super) f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).unwrap_or(Ordering::Equal)
    }
}

/// Members with scores, ordered by score and then by member.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SortedSet {
    scores: BTreeMap<Bytes, Score>,
    order: BTreeSet<(Score, Bytes)>,
}

impl SortedSet {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).map(|score| score.0)
    }

    /// Returns whether the member is new.
    pub(super) fn set(&mut self, member: &[u8], score: f64) -> bool {
        // There is no negative zero.
        let score = score + 0.0;
        let old = self.scores.insert(member.to_vec(), Score(score));
        if let Some(old) = old {
            self.order.remove(&(old, member.to_vec()));
        }
        self.order.insert((Score(score), member.to_vec()));
        old.is_none()
    }

    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else {
            return false;
        };
        self.order.remove(&(score, member.to_vec()));
        true
    }

    /// From the lowest score on.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        self.order.iter().map(|(score, member)| (member, score.0))
    }

    /// The members with these scores and between them.
    pub(super) fn between(
        &self,
        min: f64,
        max: f64,
    ) -> impl DoubleEndedIterator<Item = (&Bytes, f64)> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = Included((Score(min), Bytes::new()));
        // No range of a tree may end before it begins.
        let to = match max.next_up() {
            next if next > min => Excluded((Score(next), Bytes::new())),
            _ => Excluded((Score(min), Bytes::new())),
        };
        let to = if max == f64::INFINITY { Unbounded } else { to };
        let range = self.order.range((from, to));
        range.map(|(score, member)| (member, score.0))
    }
}
