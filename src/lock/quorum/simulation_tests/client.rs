//! A client in the simulation: the rules of the quorum as they are in production ([`counted`], [`RestartDelay`],
//! [`CompositeState`], and the [`Term`](crate::lease::Term) of a lease), on messages in memory instead of commands.

use std::time::Duration;

use super::world::{Letter, MS, SimCommand, SimEvent, SimWorld, Time, clock_at, rate};
use crate::clock::Moment;
use crate::error::LostReason;
use crate::lease::LeaseMs;
use crate::lock::quorum::rules::{NodeReport, RestartDelay, RoundOutcome, counted};
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

/// The child at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimChild {
    Absent,
    /// Asked; no answer yet.
    Asked,
    Valid(Moment),
    Lost,
}

struct SimHold {
    number: u64,
    /// By place; one that was repaired has an id of its own.
    ids: Vec<u64>,
    children: Vec<SimChild>,
    lease: LeaseMs,
    watched: bool,
    stage: Stage,
}

enum Stage {
    Round(Vec<NodeReport>),
    Held(CompositeState),
}

/// The connection to a node, and the uptime that its server reported at the start of it.
#[derive(Debug, Clone, Copy)]
struct SimLink {
    start: u32,
    greeted_at: Moment,
    uptime_s: u64,
}

/// A release that is repeated, so that it also runs after commands that were still on the way.
struct SimRelease {
    place: usize,
    hold_id: u64,
    next: Time,
    /// How many more times it is sent.
    left: u32,
}

/// How often a release is sent, and the time between two. Together longer than any message takes.
const RELEASE_COUNT: u32 = 4;
const RELEASE_INTERVAL: Time = 30 * MS;

pub(super) struct SimClient {
    number: usize,
    rate: u64,
    without: Option<Rule>,
    delay: RestartDelay,
    links: Vec<Option<SimLink>>,
    hold: Option<SimHold>,
    releases: Vec<SimRelease>,
    /// The number of the turn that it waits for.
    turn: u64,
    /// When the hold is to be given back, or the round is over.
    until: Time,
    pub(super) rounds: u32,
    pub(super) holds: u32,
}

