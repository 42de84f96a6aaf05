//! Slots of a cluster: each of its nodes has some of the 16 384, and with them the keys that hash to them.
//!
//! Only what is between a key's first `{` and the `}` behind it is hashed, if there is anything: its *tag*. So names
//! that share a tag share a slot, and a node.

use crc::{CRC_16_XMODEM, Crc};

/// How many there are.
pub(crate) const SLOTS: u16 = 16_384;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// A slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(u16);

impl Slot {
    /// That of a key.
    pub(crate) fn of(key: &str) -> Self {
        let hashed = tag(key).unwrap_or(key);
        Self(CRC.checksum(hashed.as_bytes()) % SLOTS)
    }

    /// One by its number.
    pub(crate) fn new(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    /// The one that has this index.
    pub(crate) fn at(index: usize) -> Option<Self> {
        Self::new(index.try_into().ok()?)
    }

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// The part of a key that alone is hashed, if there is one.
pub(crate) fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// For which node of a cluster a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    /// Any will do.
    Any,
    /// The one that has this slot.
    Slot(Slot),
    /// None has all of its keys.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_found_by_its_index() {
        for index in [0, 1, 16_383] {
            assert_eq!(Slot::at(index).map(Slot::index), Some(index));
        }
        assert_eq!(Slot::at(16_384), None);
    }

    #[test]
    fn slots_are_those_of_redis() {
        // By CLUSTER KEYSLOT.
        for (key, slot) in [
            ("", 0),
            ("foo", 12_182),
            ("123456789", 12_739),
            ("redisson_lock__channel:{foo}", 12_182),
            ("{user1000}.following", 3_443),
            ("user1000", 3_443),
            ("foo{}{bar}", 8_363),
            ("foo{{bar}}zap", 4_015),
            ("{bar", 4_015),
            ("foo{bar}{zap}", 5_061),
        ] {
            assert_eq!(Slot::of(key), Slot(slot), "{key}");
        }
    }

    #[test]
    fn there_are_no_more_than_there_are() {
        assert_eq!(Slot::new(16_383), Some(Slot(16_383)));
        assert_eq!(Slot::new(16_384), None);
    }
}
