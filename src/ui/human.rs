//! Numbers in readable form.

use std::collections::BTreeMap;

use crate::store::Cost;

/// `850 ms`, `12.3 s`, `4 min 10 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// The most important metrics, in display order.
pub const HEADLINES: [&str; 13] = [
    "success",
    "success_new",
    "success_greedy",
    "all.gain",
    "reward",
    "loss",
    "signal",
    "max_logprob_gap",
    "sampled_tokens",
    "start",
    "train",
    "dev",
    "heldout",
];

/// `success 0.610 · reward 0.580`: the headline metrics, or else the first four by name.
pub fn metrics(metrics: &BTreeMap<String, f64>) -> String {
    let headlines = HEADLINES.iter().filter_map(|name| Some((*name, *metrics.get(*name)?)));
    let mut shown: Vec<_> = headlines.collect();
    if shown.is_empty() {
        shown = metrics.iter().take(4).map(|(name, value)| (name.as_str(), *value)).collect();
    }
    joined(shown.into_iter())
}

/// All metrics by name.
pub fn all_metrics(metrics: &BTreeMap<String, f64>) -> String {
    joined(metrics.iter().map(|(name, value)| (name.as_str(), *value)))
}

fn joined<'m>(metrics: impl Iterator<Item = (&'m str, f64)>) -> String {
    let shown = metrics.map(|(name, value)| format!("{name} {}", number(value)));
    shown.collect::<Vec<_>>().join(" · ")
}

/// `1.2M`, `34.5k`, `980`.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
pub fn count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{:.1}k", count as f64 / 1e3),
        _ => format!("{:.1}M", count as f64 / 1e6),
    }
}

/// `0.042`, `6.4`, `340`.
pub fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 1.0 => format!("{rate:.1}"),
        rate => format!("{rate:.2}"),
    }
}

/// `$0.0042`, `$1.20`.
pub fn dollars(dollars: f64) -> String {
    if dollars > 0.0 && dollars < 0.1 { format!("${dollars:.4}") } else { format!("${dollars:.2}") }
}

/// Usage other than time: `12.3k tokens sampled, 340 tool calls, $0.12`. Empty if there was none.
pub fn usage(cost: &Cost) -> String {
    let counts = cost.spent.named().into_iter().filter(|(_, number)| *number > 0);
    let counts = counts.map(|(name, number)| format!("{} {name}", count(number)));
    counts.chain(cost.dollars.map(dollars)).collect::<Vec<_>>().join(", ")
}

/// Usage, starting with the time.
pub fn cost(cost: &Cost) -> String {
    let usage = usage(cost);
    let comma = if usage.is_empty() { "" } else { ", " };
    format!("{}{comma}{usage}", seconds(cost.seconds))
}

/// `1 run`, `2 runs`.
pub fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

pub fn number(value: f64) -> String {
    match value.abs() {
        // Also matches -0.
        0.0 => "0".into(),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

pub fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "shown with one decimal")]
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_the_largest_fitting_unit() {
        let shown: Vec<_> = [0.0042, 3.12, 250.0, 9000.0].into_iter().map(seconds).collect();
        assert_eq!(shown, ["4 ms", "3.1 s", "4 min 10 s", "2.5 h"]);
    }

    #[test]
    fn headline_metrics_replace_the_others() {
        let found =
            metrics(&BTreeMap::from([("loss".into(), 0.00123), ("success".into(), 0.5), ("n".into(), 64.0)]));
        assert_eq!(found, "success 0.500 · loss 1.23e-3");
        assert_eq!(metrics(&BTreeMap::from([("rows".into(), 64.0)])), "rows 64");
    }

    #[test]
    fn sizes_use_binary_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
