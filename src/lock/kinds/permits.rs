//! Permits of a counted lock, as Redisson's semaphores have them: a number of free permits, and beside it a record of each
//! permit that is taken.
//!
//! The number is Redisson's. Its expirable semaphore also keeps the records; beside the number of its plain semaphore this
//! crate keeps records of its own. Either way a record is what makes a permit somebody's: it has a lease, so a dead holder's
//! permit comes back; it has an id that is fresh for each acquire, so a repeat takes or gives back nothing twice.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::clock::millis;
use crate::config::Config;
use crate::engine::hold::kind::{Commands, Kind, KindCommands, KindRules, Try};
use crate::error::Error;
use crate::lease::LeaseMs;
use crate::lock::guard::sealed;
use crate::names::{Family, Names};
use crate::script::call::{
    PERMITS_ACQUIRE, PERMITS_CHANGE, PERMITS_FORGET, PERMITS_LOOK, PERMITS_NOTE, PERMITS_RELEASE,
    PERMITS_RENEW,
};
use crate::script::{Call, HoldRef, Reply};

/// The kind of [`Semaphore`](crate::Semaphore).
#[derive(Debug)]
pub enum Counting {}

/// The kind of [`PermitExpirableSemaphore`](crate::PermitExpirableSemaphore).
#[derive(Debug)]
pub enum Expirable {}

/// A kind of semaphore: the type parameter of its [`SemaphoreHandle`](crate::SemaphoreHandle). Only this crate can implement
/// it.
pub trait SemaphoreKind: sealed::Sealed + Send + Sync + 'static {
    /// The name of its handles in debug output.
    #[doc(hidden)]
    const HANDLE: &'static str;

    /// Whether Redisson, too, records taken permits.
    #[doc(hidden)]
    const RECORDED: bool;
}

impl sealed::Sealed for Counting {}
impl sealed::Sealed for Expirable {}

impl SemaphoreKind for Counting {
    const HANDLE: &'static str = "Semaphore";
    const RECORDED: bool = false;
}

impl SemaphoreKind for Expirable {
    const HANDLE: &'static str = "PermitExpirableSemaphore";
    const RECORDED: bool = true;
}

/// The most permits of one acquire: each is a record that a renewal writes.
pub(in crate::lock) const MOST_AT_ONCE: u32 = 1_024;

/// The id of a taken permit of a [`PermitExpirableSemaphore`](crate::PermitExpirableSemaphore), as Redisson has it: 16 bytes,
/// written as 32 hex digits. The client draws them; nobody else has the same.
///
/// ```
/// use watchlock::PermitId;
///
/// let id: PermitId = "0badcafe0badcafe0badcafe0badcafe".parse().unwrap();
/// assert_eq!(id.to_string(), "0badcafe0badcafe0badcafe0badcafe");
/// assert!("no id".parse::<PermitId>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PermitId([u8; 16]);

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PermitId {
    /// What Redis has recorded, for people.
    pub(in crate::lock) fn shown(recorded: &[u8]) -> String {
        <[u8; 16]>::try_from(recorded).map_or_else(
            |_| String::from_utf8_lossy(recorded).into_owned(),
            |id| Self(id).to_string(),
        )
    }
}

/// A text that is no [`PermitId`]: not 32 hex digits.
///
/// ```
/// let refused = "0badcafe".parse::<watchlock::PermitId>().unwrap_err();
/// assert_eq!(refused.to_string(), "a permit's id has 32 hex digits");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a permit's id has 32 hex digits")]
#[non_exhaustive]
pub struct InvalidPermitId;

impl FromStr for PermitId {
    type Err = InvalidPermitId;

    fn from_str(text: &str) -> Result<Self, InvalidPermitId> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).map_err(|_| InvalidPermitId)?;
        is_hex
            .then(|| Self(number.to_be_bytes()))
            .ok_or(InvalidPermitId)
    }
}

/// The ids of the permits of a hold: the same in each repeat of its acquire, and never those of another hold. The last 8
/// bytes of the client's uuid, 6 of the hold's number, and 2 to tell them apart.
pub(in crate::lock) fn ids(hold_id: &str, count: u32) -> impl Iterator<Item = PermitId> {
    let (client, number) = hold_id.split_once(':').unwrap_or_default();
    let (_, client) = Uuid::try_parse(client).unwrap_or_default().as_u64_pair();
    let number = number.parse::<u64>().unwrap_or_default();
    (0..count).map(move |index| {
        let place = (number << 16) | u64::from(index & 0xffff);
        PermitId(((u128::from(client) << 64) | u128::from(place)).to_be_bytes())
    })
}

