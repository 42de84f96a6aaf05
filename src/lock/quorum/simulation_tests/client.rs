//! A client in the simulation: the rules of the quorum as they are in production ([`VoteCount`], [`RestartDelay`],
//! [`CompositeState`], and the [`Term`](crate::lease::Term) of a lease), with letters instead of commands.

use std::time::Duration;

use super::world::{Letter, MS, SimCommand, SimEvent, SimWorld, Time, rate, shown};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::lock::quorum::rules::{RestartDelay, RoundOutcome, Vote, VoteCount};
use crate::lock::several::{ChildState, CompositePhase, CompositeState};

/// The longest lease that anybody takes.
pub(super) const MAX_LEASE_MS: u64 = 100;

/// A rule that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    ValidityFromSend,
    Drift,
    RestartDelay,
    ReleaseEverywhere,
}

/// What was sent for one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kid {
    Absent,
    /// Asked, and not answered.
    Asked,
    Valid(Moment),
    Lost,
}

struct SimHold {
    number: u64,
    /// By place; one that was repaired has an id of its own.
    ids: Vec<u64>,
    kids: Vec<Kid>,
    lease: LeaseMs,
    watched: bool,
    stage: Stage,
}

enum Stage {
    Round(VoteCount),
    Held(CompositeState),
}

/// The connection to a node, and what its server said in greeting.
#[derive(Debug, Clone, Copy)]
struct SimLink {
    start: u32,
    greeted_at: Moment,
    uptime_s: u64,
}

/// A release, which is repeated so that it runs behind whatever was on the way.
struct Owed {
    place: usize,
    hold_id: u64,
    next: Time,
    /// How often it is sent still.
    left: u32,
}

/// How often a release is sent, and how far apart: longer in all than a letter may take.
const RELEASES: u32 = 4;
const APART: Time = 30 * MS;

pub(super) struct SimClient {
    number: usize,
    rate: u64,
    without: Option<Rule>,
    delay: RestartDelay,
    links: Vec<Option<SimLink>>,
    hold: Option<SimHold>,
    owed: Vec<Owed>,
    /// Which turn it waits for.
    turn: u64,
    /// When the hold is to be given back, or the round is over.
    until: Time,
    pub(super) rounds: u32,
    pub(super) holds: u32,
}

/// Whether somebody came to have the lock in this step.
pub(super) type Got = bool;

impl SimClient {
    pub(super) fn new(number: usize, without: Option<Rule>, world: &mut SimWorld) -> Self {
        let longest = Duration::from_millis(MAX_LEASE_MS);
        let mut client = Self {
            number,
            rate: rate(&mut world.random),
            without,
            delay: if without == Some(Rule::RestartDelay) {
                RestartDelay::new(Duration::ZERO)
            } else {
                RestartDelay::for_leases(longest)
            },
            links: vec![None; world.servers.len()],
            hold: None,
            owed: Vec::new(),
            turn: 0,
            until: 0,
            rounds: 0,
            holds: 0,
        };
        let first = world.random.u64(..30 * MS);
        client.turn_in(world, first);
        client
    }

    fn now(&self, world: &SimWorld) -> Moment {
        shown(world.now, self.rate)
    }

    fn turn_in(&mut self, world: &mut SimWorld, span: Time) {
        self.turn = world.number();
        world.after(span, SimEvent::Turn(self.number, self.turn));
    }

