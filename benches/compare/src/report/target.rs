//! The targets, and whether they are met. Never an assertion: machines differ, and the reader judges.

use super::figure;

/// One target.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) measured: String,
    /// `None`: not measured.
    pub(crate) met: Option<bool>,
}

impl Target {
    /// The value should be at least `limit`.
    pub(crate) fn at_least(what: &str, limit: f64, value: Option<f64>) -> Self {
        let met = value.map(|value| value >= limit);
        Self::new(what, format!(">= {}", figure(limit)), value, met)
    }

    /// The value should be at most `limit`.
    pub(crate) fn at_most(what: &str, limit: f64, value: Option<f64>) -> Self {
        let met = value.map(|value| value <= limit);
        Self::new(what, format!("<= {}", figure(limit)), value, met)
    }

    fn new(what: &str, wanted: String, value: Option<f64>, met: Option<bool>) -> Self {
        Self {
            what: what.to_owned(),
            wanted,
            measured: value.map_or_else(|| "-".to_owned(), figure),
            met,
        }
    }

    /// The verdict in a word.
    pub(crate) fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "pass",
            Some(false) => "MISS",
            None => "not measured",
        }
    }
}
