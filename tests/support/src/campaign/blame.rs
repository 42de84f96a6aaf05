//! Decides whose violation it is.
//!
//! 1. A violation of a Rust process is always ours.
//! 2. Two certain holders at once are ours, unless the first is Java's and Redis itself reported in between that the
//!    lock's lease had run out: then Java's holder went on after its end, and nobody took anything away. For a read
//!    lock Redis reports that for each reader.
//! 3. Redisson has no signal for a lost lock, and its calls have time-outs of their own: a violation about the signals
//!    and times of a Java process is Redisson's.
//! 4. A place that a Java waiter lost in a fair lock's queue is Redisson's: it gives up places by the client's clock. A
//!    token that does not grow is always ours: Java takes the next number.
//!
//! Nothing is left out: Redisson's violations are counted and shown as well.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::checker::{Breach, Invariant, Report, Violation};
use crate::history::{Call, LockKind, MS, Nanos, Outcome, Record};

/// How late the kit may read a message of Redis.
const LAG: Nanos = 100 * MS;
/// No lease is shorter, so nothing expires sooner after an acquire.
const SHORTEST: Nanos = 50 * MS;

/// How far before and after a violation its circumstances are shown.
const AROUND: Nanos = 1_500 * MS;

/// What is known of an operation.
struct Party<'a> {
    client: u32,
    owner: u32,
    kind: LockKind,
    name: &'a str,
    invoked: Nanos,
    entered: Nanos,
    outcome: Option<&'a Outcome>,
}

struct Facts<'a> {
    java: &'a [(u32, String)],
    expiries: &'a [(Nanos, String)],
    frozen: Vec<(u32, Nanos, Nanos)>,
    parties: BTreeMap<u64, Party<'a>>,
}

/// Takes Redisson's violations out of a report, each with the reason why it is Redisson's; adds the circumstances to
/// the rest.
pub(super) fn sort_out(
    records: &[Record],
    report: &mut Report,
    expiries: &[(Nanos, String)],
    java: &[(u32, String)],
) -> Vec<(&'static str, Violation)> {
    let facts = Facts::of(records, expiries, java);
    let mut redissons = Vec::new();
    for violation in std::mem::take(&mut report.violations) {
        if let Some(why) = facts.redissons(&violation) {
            redissons.push((why, violation));
        } else {
            println!("{violation}\n{}", facts.circumstances(&violation));
            report.violations.push(violation);
        }
    }
    redissons
}

impl<'a> Facts<'a> {
    fn of(
        records: &'a [Record],
        expiries: &'a [(Nanos, String)],
        java: &'a [(u32, String)],
    ) -> Self {
        let mut facts = Self {
            java,
            expiries,
            frozen: Vec::new(),
            parties: BTreeMap::new(),
        };
        for record in records {
            match record {
                Record::Frozen {
                    from,
                    until,
                    client,
                } => {
                    facts.frozen.push((*client, *from, *until));
                }
                Record::Invoke {
                    t,
                    op,
                    client,
                    owner,
                    kind,
                    name,
                    ..
                } => {
                    let party = Party {
                        client: *client,
                        owner: *owner,
                        kind: *kind,
                        name,
                        invoked: *t,
                        entered: Nanos::MAX,
                        outcome: None,
                    };
                    facts.parties.insert(*op, party);
                }
                Record::Return { t, op, outcome, .. } => {
                    let party = facts.parties.get_mut(op).expect("an invoke");
                    party.entered = *t;
                    party.outcome = Some(outcome);
                }
                _ => {}
            }
        }
        facts
    }

