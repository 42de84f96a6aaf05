//! What a level asks of its children: side by side, until enough have said the same.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::crew::Crew;
use super::hold::Composite;
use super::level::Children;
use super::tally::Tally;
use crate::error::Error;
use crate::lease::Lease;

/// A level more of each child that `crew` has.
pub(super) async fn enter_children(
    hold: &Composite,
    crew: &Crew,
    lease: Lease,
) -> Result<Children, Error> {
    let guards = crew.guards();
    let places = guards.iter().map(|(place, _)| place + 1).max();
    let mut entered = Children::new();
    entered.resize_with(places.unwrap_or_default(), || None);
    let mut entering: FuturesUnordered<_> = guards
        .iter()
        .map(|(place, child)| async move { (*place, child.reenter(lease).await) })
        .collect();
    let mut tally = Tally::new(hold.needed(), guards.len());
    loop {
        let Some((place, answer)) = entering.next().await else {
            return Err(Error::not_owner());
        };
        let heard = tally.hear(answer.map(|child| entered[place] = Some(child)));
        match heard {
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
    if let Some(timers) = guards.first().and_then(|(_, child)| child.timers()) {
        timers.within(rest_of(hold, lease), rest).await;
    }
    drop(entering);
    Ok(entered)
}

/// How long the rest is waited for, when enough have been entered.
fn rest_of(hold: &Composite, lease: Lease) -> Duration {
    let limit = hold.spare_timeout();
    match lease {
        Lease::Watchdog => limit,
        Lease::Fixed(lease) => limit.min(lease / 10),
    }
}

/// Asks side by side, and hears what `needed` of them say.
pub(super) async fn ask(
    needed: usize,
    asked: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    hear(needed, &mut asked.collect()).await
}

/// What `needed` of those who were asked say. The others may be heard later.
pub(super) async fn hear(
    needed: usize,
    asked: &mut FuturesUnordered<impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    let mut tally = Tally::new(needed, asked.len());
    while let Some(answer) = asked.next().await {
        if let Some(told) = tally.hear(answer) {
            return told;
        }
    }
    // Too few were there to ask.
    Err(Error::not_owner())
}
