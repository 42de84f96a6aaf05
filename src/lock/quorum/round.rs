//! One round: a try at all nodes at once.
//!
//! 1. It is over as soon as no answer can change what it comes to, and at the latest after the nodes' time-out.
//! 2. What was got when it is refused is given back, and so is what was not answered: a try that is dropped is finished
//!    and undone by its own client.
//! 3. What is answered behind a round that got the lock joins the hold ([`late`]), while it lasts. When the hold ends,
//!    tries without an answer are dropped as by 2: the next round of this client would take what they get for a busy
//!    lock. When it was left to its lease, so is what they get.
//! 4. A hold is valid by its children's ends, each counted from its own send (T2). Whether it is when all is done, the
//!    caller sees who collects it: that comes last.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use super::Nodes;
use super::line::{Patience, Request, Tried};
use super::node::{Answer, Trying};
use super::rules::{Outcome, Said, Votes};

use super::token;
use crate::backend::Lane;
use crate::clock::Moment;
use crate::error::Error;
use crate::lease::Lease;
use crate::lock::LockGuard;
use crate::lock::by_now::hear_by_now;
use crate::lock::composite::{Composite, Level};

type Tries = FuturesUnordered<Trying>;

/// What the nodes said to a round.
struct Ballot<'a> {
    nodes: &'a Arc<Nodes>,
    votes: Votes,
    children: Vec<Option<LockGuard>>,
    /// What was granted and does not count.
    young: Vec<LockGuard>,
    /// What each said that has no lock for us, and those that have said nothing yet.
    words: Vec<Word>,
    refused: Option<Error>,
}

#[derive(Debug, Clone)]
enum Word {
    NotAsked,
    Nothing,
    Granted,
    Young,
    /// Up to then, as far as that is known.
    Busy(Option<Moment>),
    Failed(Error),
}

impl<'a> Ballot<'a> {
    fn new(nodes: &'a Arc<Nodes>, asked: &[usize]) -> Self {
        let all = nodes.all.len();
        let mut words = vec![Word::NotAsked; all];
        for place in asked {
            words[*place] = Word::Nothing;
        }
        let mut children = Vec::new();
        children.resize_with(all, || None);
        Self {
            nodes,
            votes: Votes::new(all, nodes.needed, asked.len()),
            children,
            young: Vec::new(),
            words,
            refused: None,
        }
    }

    /// Hears one node.
    fn hear(&mut self, place: usize, answer: Result<Answer, Error>) -> Option<Outcome> {
        self.nodes.note(place, answer.as_ref().err());
        let (said, word) = match answer {
            Ok(Answer::Granted(child)) if self.nodes.may_vote(place, &child) => {
                self.children[place] = Some(child);
                (Said::Yes, Word::Granted)
            }
            Ok(Answer::Granted(child)) => {
                self.young.push(child);
                (Said::Young, Word::Young)
            }
            Ok(Answer::Busy(until)) => (Said::Busy, Word::Busy(until)),
            Err(error) if error.is_transient() => (Said::Failed, Word::Failed(error)),
            Err(error) => {
                self.refused.get_or_insert_with(|| error.clone());
                (Said::Refused, Word::Failed(error))
            }
        };
        self.words[place] = word;
        self.votes.hear(said)
    }

    /// The time is over.
    fn close(&mut self) -> Outcome {
        for place in self.unheard() {
            self.nodes.fell_silent(place);
        }
        self.votes.close()
    }

    /// The places of those that were asked and have said nothing yet.
    fn unheard(&self) -> Vec<usize> {
        let words = self.words.iter().enumerate();
        words
            .filter(|(_, word)| matches!(word, Word::Nothing))
            .map(|(place, _)| place)
            .collect()
    }

    /// By when so many nodes are free that it can be had, if nobody renews or gives back anything.
    fn free_at(&self) -> Moment {
        let mut ends: Vec<_> = self
            .words
            .iter()
            .map(|word| match word {
                Word::Granted => Moment::default(),
                Word::Busy(Some(until)) => *until,
                _ => Moment::NEVER,
            })
            .collect();
        ends.sort_unstable();
        ends[self.nodes.needed - 1]
    }

