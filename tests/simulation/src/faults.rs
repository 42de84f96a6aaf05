//! What goes wrong: drawn by the seed, one fault after the other, until the run is over.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;
use watchlock_support::history::{Nanos, Record, Scope};

use crate::plan::{Plan, Weather};
use crate::run::Members;
use crate::story::Story;
use crate::world::World;

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
    match rng.u32(..40) {
        0..5 => Fault::Cut,
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
        33 => Fault::Restart {
            loses_memory: rng.u32(..4) == 0,
        },
        34..36 => Fault::Refuses(refusal, long),
        36 => Fault::ForgetScripts,
        37 => Fault::Clock(slow, forwards),
        38 => Fault::Delete(name),
        _ => Fault::Cut,
    }
}

/// Disturbs until the run is over.
pub async fn run(
    world: World,
    story: Story,
    members: Members,
    plan: Plan,
    is_over: impl Fn() -> bool,
) {
    let pause = match plan.weather {
        Weather::Calm => return,
        Weather::Rare => 3_000,
        Weather::Rough => 250,
    };
    let mut rng = Rng::with_seed(plan.seed ^ 0xFA17);
    loop {
        sleep(Duration::from_millis(rng.u64(1..2 * pause))).await;
        if is_over() {
            return;
        }
        let process = rng.usize(..plan.processes);
        let fault = draw(&mut rng, &plan);
        inflict(&world, &story, &members, process, fault).await;
    }
}

async fn inflict(world: &World, story: &Story, members: &Members, process: usize, fault: Fault) {
    let from = story.now();
    let client = members.client(process);
    let kind = format!("{fault:?}");
    let command_timeout = nanos(members.command_timeout());
    let (scope, tail) = match fault {
        Fault::Cut => {
            world.cut(Some(process), 0);
            (Scope::Client(client), 0)
        }
        Fault::CutAll => {
            world.cut(None, 0);
            (Scope::All, 0)
        }
        Fault::Silent { mute, deaf } => {
            let silent = world.silence(process, 0, mute, deaf);
            let until_replaced = (from, kind, Scope::Client(client), command_timeout);
            tokio::spawn(lasts(world.clone(), story.clone(), silent, until_replaced));
            return;
        }
        Fault::BehindNext => {
            let silent = world.silence_behind_next(process, 0);
            let until_replaced = (from, kind, Scope::Client(client), command_timeout);
            tokio::spawn(lasts(world.clone(), story.clone(), silent, until_replaced));
            return;
        }
        Fault::Hole(span) => {
            let before = world.link(process, 0);
            world.set_link(
                process,
                0,
                crate::world::Link {
                    hole: true,
                    ..before
                },
            );
            sleep(span).await;
            world.set_link(process, 0, before);
            (Scope::Client(client), 0)
        }
        Fault::Refused(span) => {
            let before = world.link(process, 0);
            world.set_link(
                process,
                0,
                crate::world::Link {
                    refuses: true,
                    ..before
                },
            );
            world.cut(Some(process), 0);
            sleep(span).await;
            world.set_link(process, 0, before);
            (Scope::Client(client), 0)
        }
        Fault::Slow(by, span) => {
            let before = world.link(process, 0);
            let by = u64::try_from(by.as_micros()).unwrap_or(0);
            let slow = crate::world::Link {
                up: before.up + by,
                down: before.down + by,
                ..before
            };
            world.set_link(process, 0, slow);
            sleep(span).await;
            world.set_link(process, 0, before);
            (Scope::Client(client), 0)
        }
        Fault::Freeze(span) => {
            members.freeze(process);
            sleep(span).await;
            let until = story.now();
            members.thaw(process);
            story.push(Record::Frozen {
                from,
                until,
                client,
            });
            (Scope::Client(client), 0)
        }
        Fault::Kill => {
            story.push(Record::Killed { t: from, client });
            members.replace(process).await;
            (Scope::Client(client), 0)
        }
        Fault::Stall(span) => {
            world.stall(0, span);
            sleep(span).await;
            (Scope::All, 0)
        }
        Fault::Restart { loses_memory } => {
            world.restart(0, loses_memory);
            if loses_memory {
                story.push(Record::Deleted {
                    from,
                    until: story.now(),
                    name: None,
                });
            }
            (Scope::All, 0)
        }
        Fault::Refuses(refusal, span) => {
            refuse(world, refusal, true);
            sleep(span).await;
            refuse(world, refusal, false);
            (Scope::All, 0)
        }
        Fault::ForgetScripts => {
            world.at(0, |store| store.run(&[&b"SCRIPT"[..], b"FLUSH"]));
            (Scope::All, 0)
        }
        Fault::Clock(by, forwards) => {
            let by = i64::try_from(by.as_micros()).unwrap_or(0);
            // A lease may end earlier by as much, so all holds may be lost.
            world.step_clock(0, if forwards { by / 100 } else { -by });
            (Scope::All, 0)
        }
        Fault::Delete(name) => {
            let key = format!("name:{name}");
            world.at(0, |store| store.run(&[&b"DEL"[..], key.as_bytes()]));
            story.push(Record::Deleted {
                from,
                until: story.now(),
                name: Some(key),
            });
            (Scope::All, 0)
        }
    };
    let until = story.now() + tail;
    story.push(Record::Fault {
        from,
        until,
        kind,
        scope,
    });
}

/// A silent connection disturbs until it is replaced, which a client that has nothing to send does late.
async fn lasts(
    world: World,
    story: Story,
    silent: Vec<u64>,
    (from, kind, scope, tail): (Nanos, String, Scope, Nanos),
) {
    while world.has_any(&silent) {
        sleep(Duration::from_millis(20)).await;
    }
    let until = story.now() + tail;
    story.push(Record::Fault {
        from,
        until,
        kind,
        scope,
    });
}

fn refuse(world: &World, refusal: Refusal, on: bool) {
    world.at(0, |store| match refusal {
        Refusal::OutOfMemory => store.set_out_of_memory(on),
        Refusal::ReadOnly => store.set_read_only(on),
        Refusal::Loading => store.set_loading(on),
        Refusal::Busy => store.set_busy(on),
    });
}

fn nanos(span: Duration) -> Nanos {
    Nanos::try_from(span.as_nanos()).unwrap_or(Nanos::MAX)
}
