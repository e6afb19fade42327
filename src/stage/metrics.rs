//! Numbers that a finished stage reports, and how they are counted.

use std::collections::BTreeMap;

/// Numbers that a finished stage reports in addition to its artifacts, for `until` and for people.
pub type Metrics = BTreeMap<String, f64>;

/// Metrics of these names.
pub fn metrics<const N: usize>(named: [(&str, f64); N]) -> Metrics {
    named.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Metrics of these names, without those that have no value.
pub fn known_metrics<const N: usize>(named: [(&str, Option<f64>); N]) -> Metrics {
    named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// None without values.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.into_iter().fold((0_u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / count as f64)
}

/// The share of the known outcomes that are right. None if none is known.
pub fn share_right(outcomes: impl IntoIterator<Item = Option<bool>>) -> Option<f64> {
    mean(outcomes.into_iter().flatten().map(|right| f64::from(u8::from(right))))
}
