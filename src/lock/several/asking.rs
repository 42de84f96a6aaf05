//! Asking all children at the same time, until enough answers agree.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::hold::{ChildGuards, Composite};
use super::tally::Tally;
use crate::error::Error;
use crate::lease::Lease;

/// One more level of each child.
pub(super) async fn enter_children(hold: &Composite, lease: Lease) -> Result<ChildGuards, Error> {
    let guards = hold.guards(lease == Lease::Watchdog);
    let places = guards.iter().map(|(place, _)| place + 1).max();
    let mut entered = ChildGuards::new();
    entered.resize_with(places.unwrap_or_default(), || None);
    let mut entering: FuturesUnordered<_> = guards
        .iter()
        .map(|(place, child)| async move { (*place, child.reenter(lease).await) })
        .collect();
    let mut tally = Tally::new(hold.needed, guards.len());
    loop {
        let Some((place, answer)) = entering.next().await else {
            return Err(Error::not_owner());
        };
        let result = tally.count(answer.map(|child| entered[place] = Some(child)));
        match result {
            None => {}
            Some(Err(error)) => return Err(error),
            Some(Ok(())) => break,
        }
    }
    let rest = async {
        while let Some((place, answer)) = entering.next().await {
            entered[place] = answer.ok();
        }
    };
    let limit = match lease {
        Lease::Watchdog => hold.spare_timeout,
        Lease::Fixed(lease) => hold.spare_timeout.min(lease / 4),
    };
    if let Some(timers) = guards.first().and_then(|(_, child)| child.timers()) {
        timers.within(limit, rest).await;
    }
    drop(entering);
    Ok(entered)
}

/// Runs these futures at the same time until [`Tally`] has a result.
pub(super) async fn ask(
    needed: usize,
    asked: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    first_result(needed, &mut asked.collect()).await
}

/// As [`ask`]. The futures that have not ended stay in `asked`.
pub(super) async fn first_result(
    needed: usize,
    asked: &mut FuturesUnordered<impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let mut tally = Tally::new(needed, asked.len());
    while let Some(answer) = asked.next().await {
        if let Some(result) = tally.count(answer) {
            return result;
        }
    }
    // There was no future.
    Err(Error::not_owner())
}

/// Takes the outputs that are ready, after a pause in which the connections of this runtime deliver what they have read.
/// That is cheaper than waking another thread for them.
pub(in crate::lock) async fn take_ready<F: Future>(
    futures: &mut FuturesUnordered<F>,
    mut take: impl FnMut(F::Output),
) {
    let mut paused = futures.is_empty();
    poll_fn(|context| {
        if !paused {
            paused = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while let Poll::Ready(Some(output)) = futures.poll_next_unpin(context) {
            take(output);
        }
        Poll::Ready(())
    })
    .await;
}