/// Who keeps the records of taken permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::lock) enum Records {
    /// Redisson.
    Shared,
    /// This crate alone.
    Own,
}

const EXPIRABLE: Family = Family {
    tag: "expirable",
    channel: "redisson_sc",
};

const COUNTING: Family = Family {
    tag: "semaphore",
    channel: "redisson_sc",
};

/// What the keys of the notes of waiting requests, and of our own records, begin with.
const NEEDS: &str = "watchlock_needs";
const PERMITS: &str = "watchlock_permits";

impl Records {
    pub(in crate::lock) fn of_kind<K: SemaphoreKind>() -> Self {
        if K::RECORDED { Self::Shared } else { Self::Own }
    }

    pub(in crate::lock) fn family(self) -> &'static Family {
        match self {
            Self::Shared => &EXPIRABLE,
            Self::Own => &COUNTING,
        }
    }

    /// The key of the records.
    pub(in crate::lock) fn of(self, names: &Names) -> String {
        match self {
            Self::Shared => names.suffixed("timeout"),
            Self::Own => names.prefixed(PERMITS),
        }
    }

    /// Asks for the number of 'free', 'taken' or all ('total') permits, or whether so many could be taken.
    pub(in crate::lock) fn look(self, names: &Names, what: impl Into<String>) -> Call<'_> {
        PERMITS_LOOK.on(names).key(self.of(names)).arg(what.into())
    }

    /// Changes how many permits there are, as the script says.
    pub(in crate::lock) fn change<'a>(
        self,
        names: &'a Names,
        how: &'a str,
        permits: i64,
    ) -> Call<'a> {
        let call = PERMITS_CHANGE.on(names).key(self.of(names));
        call.arg(how).arg(permits.to_string()).wakes(names)
    }

    /// Gives permits back, whoever has them; `forgotten` says what becomes of those that never end.
    pub(in crate::lock) fn release<'a>(
        self,
        names: &'a Names,
        forgotten: &'static str,
        ids: impl Iterator<Item = PermitId>,
    ) -> Call<'a> {
        let call = PERMITS_RELEASE.on(names).key(self.of(names));
        let call = call.arg(names.channel()).arg(forgotten);
        with_ids(call, ids).publishes()
    }
}

fn with_ids(call: Call<'_>, ids: impl Iterator<Item = PermitId>) -> Call<'_> {
    let ids: Vec<_> = ids.collect();
    let call = call.arg(ids.len() as u64);
    ids.into_iter().fold(call, |call, id| call.arg(id.0))
}

/// A request for permits.
#[derive(Debug, Clone)]
pub(in crate::lock) struct Permits {
    pub(in crate::lock) records: Records,
    pub(in crate::lock) count: u32,
    /// How many permits there are when nobody has said so; 0 if somebody else says so.
    pub(in crate::lock) initial: u32,
    /// Set once Redis answered that the permits are forgotten: the release of their hold gives none back then.
    pub(in crate::lock) forgotten: Arc<AtomicBool>,
}

impl Permits {
    pub(in crate::lock) fn new(records: Records, count: u32, initial: u32) -> Self {
        Self {
            records,
            count,
            initial,
            forgotten: Arc::default(),
        }
    }

    /// Takes the end off the permits of a hold.
    pub(in crate::lock) fn forget<'a>(&self, names: &'a Names, hold_id: &str) -> Call<'a> {
        let call = PERMITS_FORGET.on(names).key(self.records.of(names));
        with_ids(call, ids(hold_id, self.count)).acknowledged()
    }

    pub(in crate::lock) fn kind(self, config: &Config, name: &str) -> Result<Kind, Error> {
        Kind::new(
            self.records.family(),
            config,
            name,
            KindCommands::OfOne(Arc::new(self)),
        )
    }

    fn renew<'a>(&self, hold: HoldRef<'a>, alone: bool) -> Call<'a> {
        let names = hold.names;
        let call = Call::script(&PERMITS_RENEW).for_node_of(names);
        let call = call.key(self.records.of(names));
        let call = if alone { call } else { call.key(names.key()) };
        let call = call.arg(hold.lease).arg(names.channel());
        with_ids(call, ids(hold.id, self.count)).publishes()
    }
}

