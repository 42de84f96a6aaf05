//! A recorder whose gauge of holds hangs when a hold ends, as long as a test wants.

use std::sync::{Arc, mpsc};

use metrics::{
    Counter, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;

/// Says that it hangs, and hangs until it is let go.
pub(crate) struct Stuck {
    hangs: mpsc::Sender<()>,
    let_go: Mutex<mpsc::Receiver<()>>,
}

impl GaugeFn for Stuck {
    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {
        let _ = self.hangs.send(());
        let _ = self.let_go.lock().recv();
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Stuck {
    fn record(&self, _: f64) {
        self.decrement(1.0);
    }
}

pub(crate) struct StuckRecorder {
    stuck: Arc<Stuck>,
    /// The histogram of commands hangs, too.
    pub(crate) hangs_at_commands: bool,
}

impl StuckRecorder {
    /// With what says that it hangs, and what lets it go.
    pub(crate) fn new() -> (Self, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((hangs, is_stuck), (go, let_go)) = (mpsc::channel(), mpsc::channel());
        let let_go = Mutex::new(let_go);
        let recorder = Self {
            stuck: Arc::new(Stuck { hangs, let_go }),
            hangs_at_commands: false,
        };
        (recorder, is_stuck, go)
    }
}

impl Recorder for StuckRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        if key.name() == "watchlock_holds" {
            Gauge::from_arc(Arc::clone(&self.stuck))
        } else {
            Gauge::noop()
        }
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name() == "watchlock_command_seconds" && self.hangs_at_commands {
            Histogram::from_arc(Arc::clone(&self.stuck))
        } else {
            Histogram::noop()
        }
    }
}
