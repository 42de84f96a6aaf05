//! Storm, calm, over.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

const STORM: Duration = Duration::from_secs(5);
/// Longer than a recovery, the longest sleep of a waiter, and the machine's blur together.
const CALM: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sky {
    Calm,
    Storm,
    /// No more faults; owners go on until `Home`.
    Over,
    /// Owners finish what they hold and stop.
    Home,
}

#[derive(Debug)]
pub(super) struct Weather {
    sky: watch::Sender<Sky>,
}

/// A task that follows the weather.
#[derive(Clone, Debug)]
pub(super) struct Watch(watch::Receiver<Sky>);

impl Weather {
    pub(super) fn begin() -> Self {
        Self {
            sky: watch::Sender::new(Sky::Calm),
        }
    }

    pub(super) fn watch(&self) -> Watch {
        Watch(self.sky.subscribe())
    }

    /// A short calm, storms and calms, a calm.
    pub(super) async fn change_for(&self, time: Duration) {
        let end = Instant::now() + time;
        sleep(Duration::from_millis(500)).await;
        while Instant::now() < end {
            self.sky.send_replace(Sky::Storm);
            sleep_until(end.min(Instant::now() + STORM)).await;
            self.sky.send_replace(Sky::Calm);
            sleep(CALM).await;
        }
        self.sky.send_replace(Sky::Over);
    }

    pub(super) fn call_home(&self) {
        self.sky.send_replace(Sky::Home);
    }
}

impl Watch {
    pub(super) fn is_home(&self) -> bool {
        *self.0.borrow() == Sky::Home
    }

    pub(super) fn is_storm(&self) -> bool {
        *self.0.borrow() == Sky::Storm
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(*self.0.borrow(), Sky::Over | Sky::Home)
    }

    /// Waits for the next storm; false when there will be none.
    pub(super) async fn storm(&mut self) -> bool {
        let come = |sky: &Sky| *sky != Sky::Calm;
        let sky = self.0.wait_for(come).await;
        sky.is_ok_and(|sky| *sky == Sky::Storm)
    }

    /// Sleeps, but not longer than the storm lasts.
    pub(super) async fn sleep_in_storm(&mut self, time: Duration) {
        let gone = self.0.wait_for(|sky| *sky != Sky::Storm);
        let _ = tokio::time::timeout(time, gone).await;
    }
}
