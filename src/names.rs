//! The names of one lock: its key, its channel and its further keys, as Redisson writes them.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, LazyLock};

use crate::error::Error;
use crate::host::RandomState;
use crate::slot::{self, Slot, Target};

/// Longest key, prefix included, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 512;

/// The key with the label of a client. It has no prefix, so that each client can read those of all others.
pub(crate) fn label_key(client: &str) -> String {
    format!("watchlock_client:{client}")
}

/// Kinds that are the same lock under one name: they share its key, its gate and its channel.
#[derive(Debug)]
pub(crate) struct Family {
    /// Unique for each family.
    pub(crate) tag: &'static str,
    /// What the channel's name begins with. One that ends with a brace has the key in braces right behind it, whatever the
    /// key is.
    pub(crate) channel: &'static str,
}

impl Family {
    pub(crate) const PLAIN: Self = Self {
        tag: "lock",
        channel: "redisson_lock__channel",
    };

    /// Fair locks. They have their own gate, as their waiters need other messages than those of the plain lock.
    pub(crate) const FAIR: Self = Self {
        tag: "fair",
        ..Self::PLAIN
    };

    /// String locks. Their releases are published on the plain lock's channel.
    pub(crate) const SIMPLE: Self = Self {
        tag: "simple",
        ..Self::PLAIN
    };
}

/// The names of one lock, for the user and in Redis.
///
/// Names are equal if their families and keys are: an owner of the plain lock `x` does not enter a read/write lock `x`. An
/// application makes thousands of handles, and each step of a hold looks up its name. So the key is a part of the
/// channel's text, and is hashed once.
#[derive(Debug)]
pub(crate) struct Names {
    /// That of its family.
    tag: &'static str,
    channel: Box<str>,
    /// Offsets in `channel`: where the key begins, where the user's name begins, and where both end.
    key_at: u32,
    name_at: u32,
    end: u32,
    hash: u64,
    target: Target,
}

impl Names {
    /// The names of the lock `name`, behind the client's key prefix.
    ///
    /// # Errors
    ///
    /// `InvalidName` when the name is empty or the key longer than [`MAX_KEY_BYTES`].
    pub(crate) fn of(family: &Family, prefix: &str, name: &str) -> Result<Self, Error> {
        if name.is_empty() || prefix.len() + name.len() > MAX_KEY_BYTES {
            return Err(invalid(prefix, name));
        }
        Self::of_any_length(family, prefix, name)
    }

    /// Without a limit to the key's length: for locks that this crate names itself.
    pub(crate) fn of_any_length(family: &Family, prefix: &str, name: &str) -> Result<Self, Error> {
        let bytes = prefix.len() + name.len();
        let braced = family.channel.strip_suffix('{');
        let parts = match braced {
            Some(first) => [first, "", "{", prefix, name, "}"],
            None => tagged(family.channel, prefix, name),
        };
        let key_at: usize = parts[..3].iter().map(|part| part.len()).sum();
        let place = |at: usize| u32::try_from(at).map_err(|_| invalid(prefix, name));
        let channel = parts.concat().into_boxed_str();
        Ok(Self {
            tag: family.tag,
            hash: HASHER.hash_one(&channel[key_at..key_at + bytes]),
            key_at: place(key_at)?,
            name_at: place(key_at + prefix.len())?,
            end: place(key_at + bytes)?,
            target: target(&channel[key_at..key_at + bytes], braced.is_some()),
            channel,
        })
    }

    /// The name that the user gave.
    pub(crate) fn name(&self) -> &str {
        &self.channel[self.name_at as usize..self.end as usize]
    }

    /// The hash: the prefix and the name, never braced.
    pub(crate) fn key(&self) -> &str {
        &self.channel[self.key_at as usize..self.end as usize]
    }

    /// Where releases are published.
    pub(crate) fn channel(&self) -> &str {
        &self.channel
    }

    /// Redisson's `first:{key}`, a further key of the lock.
    pub(crate) fn prefixed(&self, first: &str) -> String {
        tagged(first, "", self.key()).concat()
    }

    /// Redisson's `{key}:suffix`.
    pub(crate) fn suffixed(&self, suffix: &str) -> String {
        let key = self.key();
        if key.contains('{') {
            format!("{key}:{suffix}")
        } else {
            format!("{{{key}}}:{suffix}")
        }
    }

