//! What a person on call reads in the log: each event once, and no secrets.
//!
//! A subscriber records what it hears. Keepers log from threads of their own, so there is one subscriber for the whole
//! program: one test at a time listens, and those that do not listen say so and run when nobody does.

#[path = "../common/mod.rs"]
mod common;

mod events;
mod labels;
mod losses;
mod panics;
mod secrets;

use std::fmt::Write as _;
use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use watchlock_support::eventually;

use crate::common::LONG;

static HEARD: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
/// Whether whoever logs has to wait.
static BLOCKS: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
static TURN: RwLock<()> = RwLock::const_new(());

struct Listener;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let _ = write!(self.0, "{}={value}u64 ", field.name());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // The application's own threads would stop its runtime.
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        if name.starts_with("watchlock") {
            BLOCKS.1.wait_while(&mut BLOCKS.0.lock(), |blocks| *blocks);
        }
        if event.metadata().target().starts_with("watchlock") {
            let mut text = Text(String::new());
            event.record(&mut text);
            HEARD.lock().push((*event.metadata().level(), text.0));
        }
    }

    fn on_record(
        &self,
        span: &tracing::span::Id,
        values: &tracing::span::Record<'_>,
        context: Context<'_, S>,
    ) {
        let name = context.metadata(span).map_or("", |span| span.name());
        let mut text = Text(format!("recorded {name} "));
        values.record(&mut text);
        HEARD.lock().push((Level::TRACE, text.0));
    }

    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: Context<'_, S>,
    ) {
        if attributes.metadata().target().starts_with("watchlock") {
            let mut text = Text(format!("span {} ", attributes.metadata().name()));
            attributes.record(&mut text);
            HEARD.lock().push((Level::TRACE, text.0));
        }
    }
}

/// For a test that does not listen: until this is dropped nobody else does, who would hear it.
pub(crate) async fn unheard() -> RwLockReadGuard<'static, ()> {
    TURN.read().await
}

/// The events since it was made; one at a time.
pub(crate) struct Log {
    turn: RwLockWriteGuard<'static, ()>,
}

impl Drop for Log {
    fn drop(&mut self) {
        self.block(false);
    }
}

impl Log {
    /// Whether the library's own threads have to wait when they log, as for a standard output that nobody reads.
    pub(crate) fn block(&self, blocks: bool) {
        let () = *self.turn;
        *BLOCKS.0.lock() = blocks;
        BLOCKS.1.notify_all();
    }

    pub(crate) async fn new() -> Self {
        static ONCE: OnceLock<()> = OnceLock::new();
        let turn = TURN.write().await;
        ONCE.get_or_init(|| {
            let subscriber = tracing_subscriber::registry().with(Listener);
            tracing::subscriber::set_global_default(subscriber).expect("the only one");
        });
        HEARD.lock().clear();
        Self { turn }
    }

    /// How many events of this level have all of these texts.
    pub(crate) fn count(&self, level: Level, texts: &[&str]) -> usize {
        let heard = self.all();
        let meant = heard.iter().filter(|(heard, text)| {
            *heard == level && texts.iter().all(|expected| text.contains(expected))
        });
        meant.count()
    }

    /// Waits for an event of this level with all of these texts, and checks that it is the only one. What the library's own
    /// threads log may be heard some time later.
    pub(crate) async fn once(&self, level: Level, texts: &[&str]) {
        eventually("it is logged", LONG, async || self.count(level, texts) > 0).await;
        assert_eq!(self.count(level, texts), 1, "{:?}", self.all());
    }

    pub(crate) fn all(&self) -> Vec<(Level, String)> {
        let () = *self.turn;
        HEARD.lock().clone()
    }
}
