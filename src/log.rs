//! Logging from the threads of the keeper, and of a quorum.
//!
//! A subscriber may block, as it does when nobody reads the standard output of a container. No lock may be lost for that.
//! So these threads run no subscriber: they hand their events to a thread that logs them in order.
//!
//! 1. The process has one such thread. It starts with the first event, and never ends.
//! 2. At most [`MOST_WAITING`] events wait for it. What does not fit is dropped and counted, and the next event that is
//!    logged follows that count.
//! 3. Any other thread logs by itself: it is the application's own. What a caller does may run on
//!    either, so it uses [`log`], too.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Poll, ready};

use futures_util::future::maybe_done;
use tokio::sync::oneshot;
use tracing::dispatcher::{get_default, with_default};
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, Instrument, Span};

/// How many events may wait to be logged. Each has some 100 bytes.
const MOST_WAITING: usize = 10_000;

type LogEvent = Box<dyn FnOnce() + Send>;

/// An event, and the subscriber of the thread that it comes from.
type HandedOver = (Dispatch, LogEvent);

/// The way to the thread that logs; none if it could not be started.
static LOGGER: LazyLock<Option<Sender<HandedOver>>> = LazyLock::new(|| {
    let (sender, events) = channel();
    let thread = std::thread::Builder::new().name("watchlock-log".into());
    thread.spawn(move || log_all(&events)).ok()?;
    Some(sender)
});

static WAITING: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HANDS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// From now on the events of this thread go to the logging thread.
pub(crate) fn forward() {
    HANDS_OVER.set(true);
}

/// Runs `event`, which logs something: at once, or on the logging thread if this thread [forwards](forward).
pub(crate) fn log(event: impl FnOnce() + Send + 'static) {
    if !HANDS_OVER.get() {
        return event();
    }
    let subscriber = get_default(Dispatch::clone);
    if subscriber.is::<NoSubscriber>() {
        return;
    }
    // Relaxed, here and below: the numbers stand for themselves, and the channel orders the events. Keepers that look at the
    // same time may forward a few more.
    let fits = WAITING.load(Ordering::Relaxed) < MOST_WAITING;
    if !(fits && send(subscriber, Box::new(event))) {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Resolves when all events are logged that this thread has forwarded so far.
pub(crate) async fn logged() {
    let subscriber = get_default(Dispatch::clone);
    let (last, done) = oneshot::channel();
    let event = move || {
        let _ = last.send(());
    };
    if !subscriber.is::<NoSubscriber>() && send(subscriber, Box::new(event)) {
        let _ = done.await;
    }
}

/// Runs `future` in `span`, as [`Instrument`] does. What it comes to may be a lock, so that is dropped if the subscriber
/// panics while the span is left or closed. A value that is being returned would be leaked.
pub(crate) fn in_span<F: Future>(span: Span, future: F) -> impl Future<Output = F::Output> {
    let mut running = Some(Box::pin(maybe_done(future).instrument(span)));
    poll_fn(move |context| {
        let Some(inside) = &mut running else {
            return Poll::Pending;
        };
        // The output stays inside until the span is left.
        ready!(inside.as_mut().poll(context));
        let output = inside.as_mut().inner_pin_mut().take_output();
        // Closes the span.
        running = None;
        output.map_or(Poll::Pending, Poll::Ready)
    })
}

/// Hands an event to the logging thread. Returns false if there is none.
fn send(subscriber: Dispatch, event: LogEvent) -> bool {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let logger = LOGGER.as_ref();
    let sent = logger.is_some_and(|logger| logger.send((subscriber, event)).is_ok());
    if !sent {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
    sent
}

fn log_all(events: &Receiver<HandedOver>) {
    for (subscriber, event) in events {
        let logging = || {
            let dropped = DROPPED.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                tracing::warn!(dropped, "events were dropped because the log was blocked");
            }
            event();
        };
        // A subscriber that panics must not end the log of all clients.
        let _ = catch_unwind(AssertUnwindSafe(|| with_default(&subscriber, logging)));
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::{Condvar, Mutex};

    use super::*;

    /// What was written, by a writer that waits until it is open.
    #[derive(Clone, Default)]
    struct Output(Arc<(Mutex<(bool, String)>, Condvar)>);

    impl Write for Output {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            let (state, opened) = &*self.0;
            let mut state = state.lock();
            opened.wait_while(&mut state, |(open, _)| !*open);
            state.1.push_str(&String::from_utf8_lossy(text));
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        const MORE: usize = 7;
        let output = Output::default();
        let writer = output.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
        let subscriber = Dispatch::new(subscriber.with_ansi(false).finish());
        let on_a_keeper = |work: fn()| {
            let subscriber = subscriber.clone();
            let thread = std::thread::spawn(move || {
                forward();
                with_default(&subscriber, work);
            });
            thread.join().unwrap();
        };
        on_a_keeper(|| {
            for number in 0..MOST_WAITING + MORE {
                log(move || tracing::event!(tracing::Level::INFO, number));
            }
        });
        let (state, opened) = &*output.0;
        state.lock().0 = true;
        opened.notify_all();
        on_a_keeper(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.unwrap().block_on(logged());
        });
        let written = &state.lock().1;
        assert_eq!(written.matches("number=").count(), MOST_WAITING);
        let count = format!("the log was blocked dropped={MORE}");
        assert!(written.contains(&count));
    }
}