    /// Whether Redis keeps a queue of those that wait.
    pub(crate) fn has_redis_queue(&self) -> bool {
        self.tag == Family::FAIR.tag
    }

    /// The cluster node that serves the key, and all other keys of the lock.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// The hash of the key, with a seed of this process.
    pub(crate) fn hash_code(&self) -> u64 {
        self.hash
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other) || (self.tag, self.key()) == (other.tag, other.key())
    }
}

impl Eq for Names {}

impl Hash for Names {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Keyed at random, so that nobody can choose names that collide.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// A map by names.
pub(crate) type ByNames<T> = HashMap<Arc<Names>, T, BuildHasherDefault<Hashed>>;

/// Passes on the hash that [`Names`] have already.
#[derive(Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = HASHER.hash_one(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The parts of Redisson's `first:{prefix name}`, which keeps all keys of a lock in one cluster slot. A key that has a brace
/// itself stays as it is.
fn tagged<'a>(first: &'a str, prefix: &'a str, name: &'a str) -> [&'a str; 6] {
    let braced = prefix.contains('{') || name.contains('{');
    let (open, close) = if braced { ("", "") } else { ("{", "}") };
    [first, ":", open, prefix, name, close]
}

/// The slot of all keys of a lock: its key is the tag of the others, or has a tag that the others share. Some names with
/// braces have neither, nor has any if the channel has the key in braces.
fn target(key: &str, is_braced: bool) -> Target {
    let has_tag = !is_braced && slot::tag(key).is_some();
    if has_tag || !key.contains(['{', '}']) {
        Target::Slot(Slot::of(key))
    } else {
        Target::None
    }
}

