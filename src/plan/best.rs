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

/// By so much a measurement has to count more than the best before it: of 64 tasks one more is not enough.
const MARGIN: f64 = 0.01;

/// The position of the best of these measurements, in their order. They are noisy: one that is above the best before it counts as its
/// mean with that one, and is the best if that is more by [`MARGIN`]. None with fewer than two: nothing is
/// compared.
pub fn best(values: &[f64]) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (place, value) in values.iter().enumerate() {
        let counts = best.map_or(*value, |(before, _)| value.min(f64::midpoint(values[before], *value)));
        if best.is_none_or(|(_, of_best)| counts > of_best + MARGIN) {
            best = Some((place, counts));
        }
    }
    best.filter(|_| values.len() > 1).map(|(place, _)| place)
}

/// Whether so many measurements came after the best.
pub fn is_flat(values: &[f64], patience: usize) -> bool {
    best(values).is_some_and(|best| values.len() - 1 - best >= patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_above_the_best_counts_as_its_mean_with_it() {
        // 0.5, 0.7, 0.6, 0.85: the second counts as 0.7, and the fourth, which is below it, as itself.
        assert_eq!(best(&[0.5, 0.9, 0.6, 0.85]), Some(3));
        assert_eq!(best(&[0.5, 0.6, 0.8, 0.7]), Some(2));
        assert_eq!(best(&[0.6, 0.2, 0.9, 0.1]), Some(2), "what is low in between does not count");
        assert_eq!(best(&[0.5, 0.516, 0.4, 0.45]), Some(0), "one task of 64 is not enough");
        assert_eq!(best(&[0.5, 0.532]), Some(1), "two are");
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