impl Commands for Permits {
    fn rules(&self) -> KindRules {
        KindRules {
            name: "semaphore",
            needs_time: true,
            // Whoever has seen the id of a permit may give it back by that.
            passes_on: self.records == Records::Own,
            permits: Some(self.count),
            ..KindRules::DEFAULT
        }
    }

    fn acquire<'a>(&self, first: HoldRef<'a>, sort: Try<'_>) -> Call<'a> {
        let names = first.names;
        let (client, _) = first.id.split_once(':').unwrap_or_default();
        let call = PERMITS_ACQUIRE
            .on(names)
            .key(self.records.of(names))
            .key(names.prefixed(NEEDS));
        let call = call.arg(first.lease).arg(self.initial);
        let call = call.arg(client).arg(names.channel());
        let call = call.arg(self.count).arg(1 + sort.beside.len() as u64);
        let holds = std::iter::once(first.id).chain(sort.beside.iter().copied());
        let ids = holds.flat_map(|id| ids(id, self.count));
        ids.fold(call, |call, id| call.arg(id.0)).publishes()
    }

    fn look_for_holder<'a>(&self, names: &'a Names) -> Call<'a> {
        let call = self.records.look(names, self.count.to_string());
        call.arg(self.initial)
    }

    fn note<'a>(
        &self,
        names: &'a Names,
        client: &'a str,
        waited: Duration,
        note: Duration,
    ) -> Option<Call<'a>> {
        let call = PERMITS_NOTE.on(names).key(names.prefixed(NEEDS));
        let call = call.arg(client).arg(self.count);
        let call = call.arg(millis(waited)).arg(millis(note));
        Some(call.wakes(names))
    }

    /// There are no levels. This is the write of a longer lease.
    fn reenter<'a>(&self, hold: HoldRef<'a>, _count: u32, _has_token: bool) -> Call<'a> {
        self.renew(hold, false)
    }

    fn verify<'a>(&self, hold: HoldRef<'a>) -> Call<'a> {
        self.renew(hold, false)
    }

    fn verify_apart<'a>(&self, hold: HoldRef<'a>, first: Option<Reply>) -> Option<Call<'a>> {
        first.is_none().then(|| self.renew(hold, true))
    }

    fn release<'a>(&self, names: &'a Names, hold_id: &'a str, left: u32) -> Call<'a> {
        if left > 0 {
            // Redis does not store levels, so this only asks whether the permits are there.
            let lease = LeaseMs::from_millis(1);
            let hold = HoldRef {
                names,
                id: hold_id,
                lease,
            };
            return self.renew(hold, false);
        }
        // Redisson keeps the records of its expirable permits. Ours mean nothing to anybody once they are forgotten.
        let forgotten = match (self.forgotten.load(Ordering::Acquire), self.records) {
            (false, _) => "given",
            (true, Records::Own) => "removed",
            (true, Records::Shared) => "kept",
        };
        let ids = ids(hold_id, self.count);
        self.records.release(names, forgotten, ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_the_same_in_each_repeat_and_of_one_hold_only() {
        let client = "6a1b0c0e-0000-4000-8000-000000000001";
        let of = |number: u64| ids(&format!("{client}:{number}"), 3).collect::<Vec<_>>();
        assert_eq!(of(7), of(7));
        assert_eq!(of(7)[1].to_string(), "80000000000000010000000000070001");
        let mut all: Vec<_> = [of(7), of(8), of(1 << 40)].concat();
        all.sort_by_key(|id| id.0);
        all.dedup();
        assert_eq!(all.len(), 9);
    }

    #[test]
    fn an_id_is_written_and_read_as_redisson_writes_it() {
        let text = "00ff00ff00ff00ff00ff00ff00ff00ab";
        let id: PermitId = text.parse().unwrap();
        assert_eq!(id.to_string(), text);
        assert_eq!(text.to_uppercase().parse(), Ok(id));
        for wrong in ["", "00", "+0ff00ff00ff00ff00ff00ff00ff00ab", "zz"] {
            assert_eq!(wrong.parse::<PermitId>(), Err(InvalidPermitId), "{wrong}");
        }
    }
}
