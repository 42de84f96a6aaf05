//! What an acquire of several locks has so far.
//!
//! A caller may stop polling at any await, and must hold nobody up by that (I9). So what it has lies here, and a timer
//! of the keeper takes it away when a round has taken too long: the tray itself is woken, not the caller.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::Timers;
use crate::lock::LockGuard;

/// Guards that are not the caller's yet, each with its place in the set; none once they are taken.
pub(super) struct Tray(Mutex<Option<Vec<(usize, LockGuard)>>>);

/// Takes the tray's guards away when it is over; dropped, it does not.
pub(super) struct Alarm {
    _timer: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Tray {
    pub(super) fn new(place: usize, guard: LockGuard) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(vec![(place, guard)]))))
    }

    /// Adds a guard; one that comes too late is given back.
    pub(super) fn put(&self, place: usize, guard: LockGuard) {
        let mut late = Some(guard);
        if let Some(got) = self.0.lock().as_mut() {
            got.extend(late.take().map(|guard| (place, guard)));
        }
        drop(late);
    }

    /// Whether the guard of that place is there.
    pub(super) fn has(&self, place: usize) -> bool {
        let tray = self.0.lock();
        tray.iter().flatten().any(|(of, _)| *of == place)
    }

    /// All of them, unless they were taken away.
    pub(super) fn take(&self) -> Option<Vec<(usize, LockGuard)>> {
        self.0.lock().take()
    }

    /// After `limit` the guards are taken away and given back, whether anybody polls or not.
    pub(super) fn taken_away_after(self: &Arc<Self>, limit: Duration, timers: &Timers) -> Alarm {
        // Unconstrained: a timer that finds its task's budget used up wakes it, and here that would be the end.
        let mut timer = Box::pin(tokio::task::unconstrained(timers.sleep(limit)));
        let waker = Waker::from(Arc::clone(self));
        if timer
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            // The keeper has ended: nothing renews what is here, and nothing new is granted.
            drop(self.take());
        }
        Alarm { _timer: timer }
    }
}

impl Wake for Tray {
    fn wake(self: Arc<Self>) {
        drop(self.take());
    }
}