    fn no_quorum(&self, reached: usize) -> Error {
        let said = Words(self.words.clone());
        Error::no_quorum(reached, self.nodes.needed, Arc::new(said))
    }
}

/// One try for `request` at all nodes that are worth asking.
pub(super) async fn round(nodes: &Arc<Nodes>, request: &Request) -> Tried {
    let limit = nodes.timeout_of(request.lease);
    let asked = nodes.worth_asking();
    let mut tries: Tries = asked
        .iter()
        .map(|place| nodes.all[*place].try_once(*place, request.kind.clone(), request.lease))
        .collect();
    let mut ballot = Ballot::new(nodes, &asked);
    let outcome = heard(nodes, &mut tries, &mut ballot, limit).await;
    if outcome == Outcome::Got {
        hear_by_now(&mut tries, |(place, answer)| {
            ballot.hear(place, answer);
        })
        .await;
        let children = std::mem::take(&mut ballot.children);
        match got(nodes, request, children, limit).await {
            Some(level) => {
                nodes.patients.add(level.hold(), request);
                let unheard = ballot.unheard();
                join_later(nodes, request, level.hold(), tries, unheard, limit);
                return Tried::Got(level);
            }
            None => {
                return Tried::NoQuorum {
                    error: ballot.no_quorum(0),
                    some: true,
                };
            }
        }
    }
    let some = ballot.children.iter().any(Option::is_some);
    if outcome == Outcome::Busy && request.patience != Patience::Once {
        // Who waits comes when leases end: those of all are to be known.
        let rest = async {
            while let Some((place, answer)) = tries.next().await {
                ballot.hear(place, answer);
            }
        };
        if nodes.timers().within(limit, rest).await.is_none() {
            ballot.close();
        }
    }
    // By 2.
    drop(tries);
    let tried = match outcome {
        Outcome::Got | Outcome::Busy => Tried::Busy {
            some,
            free_at: ballot.free_at(),
        },
        Outcome::NoQuorum { reached } => Tried::NoQuorum {
            error: ballot.no_quorum(reached),
            some,
        },
        Outcome::Refused => Tried::Failed(ballot.refused.take().unwrap_or(Error::Closed)),
    };
    let children = std::mem::take(&mut ballot.children).into_iter().flatten();
    give_back(
        nodes,
        children.chain(std::mem::take(&mut ballot.young)),
        limit,
    )
    .await;
    tried
}

async fn heard(
    nodes: &Nodes,
    tries: &mut Tries,
    ballot: &mut Ballot<'_>,
    limit: Duration,
) -> Outcome {
    let mut over = pin!(nodes.timers().sleep(limit));
    loop {
        tokio::select! {
            biased;
            Some((place, answer)) = tries.next() => {
                if let Some(outcome) = ballot.hear(place, answer) {
                    return outcome;
                }
            }
            () = &mut over => return ballot.close(),
        }
    }
}

/// The hold of these children, with its token if it is to have one; without that they are given back.
async fn got(
    nodes: &Arc<Nodes>,
    request: &Request,
    children: Vec<Option<LockGuard>>,
    limit: Duration,
) -> Option<Level> {
    let spare_timeout = nodes.timeout_of(Lease::Watchdog);
    let (name, lease) = (&request.name, request.lease);
    let level = Level::first(name, nodes.needed, spare_timeout, children, lease);
    if request.fenced {
        let token = token::take(nodes, &request.kind, level.hold(), limit).await?;
        level.hold().keep_token(token);
    }
    Some(level)
}

/// Gives back what a round got; what is not answered in time is seen to in the background.
async fn give_back(nodes: &Nodes, children: impl Iterator<Item = LockGuard>, limit: Duration) {
    let given_back = join_all(children.map(LockGuard::unlock));
    // What a release was answered changes nothing here.
    nodes.timers().within(limit, given_back).await;
}

