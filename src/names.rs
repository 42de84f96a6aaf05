//! The names of one lock: its key and its channel, as Redisson writes them.

use std::hash::{Hash, Hasher};

use crate::error::Error;

/// Longest key, prefix included, in bytes, unless set otherwise.
pub(crate) const MAX_KEY_BYTES: usize = 512;

/// What one lock is called: by the user, and in Redis.
///
/// Two are equal when their keys are.
#[derive(Debug)]
pub(crate) struct Names {
    /// What the user calls it.
    pub(crate) name: Box<str>,
    /// The hash: the prefix and the name, never braced.
    pub(crate) key: Box<str>,
    /// Where releases of a plain lock are told.
    pub(crate) channel: Box<str>,
}

impl Names {
    /// The names of the plain lock `name`, behind the client's key prefix.
    ///
    /// # Errors
    ///
    /// `InvalidName` when the name is empty or the key longer than `max_key_bytes`.
    pub(crate) fn plain(prefix: &str, name: &str, max_key_bytes: usize) -> Result<Self, Error> {
        let bytes = prefix.len() + name.len();
        if name.is_empty() || bytes > max_key_bytes {
            return Err(Error::InvalidName { bytes });
        }
        let key = format!("{prefix}{name}");
        Ok(Self {
            name: name.into(),
            channel: tagged("redisson_lock__channel", &key).into(),
            key: key.into(),
        })
    }
}

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Names {}

impl Hash for Names {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// Redisson's `prefix:{name}`, which keeps a lock's names in one cluster slot; a name that has a brace
/// of its own is left as it is.
fn tagged(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_follow_the_brace_rule() {
        let channel = |name| Names::plain("", name, 512).unwrap().channel;
        assert_eq!(&*channel("foo"), "redisson_lock__channel:{foo}");
        assert_eq!(&*channel("{a}b"), "redisson_lock__channel:{a}b");
        assert_eq!(&*channel("a}b"), "redisson_lock__channel:{a}b}");
        assert_eq!(&*channel("a{"), "redisson_lock__channel:a{");
    }

    #[test]
    fn the_prefix_is_part_of_the_key_and_of_the_bound() {
        let names = Names::plain("app:", "foo", 512).unwrap();
        assert_eq!((&*names.name, &*names.key), ("foo", "app:foo"));
        assert_eq!(&*names.channel, "redisson_lock__channel:{app:foo}");
        assert!(Names::plain("app:", &"x".repeat(508), 512).is_ok());
        assert!(Names::plain("app:", &"x".repeat(509), 512).is_err());
        assert!(Names::plain("app:", "", 512).is_err());
    }
}