    /// Why a violation is Redisson's, if it is.
    fn redissons(&self, violation: &Violation) -> Option<&'static str> {
        let ops = acquires(&violation.evidence);
        match &violation.breach {
            Breach::NotNotified => {
                let later = ops.iter().find(|op| !self.same_hold(ops[0], **op))?;
                self.outlived_how(&violation.name, ops[0], *later)
            }
            // Whose grant was read last may have been granted first, and have slept since.
            Breach::Overlap { .. } | Breach::TornPair => {
                let mine = *ops.first()?;
                let theirs = *ops.iter().find(|op| !self.same_hold(mine, **op))?;
                let outlived = |one, other| self.outlived_how(&violation.name, one, other);
                outlived(mine, theirs).or_else(|| outlived(theirs, mine))
            }
            // The Java peer asks Redis for the count after the lock: by then the lease may have run out.
            Breach::WrongCount { got, expected } if got < expected => {
                let op = *ops.last()?;
                if self.ran_out(&violation.name, ops[0], op) {
                    Some("a Java holder's lease ran out before it asked for its count")
                } else {
                    let there = self.was_there_afterwards(op);
                    there.then_some("a Java holder read a count too small of a hold that Redis had")
                }
            }
            Breach::WrongCount { .. }
            | Breach::NoTtl
            | Breach::Leftover { .. }
            | Breach::NoToken
            | Breach::TokenWentBack { .. } => None,
            breach => {
                let java = self.is_java(client_of(&violation.evidence)?);
                java.then_some(match breach.invariant() {
                    Invariant::I5 => "a Java waiter slept beside a free lock",
                    Invariant::Order => "a Java waiter lost its place in the queue",
                    Invariant::Tokens => "a Java holder that entered again took another token",
                    Invariant::I6 => "a Java call took longer than it was allowed",
                    _ => "a Java holder was not notified that it had lost the lock",
                })
            }
        }
    }

    /// Who took part in a violation, and what expired or was frozen around it.
    fn circumstances(&self, violation: &Violation) -> String {
        let parties = acquires(&violation.evidence);
        let parties = parties.iter().map(|op| &self.parties[op]);
        let (from, until) = parties
            .clone()
            .fold((Nanos::MAX, 0), |(from, until), party| {
                let entered = if party.entered == Nanos::MAX {
                    party.invoked
                } else {
                    party.entered
                };
                (from.min(party.invoked), until.max(entered))
            });
        let around = from.saturating_sub(AROUND)..=until.saturating_add(AROUND);
        let who = |client| {
            if self.is_java(client) { "Java" } else { "Rust" }
        };
        let mut text = String::new();
        for party in parties {
            let _ = writeln!(text, "    client {} is {}", party.client, who(party.client));
        }
        for (t, key) in self.expiries.iter().filter(|(t, _)| around.contains(t)) {
            let _ = writeln!(text, "    {key} ran out at {t}");
        }
        for (client, slept, woke) in &self.frozen {
            if around.contains(slept) || around.contains(woke) {
                let _ = writeln!(text, "    client {client} slept from {slept} to {woke}");
            }
        }
        text
    }

    fn is_java(&self, client: u32) -> bool {
        self.java.iter().any(|(java, _)| *java == client)
    }

    /// Whether an expired key was a hold of that name: the lock, or the note of a lease of this client's reader.
    fn is_hold(&self, key: &str, name: &str, client: u32) -> bool {
        let own = self.java.iter().filter(|(java, _)| *java == client);
        let note = |(_, id): &(u32, String)| key.starts_with(&format!("{{{name}}}:{id}:"));
        key == name || own.into_iter().any(note)
    }

    /// Both are acquires of one owner in a row: levels of one hold.
    fn same_hold(&self, one: u64, other: u64) -> bool {
        let who = |op: u64| (self.parties[&op].client, self.parties[&op].owner);
        who(one) == who(other)
    }

    /// How the first one went on after its lease, if it did.
    fn outlived_how(&self, name: &str, first: u64, other: u64) -> Option<&'static str> {
        let outlived = self.outlived(name, first, other);
        outlived.then(|| self.how(first, other))
    }

    /// How the first one's lease ran out before the other got in.
    fn how(&self, first: u64, other: u64) -> &'static str {
        let (first, other) = (&self.parties[&first], &self.parties[&other]);
        let slept = |(client, from, until): &(u32, Nanos, Nanos)| {
            *client == first.client && *until >= first.invoked && *from <= other.entered
        };
        if self.frozen.iter().any(slept) {
            "a Java holder that had been frozen went on after its lease"
        } else {
            "a Java holder's lease ran out in its hands, and it went on"
        }
    }

    /// Whether both are Java's, and a lease on the name ran out between them.
    fn ran_out(&self, name: &str, first: u64, last: u64) -> bool {
        let (first, last) = (&self.parties[&first], &self.parties[&last]);
        let during = |(t, key): &(Nanos, String)| {
            let end = last.entered.saturating_add(LAG);
            self.is_hold(key, name, last.client) && (first.invoked..=end).contains(t)
        };
        self.is_java(last.client) && self.expiries.iter().any(during)
    }

    /// Whether it is Java's, and Redis still had the hold after its count was read: it was given back, or its lease ran
    /// out, before anybody that it excludes got in. For a reader the note of its own lease shows that, since others
    /// keep the lock's key.
    fn was_there_afterwards(&self, op: u64) -> bool {
        let holder = &self.parties[&op];
        let later = self.parties.range(op + 1..).map(|(_, party)| party);
        let mut later = later.filter(|party| party.name == holder.name);
        // A caller that asked later may have had its turn before.
        let got_in = |party: &&Party| {
            matches!(party.outcome, Some(Outcome::Acquired(_)))
                && party.entered >= holder.entered
                && holder.kind.excludes(party.kind)
        };
        let until = later
            .clone()
            .filter(got_in)
            .map(|party| party.entered)
            .min();
        let until = until.map_or(Nanos::MAX, |entered| entered.saturating_add(LAG));
        let own = |party: &&Party| (party.client, party.owner) == (holder.client, holder.owner);
        let given_back = later.find(own).is_some_and(|next| {
            matches!(next.outcome, Some(Outcome::Released(_))) && next.entered <= until
        });
        let ran_out = |(t, key): &(Nanos, String)| {
            let is_own = holder.kind != LockKind::Read || key != holder.name;
            let is_hold = is_own && self.is_hold(key, holder.name, holder.client);
            is_hold && (holder.entered..=until).contains(t)
        };
        self.is_java(holder.client) && (given_back || self.expiries.iter().any(ran_out))
    }

    /// Whether the first is Java's and ran out before the other got in.
    fn outlived(&self, name: &str, first: u64, other: u64) -> bool {
        let (first, other) = (&self.parties[&first], &self.parties[&other]);
        let frozen = |expired: Nanos| {
            let own = self
                .frozen
                .iter()
                .filter(|(client, ..)| *client == first.client);
            own.clone().any(|(_, from, until)| {
                *from <= expired && first.invoked <= *until && *from <= first.entered
            })
        };
        let ran_out = |(t, key): &(Nanos, String)| {
            let of_it =
                *t >= first.entered.saturating_add(SHORTEST) || (*t >= first.invoked && frozen(*t));
            self.is_hold(key, name, first.client)
                && of_it
                && *t <= other.entered.saturating_add(LAG)
        };
        self.is_java(first.client) && self.expiries.iter().any(ran_out)
    }
}

/// The acquires in a violation's evidence; for a pair, or a reader's looks, the acquires that they name.
fn acquires(evidence: &[Record]) -> Vec<u64> {
    let acquire = |record: &Record| match record {
        Record::Invoke {
            op,
            call: Call::Acquire { .. },
            ..
        }
        | Record::Pair { op, .. }
        | Record::Look { op, .. } => Some(*op),
        _ => None,
    };
    evidence.iter().filter_map(acquire).collect()
}

/// The party that the evidence is about: the waiter if a release comes before it, else the first.
fn client_of(evidence: &[Record]) -> Option<u32> {
    let waiter = evidence.iter().find_map(|record| match record {
        Record::Invoke {
            client,
            call: Call::Acquire { .. },
            ..
        } => Some(*client),
        _ => None,
    });
    waiter.or_else(|| {
        evidence.iter().find_map(|record| match record {
            Record::Invoke { client, .. } => Some(*client),
            _ => None,
        })
    })
}

#[cfg(test)]
mod tests;
