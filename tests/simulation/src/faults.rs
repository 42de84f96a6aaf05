//! What goes wrong: drawn by the seed, one fault after the other, until the run is over.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;
use watchlock_support::history::{Nanos, Record, Scope};

use crate::plan::{Plan, Weather};
use crate::run::Members;
use crate::story::Story;
use crate::world::{Link, World};

/// What a server answers instead of running a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    OutOfMemory,
    ReadOnly,
    Loading,
    Busy,
}

#[derive(Clone, Debug)]
enum Fault {
    Cut,
    CutAll,
    /// Nothing arrives on the connections there are: of what is sent, of what is answered.
    Silent {
        mute: bool,
        deaf: bool,
    },
    /// Nothing arrives behind the next reply.
    BehindNext,
    Hole(Duration),
    Refused(Duration),
    Slow(Duration, Duration),
    Freeze(Duration),
    Kill,
    Stall(Duration),
    Restart {
        loses_memory: bool,
    },
    Refuses(Refusal, Duration),
    ForgetScripts,
    Clock(Duration, bool),
    Delete(usize),
    /// A client that does not hold a lock releases it.
    Force(usize),
    /// A client ends in order, after so long at most, and another one takes its place.
    Shutdown(Duration),
    /// The replica takes the server's place; or hears nothing of it for a while.
    FailOver,
    StallReplica(Duration),
}

fn draw(rng: &mut Rng, plan: &Plan) -> Fault {
    let long = Duration::from_millis(rng.u64(50..1_500));
    let slow = Duration::from_millis(rng.u64(50..500));
    let refusal = [
        Refusal::OutOfMemory,
        Refusal::ReadOnly,
        Refusal::Loading,
        Refusal::Busy,
    ][rng.usize(..4)];
    let (mute, deaf) = [(true, true), (true, false), (false, true)][rng.usize(..3)];
    let (forwards, name) = (rng.bool(), rng.usize(..plan.names));
    let is_alone = plan.servers == 1 && plan.replica.is_none();
    if plan.replica.is_some() && rng.u32(..4) == 0 {
        return if rng.bool() {
            Fault::FailOver
        } else {
            Fault::StallReplica(long)
        };
    }
    match rng.u32(..44) {
        5 => Fault::CutAll,
        6..11 => Fault::Silent { mute, deaf },
        11..17 => Fault::BehindNext,
        17..20 => Fault::Hole(long),
        20 => Fault::Refused(long),
        21..24 => Fault::Slow(slow, long),
        24..28 => Fault::Freeze(long * if rng.u32(..6) == 0 { 10 } else { 1 }),
        28..30 => Fault::Kill,
        30..32 => Fault::Stall(long),
        32 => Fault::Restart {
            loses_memory: false,
        },
        // A replica that takes over afterwards would undo it, as it does a deletion.
        33 => Fault::Restart {
            loses_memory: rng.u32(..4) == 0 && plan.replica.is_none(),
        },
        34..36 => Fault::Refuses(refusal, long),
        36 => Fault::ForgetScripts,
        37 => Fault::Clock(slow, forwards),
        // A hold of a quorum outlives it: repair takes the servers back.
        38 if is_alone => Fault::Delete(name),
        40..42 if is_alone => Fault::Force(name),
        42..44 => Fault::Shutdown(if rng.bool() { long } else { Duration::ZERO }),
        _ => Fault::Cut,
    }
}

/// Disturbs until the run is over. Returns how many faults were drawn.
pub async fn run(
    world: World,
    story: Story,
    members: Members,
    plan: Plan,
    is_over: impl Fn() -> bool,
) -> usize {
    let pause = match plan.weather {
        Weather::Calm => return 0,
        Weather::Rare => 3_000,
        Weather::Rough => 250,
    };
    let mut rng = Rng::with_seed(plan.seed ^ 0xFA17);
    let mut drawn = 0;
    loop {
        sleep(Duration::from_millis(rng.u64(1..2 * pause))).await;
        if is_over() {
            return drawn;
        }
        let at = (rng.usize(..plan.processes), rng.usize(..plan.servers));
        let fault = draw(&mut rng, &plan);
        if !plan.skipped.contains(&drawn) {
            inflict(&world, &story, &members, at, fault).await;
        }
        drawn += 1;
    }
}

/// The fault of one process or of the server, while it lasts.
struct Strike<'a> {
    world: &'a World,
    story: &'a Story,
    members: &'a Members,
    process: usize,
    server: usize,
    client: u32,
    from: Nanos,
    kind: String,
}

