//! A bug in a background thread, simulated by a log subscriber that panics there.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Whether to panic at an event of this level with this message.
type Strikes = fn(Level, &str) -> bool;

struct Saboteur(Strikes);

/// Installs the subscriber for all tests of this process: it panics wherever `strikes` says so.
pub(crate) fn sabotage(strikes: Strikes) {
    tracing::subscriber::set_global_default(Saboteur(strikes)).expect("the only subscriber");
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Saboteur {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("watchlock")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        assert!(!(self.0)(*event.metadata().level(), &message.0), "sabotage");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
