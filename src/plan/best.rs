//! Which iteration a loop's result is of, where the run file asks for the best.

use petgraph::graph::NodeIndex;

/// An artifact, and the metric that says how good it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Measured {
    /// The node that writes the artifact, and its port.
    pub node: NodeIndex,
    pub port: String,
    pub metric: MetricOf,
}

/// A metric that a node reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricOf {
    pub node: NodeIndex,
    pub name: String,
}

/// Ends a loop whose measurements have not risen for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flat {
    /// Of what the loop starts from, and of the iterations that decide, in their order.
    pub metrics: Vec<MetricOf>,
    /// Measurements after the best that end the loop.
    pub patience: usize,
}

/// The position of the best of these measurements, in their order; of equals the first. Measurements are noisy, so one that
/// rises counts as its mean with the one before. None without measurements.
pub fn best(values: &[f64]) -> Option<usize> {
    let score = |place: usize| match place.checked_sub(1) {
        Some(before) => f64::midpoint(values[before], values[place]).min(values[place]),
        None => values[place],
    };
    let better = |best: usize, place: usize| if score(place) > score(best) { place } else { best };
    (0..values.len()).reduce(better)
}

/// Whether so many measurements came after the best.
pub fn is_flat(values: &[f64], patience: usize) -> bool {
    best(values).is_some_and(|best| values.len() - 1 - best >= patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_high_measurement_counts_as_its_mean_with_the_one_before() {
        assert_eq!(best(&[0.5, 0.9, 0.6, 0.85]), Some(3));
        assert_eq!(best(&[0.5, 0.6, 0.8, 0.7]), Some(2));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn where_nothing_rises_the_start_is_the_best() {
        assert_eq!(best(&[0.7, 0.7, 0.7]), Some(0));
        assert_eq!(best(&[0.7, 0.1, 0.0, 0.2]), Some(0));
    }

    #[test]
    fn a_loop_is_flat_after_so_many_measurements_without_a_rise() {
        assert!(!is_flat(&[0.7, 0.6, 0.5], 3));
        assert!(is_flat(&[0.7, 0.6, 0.5, 0.6], 3));
        assert!(!is_flat(&[0.7, 0.6, 0.9, 0.5, 0.4], 3));
    }
}
