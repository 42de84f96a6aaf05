//! Which command gets which fault: aimed ones first, then by chance. Pure: no sockets, no time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fastrand::Rng;

use super::Proxy;
use super::fault::{Command, Fault, Match};

/// Faults by chance, the same for the same seed and the same sequence of commands.
#[derive(Debug, Clone)]
#[must_use]
pub struct Odds {
    rng: Rng,
    only: Match,
    chances: Vec<(f64, Fault)>,
}

impl Odds {
    /// No faults yet.
    pub fn seeded(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            only: Match::any(),
            chances: Vec::new(),
        }
    }

    /// Each command gets `fault` with this probability, from 0 to 1.
    pub fn chance(mut self, probability: f64, fault: Fault) -> Self {
        self.chances.push((probability, fault));
        self
    }

    /// Spares all other commands.
    pub fn only(mut self, commands: Match) -> Self {
        self.only = commands;
        self
    }

    /// One draw a command, so that adding a fault does not shift the others' luck.
    fn draw(&mut self, command: &Command) -> Option<Fault> {
        if !self.only.means(command) {
            return None;
        }
        let mut luck = self.rng.f64();
        for (probability, fault) in &self.chances {
            if luck < *probability {
                return Some(fault.clone());
            }
            luck -= probability;
        }
        None
    }
}

/// A fault that is being aimed; nothing happens before [`Shot::arm`].
#[derive(Debug)]
#[must_use = "a fault is injected only when armed"]
pub struct Shot<'a> {
    proxy: &'a Proxy,
    fault: Option<Fault>,
    on: Match,
    nth: u64,
    times: u64,
}

impl<'a> Shot<'a> {
    pub(super) fn new(proxy: &'a Proxy, fault: Option<Fault>) -> Self {
        Self {
            proxy,
            fault,
            on: Match::any(),
            nth: 1,
            times: 1,
        }
    }

    /// At these commands only; otherwise at any.
    pub fn on(mut self, commands: Match) -> Self {
        self.on = commands;
        self
    }

    /// At the `nth` command that matches, counted from 1 and from now; otherwise at the first.
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// At so many matching commands, beginning with the `nth`; otherwise at one.
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// At every matching command, beginning with the `nth`.
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// From now on.
    #[expect(
        clippy::must_use_candidate,
        reason = "a fault works without its observer"
    )]
    pub fn arm(self) -> Aim {
        let aim = Aim(Arc::new(Target {
            fault: self.fault,
            on: self.on,
            from: self.nth.max(1),
            until: self.nth.max(1).saturating_add(self.times),
            seen: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
        }));
        self.proxy.shared.rules.lock().aims.push(aim.clone());
        aim
    }
}

/// An armed fault. Dropping it changes nothing.
#[derive(Debug, Clone)]
pub struct Aim(Arc<Target>);

#[derive(Debug)]
struct Target {
    fault: Option<Fault>,
    on: Match,
    from: u64,
    until: u64,
    seen: AtomicU64,
    fired: AtomicU64,
    cancelled: AtomicBool,
}

impl Aim {
    /// How many matching commands came by since it was armed, until it was used up.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::SeqCst)
    }

    /// How often the fault was decided upon. With [`Fault::SwallowReply`] and [`Fault::ResetAfter`] the command may
    /// still be on its way to the server.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.0.fired.load(Ordering::SeqCst)
    }

    /// No more of it.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
    }

    fn is_spent(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst) || self.seen().saturating_add(1) >= self.0.until
    }

    /// Counts a matching command; true if the fault is meant for this one.
    fn hits(&self, command: &Command) -> bool {
        if self.0.cancelled.load(Ordering::SeqCst) || !self.0.on.means(command) {
            return false;
        }
        let seen = self.0.seen.fetch_add(1, Ordering::SeqCst) + 1;
        (self.0.from..self.0.until).contains(&seen)
    }

    fn fire(&self) -> Option<Fault> {
        self.0.fired.fetch_add(1, Ordering::SeqCst);
        self.0.fault.clone()
    }
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) aims: Vec<Aim>,
    pub(super) odds: Option<Odds>,
    pub(super) commands: BTreeMap<String, u64>,
    pub(super) scripts: BTreeMap<String, u64>,
    /// Of all commands.
    pub(super) bytes: u64,
    pub(super) faults: BTreeMap<&'static str, u64>,
}

impl Rules {
    pub(super) fn decide(&mut self, command: &Command) -> Option<Fault> {
        self.count(command);
        let fault = self.aimed(command).or_else(|| {
            let odds = self.odds.as_mut()?;
            odds.draw(command)
        })?;
        self.count_fault(fault.kind());
        Some(fault)
    }

    pub(super) fn count_fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    /// All aims count, the first that hits and has a fault fires.
    fn aimed(&mut self, command: &Command) -> Option<Fault> {
        let mut fault = None;
        for aim in &self.aims {
            if aim.hits(command) && (fault.is_none() || aim.0.fault.is_none()) {
                fault = fault.or(aim.fire());
            }
        }
        self.aims.retain(|aim| !aim.is_spent());
        fault
    }

    fn count(&mut self, command: &Command) {
        if command.message {
            return;
        }
        self.bytes += command.bytes();
        let name = command.name();
        if let ("EVALSHA", Some(hash)) = (name.as_str(), command.args.get(1)) {
            let hash = String::from_utf8_lossy(hash).into_owned();
            *self.scripts.entry(hash).or_default() += 1;
        }
        *self.commands.entry(name).or_default() += 1;
    }
}