/// By 3: hears the rest in the background.
fn join_later(
    nodes: &Arc<Nodes>,
    request: &Request,
    hold: &Arc<Composite>,
    tries: Tries,
    places: Vec<usize>,
    limit: Duration,
) {
    if tries.is_empty() {
        return;
    }
    let unheard = places
        .into_iter()
        .map(|place| (place, nodes.all[place].lane()));
    let unheard = unheard.collect();
    let (quorum, hold) = (Arc::clone(nodes), Arc::clone(hold));
    let request = request.clone();
    nodes.spawn(async move { late(&quorum, &request, &hold, tries, unheard, limit).await });
}

/// Hears what is answered behind a round that got the lock, until the hold is given back or lost. Which nodes say nothing
/// at all is found out all the same, by the connections on which they were asked.
async fn late(
    nodes: &Arc<Nodes>,
    request: &Request,
    hold: &Arc<Composite>,
    mut tries: Tries,
    mut unheard: Vec<(usize, Option<Arc<Lane>>)>,
    limit: Duration,
) {
    let mut timeout = pin!(tokio::time::sleep(limit));
    let mut over = pin!(hold.over());
    let mut left_to_lease = false;
    loop {
        let (place, answer) = tokio::select! {
            biased;
            () = &mut over, if !left_to_lease => {
                left_to_lease = hold.is_left_to_lease();
                if left_to_lease {
                    continue;
                }
                drop((tries, over));
                return watch(nodes, unheard, limit).await;
            }
            answer = tries.next() => match answer {
                Some(answer) => answer,
                None => return,
            },
            () = &mut timeout => break,
        };
        unheard.retain(|(other, _)| *other != place);
        nodes.note(place, answer.as_ref().err());
        if let Ok(Answer::Granted(child)) = answer {
            join(nodes, request, hold, place, child).await;
        }
    }
    for (place, _) in unheard {
        nodes.fell_silent(place);
    }
}

/// Looks whether anything is heard of these nodes. One look at a time for each: short holds come by the thousand.
async fn watch(nodes: &Arc<Nodes>, mut places: Vec<(usize, Option<Arc<Lane>>)>, limit: Duration) {
    places.retain(|(place, _)| nodes.all[*place].is_watched(true));
    if places.is_empty() {
        return;
    }
    tokio::time::sleep(limit).await;
    for (place, lane) in places {
        nodes.all[place].is_watched(false);
        if lane.is_none_or(|lane| lane.is_silent_for(limit)) {
            nodes.fell_silent(place);
        }
    }
}

/// Adds a child to a hold, once its node knows the hold's token. What cannot be added is given back.
pub(super) async fn join(
    nodes: &Arc<Nodes>,
    request: &Request,
    hold: &Arc<Composite>,
    place: usize,
    child: LockGuard,
) -> bool {
    if !nodes.may_vote(place, &child) {
        return false;
    }
    if let Some(token) = hold.token() {
        let limit = nodes.timeout_of(request.lease);
        if !token::raise(nodes, &request.kind, place, &child, token, limit).await {
            return false;
        }
    }
    hold.adopt(place, child, request.lease == Lease::Watchdog)
        .await
}

/// What each node said, for who reads an error.
#[derive(Debug)]
struct Words(Vec<Word>);

impl std::error::Error for Words {}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, word) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}server {}: ", place + 1)?;
            match word {
                Word::NotAsked => f.write_str("not asked, it was silent before")?,
                Word::Nothing => f.write_str("no reply in time")?,
                Word::Granted => f.write_str("granted")?,
                Word::Young => f.write_str("no vote yet, it was started too lately")?,
                Word::Busy(_) => f.write_str("busy")?,
                Word::Failed(error) => match std::error::Error::source(error) {
                    Some(cause) => write!(f, "{cause}")?,
                    None => write!(f, "{error}")?,
                },
            }
        }
        Ok(())
    }
}