async fn inflict(
    world: &World,
    story: &Story,
    members: &Members,
    (process, server): (usize, usize),
    fault: Fault,
) {
    let strike = Strike {
        world,
        story,
        members,
        process,
        server,
        client: members.client(process),
        from: story.now(),
        kind: format!("{fault:?}"),
    };
    match fault {
        Fault::Cut => world.cut(Some(process), server),
        Fault::Silent { mute, deaf } => {
            return strike.is_silent(world.silence(process, server, mute, deaf));
        }
        Fault::BehindNext => return strike.is_silent(world.silence_behind_next(process, server)),
        Fault::Hole(span) => {
            strike.link(span, |link| link.hole = true).await;
        }
        Fault::Refused(span) => {
            world.cut(Some(process), server);
            strike.link(span, |link| link.refuses = true).await;
        }
        Fault::Slow(by, span) => {
            let by = u64::try_from(by.as_micros()).unwrap_or(0);
            let slow = |link: &mut Link| {
                link.up += by;
                link.down += by;
            };
            strike.link(span, slow).await;
        }
        Fault::Freeze(span) => {
            members.freeze(process);
            sleep(span).await;
            let (from, until) = (strike.from, story.now());
            members.thaw(process);
            let client = strike.client;
            story.push(Record::Frozen {
                from,
                until,
                client,
            });
        }
        Fault::Kill => {
            let (t, client) = (strike.from, strike.client);
            story.push(Record::Killed { t, client });
            members.replace(process).await;
        }
        // It disturbs nobody else, and its own are served to the end.
        Fault::Shutdown(span) => return members.shut_down(process, span).await,
        Fault::Force(name) => return strike.forces(name).await,
        Fault::FailOver => {
            world.fail_over(server);
            // A release that the replica lacks is undone: the lock is taken until the lease ends.
            return strike.ends(Scope::All, nanos(members.longest_lease()));
        }
        // Others may strike meanwhile.
        Fault::StallReplica(span) => {
            world.stall_replica(server, span);
            return strike.ends(Scope::All, nanos(span));
        }
        fault => {
            strike.server(fault).await;
            return strike.ends(Scope::All, 0);
        }
    }
    strike.ends(Scope::Client(strike.client), 0);
}

impl Strike<'_> {
    /// A fault of the server.
    async fn server(&self, fault: Fault) {
        let (world, server) = (self.world, self.server);
        match fault {
            Fault::Stall(span) => {
                world.stall(server, span);
                sleep(span).await;
            }
            Fault::Restart { loses_memory } => {
                world.restart(server, loses_memory);
                // A quorum survives that: a server that has just started has no vote.
                if loses_memory && !self.members.is_quorum() {
                    self.deleted(None);
                }
            }
            Fault::Refuses(refusal, span) => {
                refuse(world, server, refusal, true);
                sleep(span).await;
                refuse(world, server, refusal, false);
            }
            Fault::ForgetScripts => {
                world.at(server, |store| store.run(&[&b"SCRIPT"[..], b"FLUSH"]));
            }
            Fault::Clock(by, forwards) => {
                let by = i64::try_from(by.as_micros()).unwrap_or(0);
                // Forwards, leases end earlier by as much: by less than what clients allow for.
                world.step_clock(server, if forwards { by / 100 } else { -by });
            }
            Fault::Delete(name) => {
                let key = format!("name:{name}");
                for server in 0..world.servers() {
                    world.at(server, |store| store.run(&[&b"DEL"[..], key.as_bytes()]));
                }
                self.deleted(Some(key));
            }
            _ => world.cut(None, server),
        }
    }

    async fn forces(&self, name: usize) {
        if !self.members.force_unlock(self.process, name).await {
            // Whether the command ran is not known. What may still be under way arrives before this.
            sleep(2 * self.members.command_timeout()).await;
            return self.server(Fault::Delete(name)).await;
        }
        self.deleted(Some(format!("name:{name}")));
    }

    fn deleted(&self, name: Option<String>) {
        let (from, until) = (self.from, self.story.now());
        self.story.push(Record::Deleted { from, until, name });
    }

    /// Changes the link for a while.
    async fn link(&self, span: Duration, change: impl FnOnce(&mut Link)) {
        let before = self.world.link(self.process, self.server);
        let mut changed = before;
        change(&mut changed);
        self.world.set_link(self.process, self.server, changed);
        sleep(span).await;
        self.world.set_link(self.process, self.server, before);
    }

    fn ends(&self, scope: Scope, tail: Nanos) {
        self.story.push(Record::Fault {
            from: self.from,
            until: self.story.now() + tail,
            kind: self.kind.clone(),
            scope,
        });
    }

    /// These connections are silent from now on. That disturbs until they are replaced, which a client that has nothing to
    /// send does late.
    fn is_silent(&self, silent: Vec<u64>) {
        let (world, story) = (self.world.clone(), self.story.clone());
        let (from, kind, scope) = (self.from, self.kind.clone(), Scope::Client(self.client));
        let tail = nanos(self.members.command_timeout());
        tokio::spawn(async move {
            world.has_none(&silent).await;
            let until = story.now() + tail;
            story.push(Record::Fault {
                from,
                until,
                kind,
                scope,
            });
        });
    }
}

fn refuse(world: &World, server: usize, refusal: Refusal, on: bool) {
    world.at(server, |store| match refusal {
        Refusal::OutOfMemory => store.set_out_of_memory(on),
        Refusal::ReadOnly => store.set_read_only(on),
        Refusal::Loading => store.set_loading(on),
        Refusal::Busy => store.set_busy(on),
    });
}

fn nanos(span: Duration) -> Nanos {
    Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}