fn invalid(prefix: &str, name: &str) -> Error {
    Error::InvalidName {
        lock: Some(name.into()),
        bytes: prefix.len() + name.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn channels_follow_the_brace_rule() {
        let names = |name| Names::of(&Family::PLAIN, "", name).unwrap();
        assert_eq!(names("foo").channel(), "redisson_lock__channel:{foo}");
        assert_eq!(names("{a}b").channel(), "redisson_lock__channel:{a}b");
        assert_eq!(names("a}b").channel(), "redisson_lock__channel:{a}b}");
        assert_eq!(names("a{").channel(), "redisson_lock__channel:a{");
        assert_eq!(names("a{").key(), "a{");
    }

    #[test]
    fn only_fair_locks_have_a_queue_in_redis() {
        let has = |family| Names::of(family, "", "x").unwrap().has_redis_queue();
        assert!(has(&Family::FAIR));
        assert!(!has(&Family::PLAIN) && !has(&Family::SIMPLE));
    }

    #[test]
    fn the_prefix_is_part_of_the_key_and_of_the_bound() {
        let names = Names::of(&Family::PLAIN, "app:", "foo").unwrap();
        assert_eq!((names.name(), names.key()), ("foo", "app:foo"));
        assert_eq!(names.channel(), "redisson_lock__channel:{app:foo}");
        let braced = Names::of(&Family::PLAIN, "{app}:", "foo").unwrap();
        assert_eq!((braced.name(), braced.key()), ("foo", "{app}:foo"));
        assert_eq!(braced.channel(), "redisson_lock__channel:{app}:foo");
        assert!(Names::of(&Family::PLAIN, "app:", &"x".repeat(508)).is_ok());
        assert!(Names::of(&Family::PLAIN, "app:", &"x".repeat(509)).is_err());
        assert!(Names::of(&Family::PLAIN, "app:", "").is_err());
    }

    #[test]
    fn names_with_the_same_key_are_the_same() {
        let one = Arc::new(Names::of(&Family::PLAIN, "a:", "b").unwrap());
        let other = Names::of(&Family::PLAIN, "", "a:b").unwrap();
        let mut map = ByNames::default();
        map.insert(one, 1);
        assert_eq!(map.get(&other), Some(&1));
        assert_eq!(
            map.get(&Names::of(&Family::PLAIN, "", "a:c").unwrap()),
            None
        );
    }

    #[test]
    fn names_hash_by_their_keys() {
        use std::hash::BuildHasher;
        let names = |name: &str| Names::of(&Family::PLAIN, "", name).unwrap();
        let hasher = BuildHasherDefault::<Hashed>::default();
        let codes: std::collections::HashSet<_> = (0..100)
            .map(|number: u32| {
                let names = names(&number.to_string());
                let code = names.hash_code();
                assert_eq!(hasher.hash_one(&names), code);
                let same = Names::of(&Family::PLAIN, "", &number.to_string());
                assert_eq!(same.unwrap().hash_code(), code, "the same key");
                code
            })
            .collect();
        assert!(codes.len() > 90, "{}", codes.len());
        let code = |bytes| {
            let mut hasher = hasher.build_hasher();
            hasher.write(bytes);
            hasher.finish()
        };
        assert_ne!(code(b"a"), code(b"b"));
    }

    #[test]
    fn a_lock_of_another_family_is_another_lock() {
        let names = |family| Arc::new(Names::of(family, "", "x").unwrap());
        let other = Family {
            tag: "other",
            ..Family::PLAIN
        };
        let mut map = ByNames::default();
        map.insert(names(&Family::PLAIN), 1);
        assert_eq!(map.get(&names(&Family::PLAIN)), Some(&1), "the same lock");
        assert_eq!(map.get(&names(&other)), None);
    }

    #[test]
    fn further_keys_follow_the_brace_rule() {
        let names = |name| Names::of(&Family::PLAIN, "", name).unwrap();
        let token = |name| names(name).prefixed("redisson_lock_token");
        assert_eq!(token("foo"), "redisson_lock_token:{foo}");
        assert_eq!(token("a{"), "redisson_lock_token:a{");
        assert_eq!(names("foo").suffixed("timeout"), "{foo}:timeout");
        assert_eq!(names("{a}b").suffixed("timeout"), "{a}b:timeout");
    }

    #[test]
    fn a_channel_that_has_the_key_in_braces_always_does() {
        let family = Family {
            tag: "latch",
            channel: "channel__{",
        };
        let names = |prefix, name| Names::of(&family, prefix, name).unwrap();
        for (prefix, name, channel) in [
            ("", "foo", "channel__{foo}"),
            ("app:", "foo", "channel__{app:foo}"),
            ("", "{a}", "channel__{{a}}"),
            ("", "a{", "channel__{a{}"),
        ] {
            let names = names(prefix, name);
            assert_eq!(names.channel(), channel);
            assert_eq!(
                (names.name(), names.key()),
                (name, &*format!("{prefix}{name}"))
            );
        }
        assert_eq!(names("", "foo").prefixed("other"), "other:{foo}");
        assert_eq!(names("", "foo").target(), Target::Slot(Slot::of("foo")));
        for name in ["{a}", "a:{b}:c", "a}b", "{}x", "a{"] {
            assert_eq!(names("", name).target(), Target::None, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        /// A name has a target if all keys and channels of its lock are in the slot of its key.
        #[test]
        fn all_names_of_a_lock_are_in_one_slot_or_it_is_known(name in "[ab{}]{1,6}") {
            let names = Names::of(&Family::PLAIN, "", &name).unwrap();
            let queue = names.prefixed("redisson_lock_queue");
            let suffixed = names.suffixed("6a1b:7:rwlock_timeout:1");
            let own_channel = format!("{}:6a1b:7", names.channel());
            let slots = [names.channel(), &queue, &suffixed, &own_channel].map(Slot::of);
            let same = slots.iter().all(|slot| *slot == Slot::of(&name));
            let known = names.target() == Target::Slot(Slot::of(&name));
            // Different texts share a slot by chance now and then. Nothing relies on that.
            prop_assert!(same || !known, "{}", name);
            prop_assert!(known || names.target() == Target::None);
        }
    }

    #[test]
    fn names_whose_keys_are_in_several_slots_have_no_target() {
        let target = |name| Names::of(&Family::PLAIN, "", name).unwrap().target();
        for name in ["foo", "{a}b", "a{b}c", "{a}{", "a{b}{}"] {
            assert!(matches!(target(name), Target::Slot(_)), "{name}");
        }
        for name in ["{", "a{", "}", "a}b", "{}x", "a{}b{c}"] {
            assert_eq!(target(name), Target::None, "{name}");
        }
    }
}
