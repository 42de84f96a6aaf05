//! The Redis in memory answers as a real one does: random commands and scripts go to both, in the same order, and
//! replies, messages, keys and times to live are compared.
//!
//! `DIFFERENTIAL_CASES` is how many cases run, and `DIFFERENTIAL_SEED` the seed of the first. A failure prints both, and
//! the shortest list of commands that it could find; with `DIFFERENTIAL_ALL=1` the other cases run all the same.

mod commands;
mod compare;
mod pair;
mod scripts;
mod wire;

use pair::Pair;

/// About ten seconds.
const CASES: u64 = 700;
const COMMANDS: usize = 60;

/// A command, and on which of the connections it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) connection: usize,
    pub(crate) words: Vec<Vec<u8>>,
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// A case of the given kind; each kind has its own generator.
fn steps(seed: u64) -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(seed);
    match seed % 4 {
        0 => scripts::of_the_crate(&mut random, COMMANDS),
        1 => scripts::of_others(&mut random, COMMANDS),
        _ => commands::of_all_kinds(&mut random, COMMANDS),
    }
}

#[test]
fn it_answers_as_redis_does() {
    let first = from_environment("DIFFERENTIAL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    let cases = from_environment("DIFFERENTIAL_CASES").unwrap_or(CASES);
    let goes_on = from_environment("DIFFERENTIAL_ALL") == Some(1);
    let mut pair = Pair::start();
    let mut failures = Vec::new();
    for seed in first..first.saturating_add(cases) {
        let steps = steps(seed);
        if let Err(difference) = confirmed(&mut pair, &steps) {
            // To wait for the same silence again and again takes too long.
            let (steps, difference) = if difference.contains(pair::SILENT) {
                pair = Pair::start();
                (steps, difference)
            } else {
                shrink(&mut pair, steps, difference)
            };
            let shown: Vec<_> = steps.iter().map(show).collect();
            failures.push(format!(
                "DIFFERENTIAL_SEED={seed} DIFFERENTIAL_CASES=1\n{}\n{difference}",
                shown.join("\n")
            ));
            if !goes_on {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// What differs each time. A millisecond that ends between the two servers makes scripts decide otherwise, but not again
/// and again.
fn confirmed(pair: &mut Pair, steps: &[Step]) -> Result<(), String> {
    pair.run(steps)
        .or_else(|_| pair.run(steps))
        .or_else(|_| pair.run(steps))
}

/// Leaves out commands one by one, as long as something still differs.
fn shrink(pair: &mut Pair, mut steps: Vec<Step>, mut difference: String) -> (Vec<Step>, String) {
    let mut at = steps.len();
    while at > 0 {
        at -= 1;
        let mut fewer = steps.clone();
        fewer.remove(at);
        if let Err(still) = confirmed(pair, &fewer) {
            (steps, difference) = (fewer, still);
            at = at.min(steps.len());
        }
    }
    (steps, difference)
}

fn show(step: &Step) -> String {
    let words = step
        .words
        .iter()
        .map(|word| word.escape_ascii().to_string());
    let words: Vec<_> = words.map(|word| format!("{word:?}")).collect();
    format!("  {}: {}", step.connection, words.join(" "))
}
