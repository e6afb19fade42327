//! Numbers in readable form.

use std::collections::BTreeMap;

use crate::{eval::points, store::Cost, text};

/// `850 ms`, `12.3 s`, `4 min 10 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1000.0),
        s if s < 100.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// The most important metrics, in display order, and how they are called on the screen.
const HEADLINES: [(&str, &str); 12] = [
    ("success", "success"),
    ("success_new", "new"),
    ("success_greedy", "greedy"),
    ("all.gain", "gain"),
    ("reward", "reward"),
    ("loss", "loss"),
    ("signal", "teaches"),
    ("start", "start"),
    ("train", "train"),
    ("dev", "dev"),
    ("heldout", "heldout"),
    ("parameters", "parameters"),
];
/// How many of the other metrics are shown if a stage has none of these.
const OTHERS: usize = 4;

/// The names of the most important metrics.
pub fn headlines() -> impl Iterator<Item = &'static str> {
    HEADLINES.iter().map(|(name, _)| *name)
}

/// `success 61 % · reward 0.580`: the headline metrics, or else the first four by name.
pub fn metrics(metrics: &BTreeMap<String, f64>) -> String {
    let headlines = HEADLINES.iter().filter_map(|(name, shown)| Some((*name, *shown, *metrics.get(*name)?)));
    // Tasks that were not asked for are no news.
    let is_news = |(name, _, value): &(&str, &str, f64)| *name != "dev" || *value > 0.0;
    let mut shown: Vec<_> = headlines.filter(is_news).collect();
    if shown.is_empty() {
        let all = metrics.iter().map(|(name, value)| (name.as_str(), name.as_str(), *value));
        shown = all.filter(|(.., value)| *value != 0.0).take(OTHERS).collect();
    }
    joined(shown.into_iter())
}

/// All metrics by name.
pub fn all_metrics(metrics: &BTreeMap<String, f64>) -> String {
    joined(metrics.iter().map(|(name, value)| (name.as_str(), name.as_str(), *value)))
}

fn joined<'m>(metrics: impl Iterator<Item = (&'m str, &'m str, f64)>) -> String {
    let shown = metrics.map(|(name, shown, value)| format!("{shown} {}", metric(name, value)));
    shown.collect::<Vec<_>>().join(" · ")
}

/// The value of a metric: success and other shares in percent, differences of them in points.
pub fn metric(name: &str, value: f64) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    let is_success = last.starts_with("success") || matches!(last, "greedy" | "sampled" | "strict");
    match name {
        _ if last == "gain" => format!("{} points", points(value, 1)),
        _ if is_success || last == "signal" => percent(value),
        "parameters" => count_of(value),
        _ => number(value),
    }
}

/// `61 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", text::percent(share, 0))
}

/// `630.2M`.
fn count_of(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    count(value.max(0.0) as u64)
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
        assert_eq!(found, "success 50 % · loss 1.23e-3");
        assert_eq!(metrics(&BTreeMap::from([("rows".into(), 64.0)])), "rows 64");
    }

    #[test]
    fn shares_are_in_percent_and_gains_in_points() {
        let shown =
            [("all.base.greedy", 0.246), ("success_new", 1.0), ("all.gain", 0.083), ("all.base.calls", 2.5)]
                .map(|(name, value)| metric(name, value));
        assert_eq!(shown, ["25 %", "100 %", "+8.3 points", "2.500"]);
    }

    #[test]
    fn sizes_use_binary_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
