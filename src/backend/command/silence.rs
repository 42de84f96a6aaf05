//! Whether a connection fell silent.
//!
//! A connection that was written to and read nothing for a time is given up. But nothing is read either while user code
//! blocks the runtime that drives it, although the reply has arrived. So:
//!
//! 1. A silence counts once a task of that runtime has run, and [`RUNS_FOR`] later nothing has been read either: meanwhile
//!    commands that were queued behind the block are written and answered.
//! 2. Until then no command gets a place, so none goes over a connection that is about to be given up. What waits was
//!    certainly not sent.

use std::sync::Arc;
use std::time::Duration;

use scopeguard::guard;
use tokio::task::yield_now;

use super::lane::Lane;
use crate::clock::{Clock, Moment};

/// For how long a runtime must run before a silence counts.
const RUNS_FOR: Duration = Duration::from_millis(20);

/// What a connection has read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Traffic {
    generation: u64,
    /// When it last read something: by the system's clock where `asked` is known, else by the client's.
    read_at: Moment,
    /// None where that is not known.
    asked: Option<u64>,
}

impl Traffic {
    /// What the connection of a lane has read and written by now.
    pub(super) fn of(lane: &Lane) -> Option<Self> {
        lane.with_connected(|connected| {
            let (read_at, asked) = match connected.connection.traffic() {
                Some((read_at, asked)) => (read_at, Some(asked)),
                // redis-rs drives it, and only replies are seen.
                None => (lane.heard_at(), None),
            };
            Self {
                generation: connected.generation,
                read_at,
                asked,
            }
        })
    }

    /// Whether the connection wrote since then, or tried to, and read nothing since then or for `silence`. A process that
    /// got no CPU wrote nothing.
    fn ended_in(self, silence: Duration, lane: &Lane) -> bool {
        let Some(now) = Self::of(lane) else {
            return false;
        };
        let asked = now.asked.is_none() || now.asked != self.asked;
        let time = match now.asked {
            Some(_) => Clock::system().now(),
            None => lane.now(),
        };
        let silent = now.read_at == self.read_at || now.read_at.until(time) >= silence;
        now.generation == self.generation && silent && asked
    }

    /// Gives the connection up if its traffic since then ended in a silence that counts (rule 1: its runtime has run).
    pub(super) fn give_up_if_silent(self, lane: &Arc<Lane>, silence: Duration) {
        if !self.ended_in(silence, lane) || !lane.window().pause() {
            return;
        }
        // Also if a waker that is called meanwhile panics.
        let on = guard(Arc::clone(lane), |lane| lane.window().go_on());
        lane.spawn(async move {
            // Its reactor runs before a task that yielded goes on. What that found is read at once.
            yield_now().await;
            on.drive();
            on.timers().timer(RUNS_FOR).await;
            yield_now().await;
            on.drive();
            if self.ended_in(silence, &on) {
                on.replace(self.generation);
            }
            let lane = Arc::clone(&on);
            drop(on);
            lane.admit();
        });
    }
}
