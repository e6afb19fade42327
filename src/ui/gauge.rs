//! The progress of a stage or a loop in one line of a given width.

use std::time::Duration;

use super::human;
use crate::{progress::Progress, report::plot::share_sparkline};

/// Space between two columns.
const GAP: usize = 2;
/// Columns for the spinner before the line, and a free one at the end.
const MARGIN: usize = 3;
/// Smallest width to which a name is cut.
const NAME: usize = 6;
/// The longest line that fits a terminal of this width. Each has the name and the status.
pub fn line(progress: &Progress, width: usize, now_ms: u64) -> String {
    let Progress { stage, began_ms, phase, status, .. } = progress;
    let count = counted(phase.done, phase.units);
    let named = format!("{} {count}", phase.name).trim().to_owned();
    let rate = phase.rate().filter(|_| phase.units > 0).map(|rate| format!("{}/s", human::rate(rate)));
    fitting(
        width,
        status,
        stage,
        phase.share(),
        [&named, &count],
        Times {
            elapsed: Duration::from_millis(now_ms.saturating_sub(*began_ms)),
            left: progress.left(now_ms),
            rate: rate.unwrap_or_default(),
        },
    )
}

/// The progress as a log message.
pub fn message(progress: &Progress, now_ms: u64) -> String {
    let Progress { phase, status, .. } = progress;
    let count = format!("{} {}", phase.name, counted(phase.done, phase.units));
    let left = progress.left(now_ms).map(|left| format!("{} left", clock(left)));
    let parts = [count.trim().to_owned(), left.unwrap_or_default(), status.clone()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The iterations of a loop.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopProgress {
    pub name: String,
    pub iterations: usize,
    /// Iterations that ended, in this run or an earlier one.
    pub done: usize,
    /// Times in seconds of the iterations that this run ran, in order.
    pub seconds: Vec<f64>,
    /// Success of the iterations that reported it, in order.
    pub success: Vec<f64>,
    /// That of the last one in tasks it drew for the first time.
    pub success_new: Option<f64>,
    pub began_ms: u64,
    /// When an iteration last ended.
    pub last_ms: u64,
}

/// An estimate uses this many of the last iterations: they become faster or slower as the policy learns.
const RECENT: usize = 5;
/// Most characters of a sparkline.
const SPARKS: usize = 24;

impl LoopProgress {
    pub fn line(&self, width: usize, now_ms: u64) -> String {
        let count = counted(self.done as u64, self.iterations as u64);
        let named = format!("iterations {count}");
        let share = (self.iterations > 0).then(|| self.done as f64 / self.iterations as f64);
        fitting(
            width,
            &self.status(),
            &self.name,
            share,
            [&named, &count],
            Times {
                elapsed: Duration::from_millis(now_ms.saturating_sub(self.began_ms)),
                left: self.left(now_ms),
                rate: String::new(),
            },
        )
    }

    /// `success ▁▂▄▆ 61 % (new 55 %)`; empty if no iteration reported it.
    pub fn status(&self) -> String {
        let sparks = share_sparkline(&self.success, SPARKS);
        let new = self.success_new.map_or(String::new(), |new| format!(" (new {})", human::percent(new)));
        let shown = |last: &f64| format!("success {sparks} {}{new}", human::percent(*last));
        self.success.last().map_or(String::new(), shown)
    }

    /// The time until the last iteration ends, as long as the last ones took.
    pub fn left(&self, now_ms: u64) -> Option<Duration> {
        let recent = &self.seconds[self.seconds.len().saturating_sub(RECENT)..];
        let missing = self.iterations.saturating_sub(self.done);
        if recent.is_empty() || missing == 0 {
            return None;
        }
        let mean = recent.iter().sum::<f64>() / recent.len() as f64;
        let since = Duration::from_millis(now_ms.saturating_sub(self.last_ms));
        // Of the current iteration something is left.
        let one = Duration::try_from_secs_f64(mean).ok()?;
        Some(one * (missing as u32 - 1) + one.saturating_sub(since))
    }
}

fn counted(done: u64, units: u64) -> String {
    if units == 0 { String::new() } else { format!("{done}/{units}") }
}

struct Times {
    elapsed: Duration,
    left: Option<Duration>,
    /// Empty if unknown.
    rate: String,
}

/// The longest line that fits. `counts`: with and without the name of what is counted.
fn fitting(
    width: usize,
    status: &str,
    name: &str,
    share: Option<f64>,
    [named, count]: [&String; 2],
    Times { elapsed, left, rate }: Times,
) -> String {
    let width = width.saturating_sub(MARGIN);
    let taken = columns(status);
    let name = cut(name, width.saturating_sub(if taken > 0 { GAP + taken } else { 0 }).max(NAME));
    let none = String::new();
    let percent = share.map(|share| format!("{:.0}%", (share * 100.0).floor())).unwrap_or_default();
    let left = left.map(|left| format!("{} left", clock(left))).unwrap_or_default();
    let times =
        |all: &[&str]| all.iter().copied().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ");
    let elapsed = clock(elapsed);
    let (all, two) = (times(&[&elapsed, &rate, &left]), times(&[&elapsed, &left]));
    // From the longest to the shortest.
    let lines = [
        (24, named, &all),
        (10, named, &all),
        (10, named, &two),
        (10, named, &left),
        (0, named, &two),
        (0, named, &left),
        (0, count, &two),
        (0, count, &left),
        (0, &percent, &left),
        (0, &percent, &none),
    ];
    let status = status.to_owned();
    let lines = lines.map(|(size, count, time)| {
        let bar = share.filter(|_| size > 0).map(|share| bar(share, size)).unwrap_or_default();
        joined(&[&name, &bar, count, time, &status])
    });
    let fitting = lines.into_iter().find(|line| columns(line) <= width);
    cut(&fitting.unwrap_or_else(|| joined(&[&name, &status])), width)
}

/// The columns that are not empty.
fn joined(columns: &[&String]) -> String {
    let shown = columns.iter().filter(|column| !column.is_empty()).map(|column| column.as_str());
    shown.collect::<Vec<_>>().join("  ")
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Cuts the end of a text that is too wide.
fn cut(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "columns of a bar"
)]
fn bar(share: f64, width: usize) -> String {
    let full = (share * width as f64).floor() as usize;
    let tip = usize::from(full < width);
    format!("{}{}{}", "━".repeat(full), "╸".repeat(tip), " ".repeat(width - full - tip))
}

/// `0:41`, `12:05`, `1:02:03`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: u64 = 1_000_000;

    fn at(seconds: u64) -> u64 {
        BEGAN + 1000 * seconds
    }

    /// Completes units one after another, each in the same time.
    fn advance(progress: &mut Progress, units: u64, from: u64, to: u64) {
        for unit in 1..=units {
            progress.advance(1, at(from) + 1000 * (to - from) * unit / units);
        }
    }

    fn rollout() -> Progress {
        let mut progress = Progress::new("train[0001]/rollout", BEGAN);
        progress.phase("episodes", 512, BEGAN);
        advance(&mut progress, 128, 0, 20);
        progress.status = "success 0.61 · 12.3k tokens/s".into();
        progress
    }

    #[test]
    fn success_and_speed_are_shown_at_every_width() {
        let widths = [40, 60, 80, 120, 140];
        let shown = widths.map(|width| line(&rollout(), width, at(20)));
        insta::assert_snapshot!(shown.join("\n"), @r"
        train…  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  25%  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  128/512  0:20, 1:00 left  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  ━━╸         episodes 128/512  0:20, 6.4/s, 1:00 left  success 0.61 · 12.3k tokens/s
        train[0001]/rollout  ━━━━━━╸                   episodes 128/512  0:20, 6.4/s, 1:00 left  success 0.61 · 12.3k tokens/s
        ");
        for (width, line) in widths.into_iter().zip(&shown) {
            assert!(columns(line) + MARGIN <= width, "{width}: {line}");
        }
    }

    #[test]
    fn each_phase_has_its_own_count_and_time() {
        let mut progress = Progress::new("base", BEGAN);
        progress.phase("recording traces", 300, BEGAN);
        advance(&mut progress, 300, 0, 2);
        assert_eq!(message(&progress, at(2)), "recording traces 300/300");
        progress.phase("building the tokenizer", 0, at(2));
        assert_eq!(message(&progress, at(3)), "building the tokenizer");
        progress.phase("training steps", 800, at(4));
        advance(&mut progress, 200, 4, 14);
        progress.status = "loss 1.250".into();
        assert_eq!(message(&progress, at(14)), "training steps 200/800, 0:30 left, loss 1.250");
        assert_eq!(message(&progress, at(18)), "training steps 200/800, 0:26 left, loss 1.250");
        let line = line(&progress, 80, at(14));
        assert!(line.contains("training steps 200/800"), "{line}");
    }

    #[test]
    fn units_done_earlier_do_not_count_towards_the_speed() {
        let mut progress = Progress::new("base", BEGAN);
        progress.phase("training steps", 800, BEGAN);
        progress.skip(600);
        assert_eq!(message(&progress, at(10)), "training steps 600/800");
        advance(&mut progress, 100, 0, 10);
        assert_eq!(message(&progress, at(10)), "training steps 700/800, 0:10 left");
    }

    #[test]
    fn a_loop_shows_its_success_and_what_is_left() {
        let mut progress = LoopProgress {
            name: "train".into(),
            iterations: 24,
            began_ms: BEGAN,
            last_ms: BEGAN,
            ..LoopProgress::default()
        };
        assert_eq!(progress.left(at(5)), None);
        // The first iteration is slow, and an earlier run had done two.
        progress.done = 8;
        progress.seconds = vec![60.0, 10.0, 10.0, 10.0, 10.0, 10.0];
        progress.success = vec![0.0, 0.2, 0.4, 0.41, 0.5, 0.8, 1.0];
        progress.last_ms = at(110);
        assert_eq!(progress.left(at(114)), Some(Duration::from_secs(156)));
        assert_eq!(progress.left(at(150)), Some(Duration::from_secs(150)), "the iteration takes longer");
        assert_eq!(
            progress.line(100, at(114)),
            "train  ━━━━━━━━╸                 iterations 8/24  1:54, 2:36 left  success ▁▂▄▄▅▇█ 100 %"
        );
        progress.success_new = Some(0.75);
        assert_eq!(progress.status(), "success ▁▂▄▄▅▇█ 100 % (new 75 %)");
    }
}
