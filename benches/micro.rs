//! What the parts without I/O cost: `make micro`.

use std::hint::black_box;

use criterion::{BatchSize, Criterion};
use watchlock::Error;
use watchlock::bench::{Life, Lives, Looks};
use watchlock::bench::{backoff_step, encode_acquire, encode_release, encode_renew};

/// How many holds the schedule has.
const HOLDS: u64 = 100_000;

/// A call's worth of renewals, and what is due together when [`HOLDS`] are spread evenly over their leases.
const TAKEN: [u64; 2] = [100, 5_000];

fn main() -> Result<(), Error> {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    criterion.bench_function("backoff/step", |bencher| bencher.iter(backoff_step()));
    state(&mut criterion)?;
    script(&mut criterion)?;
    schedule(&mut criterion)?;
    criterion.final_summary();
    Ok(())
}

fn state(criterion: &mut Criterion) -> Result<(), Error> {
    let lives = Lives::new()?;
    let held = || {
        let mut life = lives.trying();
        lives.grant(&mut life);
        life
    };
    let mut group = criterion.benchmark_group("state");
    group.bench_function("grant", |bencher| {
        let grant = |life: &mut Life| lives.grant(life);
        bencher.iter_batched_ref(|| lives.trying(), grant, BatchSize::SmallInput);
    });
    group.bench_function("enter", |bencher| {
        let enter = |life: &mut Life| lives.enter(life);
        bencher.iter_batched_ref(held, enter, BatchSize::SmallInput);
    });
    group.bench_function("leave", |bencher| {
        let leave = |life: &mut Life| lives.leave(life);
        bencher.iter_batched_ref(held, leave, BatchSize::SmallInput);
    });
    group.bench_function("due", |bencher| {
        let life = held();
        bencher.iter(|| lives.due(black_box(&life)));
    });
    group.bench_function("a whole life", |bencher| {
        bencher.iter(|| whole_life(&lives));
    });
    group.finish();
    Ok(())
}

/// Granted, renewed, entered once more, given back.
fn whole_life(lives: &Lives) -> Life {
    let mut life = lives.trying();
    lives.grant(black_box(&mut life));
    black_box(lives.due(black_box(&life)));
    lives.prolong(black_box(&mut life));
    lives.enter(black_box(&mut life));
    lives.leave(black_box(&mut life));
    lives.leave(black_box(&mut life));
    life
}

fn script(criterion: &mut Criterion) -> Result<(), Error> {
    let mut group = criterion.benchmark_group("script");
    let (acquire, release, renew) = (encode_acquire()?, encode_release()?, encode_renew(100)?);
    group.bench_function("acquire", |bencher| bencher.iter(&acquire));
    group.bench_function("release", |bencher| bencher.iter(&release));
    group.bench_function("renew 100 holds", |bencher| bencher.iter(&renew));
    group.finish();
    Ok(())
}

fn schedule(criterion: &mut Criterion) -> Result<(), Error> {
    let looks = Looks::new(HOLDS)?;
    let mut group = criterion.benchmark_group(format!("schedule of {HOLDS}"));
    group.bench_function("put and forget", |bencher| {
        let mut random = fastrand::Rng::with_seed(1);
        bencher.iter(|| looks.put_and_forget(random.u64(..HOLDS)));
    });
    for count in TAKEN {
        group.bench_function(format!("take {count}"), |bencher| {
            let take = |()| looks.take_first(count);
            // The entries of one batch are back before the next is taken.
            bencher.iter_batched(|| looks.put_first(count), take, BatchSize::PerIteration);
        });
    }
    group.finish();
    Ok(())
}
