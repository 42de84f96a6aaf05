//! The measurements, by entrant, configuration and round.

use std::collections::BTreeMap;

use crate::stats;

/// Measurements of one case. A round in which an entrant failed is missing for it.
#[derive(Debug)]
pub(crate) struct Samples<T> {
    cells: BTreeMap<(String, String), BTreeMap<usize, T>>,
}

impl<T> Samples<T> {
    pub(crate) fn new() -> Self {
        Self {
            cells: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, entrant: &str, config: &str, round: usize, sample: T) {
        let cell = (entrant.to_owned(), config.to_owned());
        self.cells.entry(cell).or_default().insert(round, sample);
    }

    /// Whether anything was measured.
    pub(crate) fn has(&self, entrant: &str, config: &str) -> bool {
        self.cell(entrant, config).is_some()
    }

    /// The median over the rounds.
    pub(crate) fn median(
        &self,
        entrant: &str,
        config: &str,
        value: impl Fn(&T) -> f64,
    ) -> Option<f64> {
        let values: Vec<f64> = self.cell(entrant, config)?.values().map(value).collect();
        stats::median(&values)
    }

    /// The largest value of all rounds.
    pub(crate) fn worst(
        &self,
        entrant: &str,
        config: &str,
        value: impl Fn(&T) -> f64,
    ) -> Option<f64> {
        self.cell(entrant, config)?
            .values()
            .map(value)
            .max_by(f64::total_cmp)
    }

    /// The median of the ratios of the rounds that both have.
    pub(crate) fn ratio(
        &self,
        ours: &str,
        theirs: &str,
        config: &str,
        value: impl Fn(&T) -> f64,
    ) -> Option<f64> {
        let (ours, theirs) = (self.cell(ours, config)?, self.cell(theirs, config)?);
        let both = ours.iter().filter_map(|(round, sample)| {
            let other = theirs.get(round)?;
            Some((value(sample), value(other)))
        });
        let (ours, theirs): (Vec<f64>, Vec<f64>) = both.unzip();
        stats::ratio(&ours, &theirs)
    }

    fn cell(&self, entrant: &str, config: &str) -> Option<&BTreeMap<usize, T>> {
        self.cells.get(&(entrant.to_owned(), config.to_owned()))
    }
}
