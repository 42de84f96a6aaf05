//! Waiting to the tenth of a millisecond: tokio's timer is a millisecond coarse, which is longer than the links that
//! benches imitate. One thread sleeps until the next bell and rings it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How much later than asked for a frame is on its way: the kernel lets a thread sleep 50 us longer, and waking the
/// proxy takes as long again (measured).
const SLACK: Duration = Duration::from_micros(110);
const IDLE: Duration = Duration::from_secs(3600);

struct Bell {
    at: Instant,
    ring: oneshot::Sender<()>,
}

/// Ends with its last clone.
#[derive(Debug, Clone)]
pub(super) struct Alarm(Sender<Bell>);

impl Alarm {
    pub(super) fn start() -> Self {
        let (sender, bells) = channel();
        std::thread::Builder::new()
            .name("proxy-alarm".to_owned())
            .spawn(move || keep(&bells))
            .expect("a thread for the alarm");
        Self(sender)
    }

    pub(super) async fn until(&self, at: Instant) {
        if at <= Instant::now() {
            return;
        }
        let (ring, bell) = oneshot::channel();
        if self.0.send(Bell { at, ring }).is_ok() {
            let _ = bell.await;
        }
    }
}

fn keep(bells: &Receiver<Bell>) {
    let mut waiting: BTreeMap<(Instant, u64), oneshot::Sender<()>> = BTreeMap::new();
    for number in 0.. {
        let next = waiting.first_key_value().map(|((at, _), _)| *at);
        let sleep = next.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()));
        match bells.recv_timeout(sleep.saturating_sub(SLACK)) {
            Ok(bell) => drop(waiting.insert((bell.at, number), bell.ring)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let later = waiting.split_off(&(Instant::now() + SLACK, u64::MAX));
        for (_, ring) in std::mem::replace(&mut waiting, later) {
            let _ = ring.send(());
        }
    }
}