    /// Whether it believes that it has the lock.
    pub(super) fn believes(&mut self, world: &SimWorld) -> bool {
        let now = self.now(world);
        let Some(hold) = &mut self.hold else {
            return false;
        };
        match &mut hold.stage {
            Stage::Held(standing) => is_held(standing, &hold.kids, now),
            Stage::Round(_) => false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.hold.is_none() && self.owed.is_empty()
    }

    fn send(
        &mut self,
        world: &mut SimWorld,
        place: usize,
        command: SimCommand,
        hold_id: u64,
        lease: u64,
    ) {
        let now = self.now(world);
        let start = world.servers[place].start;
        if self.links[place].is_none_or(|link| link.start != start) {
            let mut random = world.random.clone();
            let says = world.servers[place].says_uptime(world.now, &mut random);
            world.random = random;
            self.links[place] = says.map(|uptime_s| SimLink {
                start,
                greeted_at: now,
                uptime_s,
            });
        }
        let Some(link) = self.links[place] else {
            return;
        };
        let since = link.greeted_at.until(now);
        let age = Duration::from_secs(link.uptime_s) + since;
        world.send(Letter {
            client: self.number,
            place,
            command,
            hold_id,
            lease_ms: lease,
            sent_at: now,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            start,
            yes: false,
        });
    }

    pub(super) fn turn(&mut self, world: &mut SimWorld, turn: u64) {
        self.pay(world);
        if turn != self.turn {
            return;
        }
        match self.hold.as_ref().map(|hold| &hold.stage) {
            None if world.calm => {
                if !self.owed.is_empty() {
                    self.turn_in(world, 20 * MS);
                }
            }
            None => self.begin(world),
            Some(Stage::Round(votes)) => {
                let outcome = votes.close();
                self.decide(world, outcome);
            }
            Some(Stage::Held(_)) => self.hold_on(world),
        }
    }

    fn begin(&mut self, world: &mut SimWorld) {
        let nodes = world.servers.len();
        let number = world.number();
        let lease_ms = world.random.u64(20..=MAX_LEASE_MS);
        self.rounds += 1;
        self.hold = Some(SimHold {
            number,
            ids: vec![number; nodes],
            kids: vec![Kid::Asked; nodes],
            lease: LeaseMs::from_millis(lease_ms),
            watched: world.random.bool(),
            stage: Stage::Round(VoteCount::new(nodes, nodes / 2 + 1, nodes)),
        });
        for place in 0..nodes {
            self.send(world, place, SimCommand::Acquire, number, lease_ms);
        }
        self.turn_in(world, (lease_ms / 10).min(50) * MS);
    }

    /// Up to when an answer to what was sent then vouches for a child.
    fn vouched(&self, lease: LeaseMs, sent_at: Moment, now: Moment) -> Moment {
        let from = if self.without == Some(Rule::ValidityFromSend) {
            now
        } else {
            sent_at
        };
        let term = lease.term(from);
        if self.without == Some(Rule::Drift) {
            term.ends_at
        } else {
            term.valid_until
        }
    }

    pub(super) fn answered(&mut self, world: &mut SimWorld, letter: Letter) -> Got {
        let now = self.now(world);
        let age = Some(Duration::from_millis(letter.age_ms));
        let may_vote = self.delay.may_vote(age);
        let lease = LeaseMs::from_millis(letter.lease_ms);
        let valid_until = self.vouched(lease, letter.sent_at, now);
        let Some(hold) = &mut self.hold else {
            return false;
        };
        if hold.ids[letter.place] != letter.hold_id {
            return false;
        }
        let kid = &mut hold.kids[letter.place];
        match (letter.command, &mut hold.stage) {
            (SimCommand::Acquire, Stage::Round(votes)) if *kid == Kid::Asked => {
                let said = match (letter.yes, may_vote) {
                    (true, true) => Vote::Yes,
                    (true, false) => Vote::Young,
                    (false, _) => Vote::Busy,
                };
                // What does not count is given back with the rest.
                *kid = match said {
                    Vote::Yes => Kid::Valid(valid_until),
                    Vote::Young => Kid::Lost,
                    _ => Kid::Absent,
                };
                if let Some(outcome) = votes.count(said) {
                    return self.decide(world, outcome);
                }
            }
            // A late answer, or that of a repair: looked at before it is taken in.
            (SimCommand::Acquire, Stage::Held(standing)) if *kid == Kid::Asked => {
                let held = is_held(standing, &hold.kids, now);
                let counts = letter.yes && may_vote && held && now < valid_until;
                hold.kids[letter.place] = if counts {
                    Kid::Valid(valid_until)
                } else {
                    Kid::Lost
                };
            }
            (SimCommand::Renew, Stage::Held(_)) => match *kid {
                Kid::Valid(until) if now < until => {
                    *kid = if letter.yes {
                        Kid::Valid(until.max(valid_until))
                    } else {
                        Kid::Lost
                    };
                }
                _ => {}
            },
            _ => {}
        }
        false
    }

    fn decide(&mut self, world: &mut SimWorld, outcome: RoundOutcome) -> Got {
        let now = self.now(world);
        let Some(hold) = &mut self.hold else {
            return false;
        };
        let mut standing = CompositeState::new(hold.kids.len() / 2 + 1);
        if outcome != RoundOutcome::Got || !is_held(&mut standing, &hold.kids, now) {
            self.give_back(world);
            return false;
        }
        hold.stage = Stage::Held(standing);
        self.holds += 1;
        self.until = world.now + world.random.u64(..3 * MAX_LEASE_MS) * MS;
        let period = hold.lease.as_millis() * MS / 3;
        self.turn_in(world, period);
        true
    }

    /// Renews, repairs, and gives back in time.
    fn hold_on(&mut self, world: &mut SimWorld) {
        if world.calm || world.now >= self.until || !self.believes(world) {
            return self.give_back(world);
        }
        let Some(hold) = &self.hold else {
            return;
        };
        let (watched, lease_ms) = (hold.watched, hold.lease.as_millis());
        let now = self.now(world);
        let letters: Vec<_> = (0..hold.kids.len())
            .map(|place| match hold.kids[place] {
                Kid::Valid(until) if now < until => (place, watched.then_some(SimCommand::Renew)),
                Kid::Asked => (place, None),
                _ => (place, watched.then_some(SimCommand::Acquire)),
            })
            .collect();
        for (place, command) in letters {
            let Some(command) = command else { continue };
            if command == SimCommand::Acquire {
                self.replace(world, place);
            }
            if let Some(id) = self.hold.as_ref().map(|hold| hold.ids[place]) {
                self.send(world, place, command, id, lease_ms);
            }
        }
        self.turn_in(world, lease_ms * MS / 3);
    }

    /// A new child for this place: the old one is given back.
    fn replace(&mut self, world: &mut SimWorld, place: usize) {
        let fresh = world.number();
        if let Some(hold) = &mut self.hold {
            let old = std::mem::replace(&mut hold.ids[place], fresh);
            hold.kids[place] = Kid::Asked;
            self.owe(world, place, old);
        }
    }

    /// From now on it does not have it. What it may have on the nodes, it releases.
    fn give_back(&mut self, world: &mut SimWorld) {
        let Some(hold) = self.hold.take() else {
            return;
        };
        let everywhere = self.without != Some(Rule::ReleaseEverywhere);
        for (place, kid) in hold.kids.iter().enumerate() {
            let acquired = matches!(kid, Kid::Valid(_) | Kid::Lost);
            if acquired || (*kid == Kid::Asked && everywhere) {
                self.owe(world, place, hold.ids[place]);
            }
        }
        let pause = match hold.number % 3 {
            0 => world.random.u64(..40 * MS),
            _ => world.random.u64(..25 * MS),
        };
        self.pay(world);
        self.turn_in(world, pause);
    }

    fn owe(&mut self, world: &SimWorld, place: usize, hold_id: u64) {
        self.owed.push(Owed {
            place,
            hold_id,
            next: world.now,
            left: RELEASES,
        });
    }

    /// Sends what it owes by now.
    fn pay(&mut self, world: &mut SimWorld) {
        let now = world.now;
        let mut due = Vec::new();
        for owed in self.owed.iter_mut().filter(|owed| owed.next <= now) {
            due.push((owed.place, owed.hold_id));
            owed.next = now + APART;
            // While letters get lost none is the last.
            owed.left = if world.calm || owed.left > 1 {
                owed.left - 1
            } else {
                1
            };
        }
        for (place, hold_id) in due {
            self.send(world, place, SimCommand::Release, hold_id, 1);
        }
        self.owed.retain(|owed| owed.left > 0);
    }
}

fn is_held(standing: &mut CompositeState, kids: &[Kid], now: Moment) -> bool {
    let said = kids.iter().map(|kid| match *kid {
        Kid::Absent | Kid::Asked => ChildState::Absent,
        Kid::Valid(until) if now < until => ChildState::Valid(now.until(until)),
        Kid::Valid(_) => ChildState::Lost(LostReason::Expired),
        Kid::Lost => ChildState::Lost(LostReason::Missing),
    });
    matches!(standing.look(said), CompositePhase::Held(_))
}