impl SimClient {
    pub(super) fn new(number: usize, without: Option<Rule>, world: &mut SimWorld) -> Self {
        let longest = Duration::from_millis(MAX_LEASE_MS);
        let mut client = Self {
            number,
            rate: rate(&mut world.random),
            without,
            delay: if without == Some(Rule::RestartDelay) {
                RestartDelay(Duration::ZERO)
            } else {
                RestartDelay::for_leases(longest)
            },
            links: vec![None; world.servers.len()],
            hold: None,
            releases: Vec::new(),
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
        clock_at(world.now, self.rate)
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
            Stage::Held(state) => is_held(state, &hold.children, now),
            Stage::Round(_) => false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.hold.is_none() && self.releases.is_empty()
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
            let uptime = world.servers[place].reported_uptime(world.now, &mut random);
            world.random = random;
            self.links[place] = uptime.map(|uptime_s| SimLink {
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
        self.send_releases(world);
        if turn != self.turn {
            return;
        }
        match self.hold.as_ref().map(|hold| &hold.stage) {
            None if world.calm => {
                if !self.releases.is_empty() {
                    self.turn_in(world, 20 * MS);
                }
            }
            None => self.begin(world),
            Some(Stage::Round(reports)) => {
                let (outcome, _) = counted(reports, reports.len() / 2 + 1);
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
            children: vec![SimChild::Asked; nodes],
            lease: LeaseMs::from_millis(lease_ms),
            watched: world.random.bool(),
            stage: Stage::Round(vec![NodeReport::NoAnswer; nodes]),
        });
        for place in 0..nodes {
            self.send(world, place, SimCommand::Acquire, number, lease_ms);
        }
        self.turn_in(world, (lease_ms / 10).min(50) * MS);
    }

    /// Until when an answer to a command that was sent at `sent_at` makes a child valid.
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

    pub(super) fn answered(&mut self, world: &mut SimWorld, letter: Letter) -> bool {
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
        let child = &mut hold.children[letter.place];
        match (letter.command, &mut hold.stage) {
            (SimCommand::Acquire, Stage::Round(reports)) if *child == SimChild::Asked => {
                let report = match (letter.yes, may_vote) {
                    (true, true) => NodeReport::Granted,
                    (true, false) => NodeReport::Young,
                    (false, _) => NodeReport::Busy(None),
                };
                // A grant without a vote is given back with the rest.
                *child = match report {
                    NodeReport::Granted => SimChild::Valid(valid_until),
                    NodeReport::Young => SimChild::Lost,
                    _ => SimChild::Absent,
                };
                reports[letter.place] = report;
                let (outcome, is_certain) = counted(reports, reports.len() / 2 + 1);
                if is_certain {
                    return self.decide(world, outcome);
                }
            }
            // A late answer, or the answer to a repair. It counts only while the hold is valid.
            (SimCommand::Acquire, Stage::Held(state)) if *child == SimChild::Asked => {
                let held = is_held(state, &hold.children, now);
                let counts = letter.yes && may_vote && held && now < valid_until;
                hold.children[letter.place] = if counts {
                    SimChild::Valid(valid_until)
                } else {
                    SimChild::Lost
                };
            }
            (SimCommand::Renew, Stage::Held(_)) => match *child {
                SimChild::Valid(until) if now < until => {
                    *child = if letter.yes {
                        SimChild::Valid(until.max(valid_until))
                    } else {
                        SimChild::Lost
                    };
                }
                _ => {}
            },
            _ => {}
        }
        false
    }

    fn decide(&mut self, world: &mut SimWorld, outcome: RoundOutcome) -> bool {
        let now = self.now(world);
        let Some(hold) = &mut self.hold else {
            return false;
        };
        let mut state = CompositeState::new(hold.children.len() / 2 + 1);
        if outcome != RoundOutcome::Got || !is_held(&mut state, &hold.children, now) {
            self.give_back(world);
            return false;
        }
        hold.stage = Stage::Held(state);
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
        let letters: Vec<_> = (0..hold.children.len())
            .map(|place| match hold.children[place] {
                SimChild::Valid(until) if now < until => {
                    (place, watched.then_some(SimCommand::Renew))
                }
                SimChild::Asked => (place, None),
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

    /// Replaces the child at this place and releases the old one.
    fn replace(&mut self, world: &mut SimWorld, place: usize) {
        let fresh = world.number();
        if let Some(hold) = &mut self.hold {
            let old = std::mem::replace(&mut hold.ids[place], fresh);
            hold.children[place] = SimChild::Asked;
            self.schedule_release(world, place, old);
        }
    }

    /// Ends the hold, and releases it on every node that may have it.
    fn give_back(&mut self, world: &mut SimWorld) {
        let Some(hold) = self.hold.take() else {
            return;
        };
        let everywhere = self.without != Some(Rule::ReleaseEverywhere);
        for (place, child) in hold.children.iter().enumerate() {
            let acquired = matches!(child, SimChild::Valid(_) | SimChild::Lost);
            if acquired || (*child == SimChild::Asked && everywhere) {
                self.schedule_release(world, place, hold.ids[place]);
            }
        }
        let pause = match hold.number % 3 {
            0 => world.random.u64(..40 * MS),
            _ => world.random.u64(..25 * MS),
        };
        self.send_releases(world);
        self.turn_in(world, pause);
    }

    fn schedule_release(&mut self, world: &SimWorld, place: usize, hold_id: u64) {
        self.releases.push(SimRelease {
            place,
            hold_id,
            next: world.now,
            left: RELEASE_COUNT,
        });
    }

    /// Sends the releases that are due.
    fn send_releases(&mut self, world: &mut SimWorld) {
        let now = world.now;
        let mut due = Vec::new();
        for release in self
            .releases
            .iter_mut()
            .filter(|release| release.next <= now)
        {
            due.push((release.place, release.hold_id));
            release.next = now + RELEASE_INTERVAL;
            // While messages get lost, it is sent again and again.
            release.left = if world.calm || release.left > 1 {
                release.left - 1
            } else {
                1
            };
        }
        for (place, hold_id) in due {
            self.send(world, place, SimCommand::Release, hold_id, 1);
        }
        self.releases.retain(|release| release.left > 0);
    }
}

fn is_held(state: &mut CompositeState, children: &[SimChild], now: Moment) -> bool {
    let reports = children.iter().map(|child| match *child {
        SimChild::Absent | SimChild::Asked => ChildState::Over,
        SimChild::Valid(until) if now < until => ChildState::Valid(now.until(until)),
        SimChild::Valid(_) => ChildState::Lost(LostReason::Expired),
        SimChild::Lost => ChildState::Lost(LostReason::Missing),
    });
    matches!(state.look(reports), CompositePhase::Held(_))
}
