//! Medians, percentiles and ratios.

/// The middle value; `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    percentile(values, 0.5)
}

/// The value below which the share `q` (0 to 1) of the values lies (nearest rank).
pub(crate) fn percentile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * q).round() as usize).copied()
}

/// The median of the ratios of two series, round by round: noise that hits a whole round cancels.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let pairs = ours.iter().zip(theirs).filter(|(_, theirs)| **theirs > 0.0);
    let ratios: Vec<f64> = pairs.map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_of_the_series() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(median(&values), Some(3.0));
        assert_eq!(percentile(&values, 0.99), Some(5.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(ratio(&[1.0, 20.0, 3.0], &[2.0, 40.0, 6.0]), Some(0.5));
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
