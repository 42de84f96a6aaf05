//! The pure parts for `benches/micro.rs`, wrapped so that no private type shows.
//!
//! Behind the feature `__bench`, which nobody else is to set: nothing in here is promised.

#![expect(clippy::must_use_candidate, reason = "only a benchmark calls it")]

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::config::Settings;
use crate::engine::hold::schedule::Schedule;
use crate::engine::hold::state::{Due, Left, Level, RenewalPlan, State};
use crate::engine::hold::{Hold, Origin};
use crate::error::Error;
use crate::lease::LeaseMs;
use crate::lock::plain;
use crate::names::{Family, MAX_KEY_BYTES, Names};
use crate::script::{Call, Renewal, lock};

/// Far enough from the start of time that nothing saturates.
const NOW: Moment = Moment::from_nanos(3_600_000_000_000);

/// Steps through the default backoff's delays.
pub fn backoff_step() -> impl FnMut() -> Duration {
    let mut delays = Backoff::new().delays(1);
    move || delays.step()
}

/// What lives go by: the default watchdog lease.
pub struct Lives(RenewalPlan);

/// A hold's state machine; its levels are the watchdog's.
pub struct Life(State);

impl Lives {
    /// By the default settings.
    pub fn new() -> Result<Self, Error> {
        let lease = lease()?;
        Ok(Self(RenewalPlan { lease }))
    }

    /// A life that begins.
    pub fn trying(&self) -> Life {
        Life(State::trying(NOW))
    }

    /// Whether it is held now.
    pub fn grant(&self, life: &mut Life) -> bool {
        life.0.grant(Level::Watchdog, self.0.lease.term(NOW), NOW)
    }

    /// Whether there is a level more.
    pub fn enter(&self, life: &mut Life) -> bool {
        life.0.enter(Level::Watchdog, NOW).is_ok()
    }

    /// Whether a renewal is due.
    pub fn due(&self, life: &Life) -> bool {
        life.0.due(self.0, NOW, NOW, Duration::ZERO) == Due::Renew
    }

    /// A renewal was acknowledged.
    pub fn prolong(&self, life: &mut Life) {
        life.0.prolong(self.0.lease.term(NOW), NOW);
    }

    /// Whether it was the last level.
    pub fn leave(&self, life: &mut Life) -> bool {
        life.0.leave(Level::Watchdog, NOW, NOW) == Left::Last
    }
}

/// Encodes an acquire.
pub fn encode_acquire() -> Result<impl Fn() -> Vec<u8>, Error> {
    let (names, hold_id, lease) = (names(1)?, hold_id(1), lease()?);
    Ok(move || packed(&lock::acquire(&names, &hold_id, lease)))
}

/// Encodes a last release.
pub fn encode_release() -> Result<impl Fn() -> Vec<u8>, Error> {
    let (names, hold_id) = (names(1)?, hold_id(1));
    Ok(move || packed(&lock::release(&names, &hold_id, 0)))
}

/// Encodes one renewal of `count` holds.
pub fn encode_renew(count: u64) -> Result<impl Fn() -> Vec<u8>, Error> {
    let lease = lease()?;
    let holds = (1..=count).map(|n| Ok((names(n)?, hold_id(n))));
    let holds: Vec<(Names, String)> = holds.collect::<Result<_, Error>>()?;
    Ok(move || {
        let renewals = holds.iter().map(|(names, hold_id)| Renewal {
            names,
            hold_id,
            lease: Some(lease),
        });
        packed(&lock::renew(&renewals.collect::<Vec<_>>()))
    })
}

fn packed(call: &Call<'_>) -> Vec<u8> {
    call.encode().cmd().get_packed_command()
}

/// A schedule with many entries, and a hold that is not among them.
pub struct Looks {
    schedule: Schedule,
    holds: Vec<Arc<Hold>>,
    spare: Arc<Hold>,
}

impl Looks {
    /// With `count` entries, put in without order.
    pub fn new(count: u64) -> Result<Self, Error> {
        let looks = Self {
            schedule: Schedule::default(),
            holds: (1..=count).map(hold).collect::<Result<_, _>>()?,
            spare: hold(0)?,
        };
        let mut order: Vec<_> = looks.holds.iter().collect();
        fastrand::Rng::with_seed(1).shuffle(&mut order);
        for hold in order {
            looks.schedule.no_later_than(hold, look_at(hold.number));
        }
        Ok(looks)
    }

    /// Puts one more in, just before the entry at `place`, and forgets it again.
    pub fn put_and_forget(&self, place: u64) {
        self.schedule.no_later_than(&self.spare, look_at(place));
        self.schedule.forget(&self.spare);
    }

    /// Takes the first `count` entries out; how many there were.
    pub fn take_first(&self, count: u64) -> usize {
        let last = look_at(count);
        self.schedule.take(last, last, 100).len()
    }

    /// Puts the first `count` entries in again.
    pub fn put_first(&self, count: u64) {
        for hold in self.holds.iter().take_while(|hold| hold.number <= count) {
            self.schedule.no_later_than(hold, look_at(hold.number));
        }
    }
}

/// 100 000 of them are looked at within two thirds of the default lease, as renewals would be.
fn look_at(number: u64) -> Moment {
    Moment::from_nanos(number * 200_000)
}

fn lease() -> Result<LeaseMs, Error> {
    Ok(Settings::default().validate()?.watchdog_lease)
}

fn names(number: u64) -> Result<Names, Error> {
    Names::of(&Family::PLAIN, "", &name(number), MAX_KEY_BYTES)
}

fn name(number: u64) -> String {
    format!("orders:{number}")
}

fn hold_id(number: u64) -> String {
    format!("{}:{number}", Uuid::nil())
}

/// A hold that asks Redis nothing.
fn hold(number: u64) -> Result<Arc<Hold>, Error> {
    let origin = Origin {
        kind: plain::kind(&Settings::default().validate()?, &name(number))?,
        id: hold_id(number).into(),
        number,
        lease: lease()?,
        owner: None,
        entered_by: number,
        task: None,
    };
    Ok(Hold::trying(origin, NOW))
}
