//! When the command under a lock must end.
//!
//! 1. It ends before anybody else can take the lock: while renewals fail, TERM goes out a grace before the validity ends,
//!    and KILL [`LAST`] before.
//! 2. If Redis reports that the hold is gone, TERM goes out at once, and KILL after the grace.
//! 3. A lock that expired, as after a suspend of the machine, leaves no time: KILL.
//!
//! Once TERM was sent, KILL follows even if Redis answers again: the command is ending anyway.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use watchlock::LostReason;

/// How long before the end of the validity KILL goes out.
const LAST: Duration = Duration::from_millis(50);
/// How often to look at the clock at least: timers stand still while a machine is suspended.
const LOOK: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Deadline {
    grace: Duration,
    /// When KILL is due, once TERM was sent.
    kill_at: Option<Instant>,
}

impl Deadline {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            kill_at: None,
        }
    }

    /// Whether a signal went out: the command did not run to its end.
    pub(super) fn has_come(&self) -> bool {
        self.kill_at.is_some()
    }

    /// What to send now, if anything; `left` is the rest of the validity.
    pub(super) fn due(
        &mut self,
        now: Instant,
        left: Duration,
        lost: Option<LostReason>,
    ) -> Option<Signal> {
        let expired = lost == Some(LostReason::Expired);
        if expired || lost.is_none() && left <= LAST {
            self.kill_at = Some(now);
            return Some(Signal::KILL);
        }
        if let Some(kill_at) = self.kill_at {
            return (now >= kill_at).then_some(Signal::KILL);
        }
        let until_kill = match lost {
            Some(_) => self.grace,
            None if left <= self.grace => left.saturating_sub(LAST),
            None => return None,
        };
        self.kill_at = Some(now + until_kill);
        Some(Signal::TERM)
    }

    /// For how long nothing will be due.
    pub(super) fn pause(&self, now: Instant, left: Duration) -> Duration {
        let until = match self.kill_at {
            Some(kill_at) => kill_at.saturating_duration_since(now),
            None => left.saturating_sub(self.grace.max(LAST)),
        };
        // Also behind KILL: the kernel may take its time.
        until.clamp(Duration::from_millis(1), LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn while_renewals_fail_term_goes_out_a_grace_before_the_end_and_kill_just_before_it() {
        let (start, mut deadline) = (Instant::now(), Deadline::new(ms(1000)));
        let at = |passed| (start + ms(passed), ms(3000 - passed));
        let mut due = |passed| {
            let (now, left) = at(passed);
            deadline.due(now, left, None)
        };
        assert_eq!(due(0), None);
        assert_eq!(due(1999), None);
        assert_eq!(due(2000), Some(Signal::TERM));
        assert_eq!(due(2949), None);
        assert_eq!(due(2950), Some(Signal::KILL));
        assert!(deadline.has_come());
    }

    #[test]
    fn a_late_renewal_does_not_call_kill_off() {
        let (start, mut deadline) = (Instant::now(), Deadline::new(ms(1000)));
        assert_eq!(deadline.due(start, ms(900), None), Some(Signal::TERM));
        assert_eq!(deadline.due(start + ms(500), ms(3000), None), None);
        let after = start + ms(850);
        assert_eq!(deadline.due(after, ms(2650), None), Some(Signal::KILL));
    }

    #[test]
    fn a_hold_that_is_gone_leaves_the_grace() {
        let (start, mut deadline) = (Instant::now(), Deadline::new(ms(1000)));
        let gone = Some(LostReason::Missing);
        assert_eq!(
            deadline.due(start, Duration::ZERO, gone),
            Some(Signal::TERM)
        );
        assert_eq!(deadline.due(start + ms(999), Duration::ZERO, gone), None);
        let after = start + ms(1000);
        assert_eq!(
            deadline.due(after, Duration::ZERO, gone),
            Some(Signal::KILL)
        );
    }

    #[test]
    fn what_has_expired_is_killed_at_once() {
        let mut deadline = Deadline::new(ms(1000));
        let expired = Some(LostReason::Expired);
        let due = deadline.due(Instant::now(), Duration::ZERO, expired);
        assert_eq!(due, Some(Signal::KILL));
    }

    #[test]
    fn the_pause_ends_when_something_is_due() {
        let (now, mut deadline) = (Instant::now(), Deadline::new(ms(1000)));
        assert_eq!(deadline.pause(now, ms(30_000)), LOOK);
        assert_eq!(deadline.pause(now, ms(1100)), ms(100));
        deadline.due(now, ms(1000), None);
        assert_eq!(deadline.pause(now + ms(900), ms(100)), ms(50));
        assert_eq!(deadline.pause(now + ms(2000), ms(0)), ms(1));
    }
}
