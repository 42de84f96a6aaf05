//! The world of a scenario: how it begins, and how its commands go out and are answered.

use super::*;

impl World {
    pub(super) fn new(scenario: Scenario) -> Self {
        let mut owners: Vec<(u8, Arc<OwnerState>)> = Vec::new();
        let sides = scenario.sides.iter().copied();
        let sides = sides.chain(std::iter::repeat(Side::Plain));
        let callers = scenario.callers.iter().zip(sides);
        let callers = callers.map(|(&(owner, patience, manner, rounds), side)| {
            let owner = owner.map(|owner| {
                if let Some((_, known)) = owners.iter().find(|(known, _)| *known == owner) {
                    return Arc::clone(known);
                }
                owners.push((owner, OwnerState::new()));
                Arc::clone(&owners.last().unwrap().1)
            });
            Caller {
                at: At::Start,
                owner,
                owner_ended: false,
                patience,
                rounds,
                manner,
                side,
                found_none: false,
            }
        });
        let mut world = Self {
            gate: Gate::default(),
            job: false,
            asleep: Asleep::Awake,
            listening: false,
            callers: callers.collect(),
            reaps: Vec::new(),
            commands: Vec::new(),
            held_by: None,
            read_by: BTreeSet::new(),
            downgrades: Vec::new(),
            count: 0,
            counts: Vec::new(),
            open: scenario.open,
            shut: false,
            note: false,
            stranger_note: false,
            stranger_notes: scenario.notes.unwrap_or_default(),
            removed_notes: Vec::new(),
            leaves_notes: scenario.notes.is_some() && scenario.permits == 0,
            note_at: Moment::default(),
            faulted: false,
            ended: BTreeSet::new(),
            found_busy: Vec::new(),
            numbers: 0,
            now: Moment::from_nanos(1_000_000_000_000),
            faults: scenario.faults,
            polls: scenario.polls,
            ticks: scenario.ticks,
            calls: scenario.calls,
            laters: scenario.laters,
            asks: scenario.asks,
            window_opened: Moment::default(),
            closes_window: None,
            left_until: Moment::default(),
            rest_until: Moment::default(),
            passed: BTreeSet::new(),
            strangers: scenario.strangers,
            deaths: scenario.deaths,
            forgets: scenario.forgets,
            shortfalls: scenario.shortfalls,
            places: Places::default(),
            permits: Permits {
                all: scenario.permits,
                came_back: true,
                ..Permits::default()
            },
            acknowledges: scenario.shortfalls > 0,
            has_faults: scenario.faults > 0,
            closes: scenario.closes,
            closed: false,
            names: Arc::new(Names::of(&Family::PLAIN, "", "x").unwrap()),
        };
        if scenario.alone {
            world.gate.wakeups.set_listening(true);
            world.gate.wakeups.release_answered(0, Some(1));
        }
        world
    }

    /// As `Core::at`.
    pub(super) fn at<R>(&mut self, change: impl FnOnce(&mut Gate<usize>, &mut Effects) -> R) -> R {
        let mut effects = Effects::at(self.now, RULES);
        let result = change(&mut self.gate, &mut effects);
        if self.gate.start_job() {
            self.job = true;
            self.asleep = Asleep::Awake;
            self.note_at = Moment::default();
            self.places.given = self.is_queued();
            // The job is subscribed at once, as for a name that somebody waited for a moment ago. In a queue that Redis
            // keeps, each waiter has a channel of its own.
            self.listening = !self.places.given && !self.is_counted();
        }
        if let Some(job) = self.gate.job() {
            let mut notified = std::pin::pin!(job.notified());
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            if notified.as_mut().poll(&mut context).is_ready() {
                self.asleep = Asleep::Awake;
            }
        }
        let rest = effects.carry_out();
        for hold in rest.releases {
            self.reaps.push((hold, Reaping::Begun));
        }
        for (hold, _) in rest.downgrades {
            self.downgrade(&hold);
        }
        result
    }

    /// As `release::leave_to_keeper` of a downgrade.
    pub(super) fn downgrade_begun(&mut self, hold: &Arc<Hold>) {
        if hold.with(|state| state.write_ends(None, false)) {
            self.downgrades.push((Arc::clone(hold), None));
        }
    }

    /// Lets the keeper downgrade `hold`, once.
    pub(super) fn downgrade(&mut self, hold: &Arc<Hold>) {
        if hold.with(HoldState::write_is_due) {
            self.downgrades.push((Arc::clone(hold), None));
        }
    }

    pub(super) fn kind(&self, side: Side) -> Kind {
        Kind {
            names: Arc::clone(&self.names),
            commands: KindCommands::OfOne(Arc::new(side)),
            metrics: crate::report::LockMetrics::default(),
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn send(&mut self, hold: &Arc<Hold>, what: What, lane: usize) -> usize {
        self.commands.push(Command {
            hold: Arc::clone(hold),
            others: Vec::new(),
            ahead: None,
            what,
            lane,
            executed: None,
            refused: false,
            reply_lost: false,
            unacknowledged: false,
            ended: false,
            at: self.now,
        });
        self.commands.len() - 1
    }

    pub(super) fn new_hold(&mut self, ticket: &Ticket) -> Arc<Hold> {
        let mut origin = origin(ticket, self.number());
        origin.lease = self.gate.lease_to_ask(ticket);
        Hold::trying(origin, self.now + RULES.command_timeout)
    }

    pub(super) fn reply_of(&self, command: usize) -> ReplyState {
        let command = &self.commands[command];
        match command {
            Command { ended: true, .. } => ReplyState::Silence,
            Command { refused: true, .. } => ReplyState::Refused,
            Command {
                unacknowledged: true,
                reply_lost: false,
                ..
            } => ReplyState::Unacknowledged,
            Command {
                executed: Some(reply),
                reply_lost: false,
                ..
            } => ReplyState::Done(*reply),
            _ => ReplyState::InFlight,
        }
    }
}

/// The [`Origin`] of the hold that `ticket` asks for.
pub(super) fn origin(ticket: &Ticket, number: u64) -> Origin {
    Origin {
        kind: ticket.request.kind.clone(),
        id: number.to_string().into(),
        number,
        lease: DAY,
        owner: ticket.owner_of_hold(),
        entered_by: number,
        task: TaskId::default(),
    }
}
