//! Slots of a cluster: each node serves some of the 16 384 slots, and the keys that hash to them.
//!
//! If a key has text between its first `{` and the next `}`, only this *tag* is hashed. So names with the same tag share a
//! slot and a node.

use crc::{CRC_16_XMODEM, Crc};

pub(crate) const SLOTS: u16 = 16_384;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(u16);

impl Slot {
    /// The slot of a key.
    pub(crate) fn of(key: &str) -> Self {
        let hashed = tag(key).unwrap_or(key);
        Self(CRC.checksum(hashed.as_bytes()) % SLOTS)
    }

    /// None if there is no slot of this number.
    pub(crate) fn new(number: u16) -> Option<Self> {
        (number < SLOTS).then_some(Self(number))
    }

    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// The tag of a key, if it has one.
pub(crate) fn tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// Which node of a cluster a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    /// Any node.
    Any,
    /// The node that serves this slot.
    Slot(Slot),
    /// No node: its keys are in different slots.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_found_by_its_number() {
        for number in [0, 1, 16_383] {
            assert_eq!(Slot::new(number).map(Slot::index), Some(number.into()));
        }
        assert_eq!(Slot::new(16_384), None);
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
