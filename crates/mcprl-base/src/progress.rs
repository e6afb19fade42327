//! Progress of stages. The library reports it to observers, which decide what to show.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Receives the progress of one stage. Calls must be cheap: implementations decide how often they redraw. Methods do
/// nothing by default.
pub trait Observer: Send + Sync {
    /// A phase begins. `name` says what is counted (`training steps`); `units` is the total, or 0 if unknown. The count
    /// starts at 0 again. A call with the current phase's name only changes its total.
    fn phase(&self, _name: &str, _units: u64) {}
    /// This many more units are done.
    fn advance(&self, _units: u64) {}
    /// This many units were done by an earlier, interrupted run. They count as done but not towards the speed.
    fn skip(&self, _units: u64) {}
    /// By earlier runs, the whole stage is expected to take this long.
    fn expect(&self, _seconds: f64) {}
    /// The current status, e.g. `success 0.61 · 12.3k tokens/s`; replaces the previous one.
    fn status(&self, _text: &str) {}
    /// A note about the result for people. It is stored with the result.
    fn note(&self, _text: &str) {}
    /// A line that the stage's child program printed.
    fn output(&self, _line: &str) {}
}

/// Ignores all events.
pub struct NoProgress;

impl Observer for NoProgress {}

/// Milliseconds since the epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// How far a stage is. Times are milliseconds since the epoch, so that another process can read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Id of the stage.
    pub stage: String,
    pub began_ms: u64,
    /// How long the stage takes by earlier runs, if there are comparable ones.
    #[serde(default)]
    pub expected_s: Option<f64>,
    pub phase: Phase,
    pub status: String,
}

/// A part of a stage that counts its own units.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub began_ms: u64,
    /// When units were first completed, and how many; 0 before.
    #[serde(default)]
    pub first_ms: u64,
    #[serde(default)]
    pub first_units: u64,
    /// When units were last completed.
    pub last_ms: u64,
    pub done: u64,
    /// The part of `done` that was complete at the start.
    pub skipped: u64,
    /// 0 if unknown.
    pub units: u64,
}

/// An estimate from a shorter time is unreliable.
const SETTLED_MS: u64 = 1000;
/// From this share of its units, or from this number, a phase's own speed alone decides how long it takes.
const SETTLED_SHARE: f64 = 0.1;
const SETTLED_UNITS: f64 = 100.0;

impl Progress {
    pub fn new(stage: &str, now_ms: u64) -> Self {
        let (stage, phase) = (stage.to_owned(), Phase::new("", 0, now_ms));
        Self { stage, began_ms: now_ms, expected_s: None, phase, status: String::new() }
    }

    /// The time until the stage, or its current phase, ends. None while there is nothing to tell it by.
    ///
    /// At first it is what earlier runs took, less the time that has passed. As units are completed, their speed
    /// counts more and more, and after a tenth of them nothing else does. Without earlier runs it is unknown until
    /// then.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub fn left(&self, now_ms: u64) -> Option<Duration> {
        let Self { began_ms, expected_s, phase, .. } = self;
        let measured = phase.measured(now_ms);
        let elapsed = now_ms.saturating_sub(*began_ms) as f64 / 1000.0;
        // A stage that takes longer than expected is not like the earlier ones.
        let expected = expected_s
            .map(|seconds| seconds * phase.fresh_share() - elapsed)
            .filter(|left| *left > 0.0 && !phase.is_complete());
        let weight = phase.evidence();
        let seconds = match (measured, expected) {
            (Some(measured), Some(expected)) => weight * measured + (1.0 - weight) * expected,
            (Some(measured), None) if weight >= 1.0 => measured,
            (_, expected) => expected?,
        };
        Duration::try_from_secs_f64((seconds * 1000.0).round() / 1000.0).ok()
    }

    pub fn phase(&mut self, name: &str, units: u64, now_ms: u64) {
        if self.phase.name == name {
            self.phase.units = units;
        } else {
            self.phase = Phase::new(name, units, now_ms);
            self.status.clear();
        }
    }

    pub fn advance(&mut self, units: u64, now_ms: u64) {
        if self.phase.first_units == 0 {
            (self.phase.first_ms, self.phase.first_units) = (now_ms, units);
        }
        self.phase.done += units;
        self.phase.last_ms = now_ms;
    }

    pub fn skip(&mut self, units: u64) {
        self.phase.done += units;
        self.phase.skipped += units;
    }
}

#[expect(clippy::cast_precision_loss, reason = "estimates")]
impl Phase {
    fn new(name: &str, units: u64, now_ms: u64) -> Self {
        let (first_ms, first_units) = (now_ms, 0);
        let name = name.to_owned();
        Self { name, began_ms: now_ms, first_ms, first_units, last_ms: now_ms, done: 0, skipped: 0, units }
    }

    /// The part that is done, from 0 to 1; none if the total is unknown.
    pub fn share(&self) -> Option<f64> {
        (self.units > 0).then(|| (self.done as f64 / self.units as f64).min(1.0))
    }

    /// Units per second so far.
    pub fn rate(&self) -> Option<f64> {
        let (done, spent) = (self.done - self.skipped, self.last_ms.saturating_sub(self.began_ms));
        (done > 0 && spent > 0).then(|| done as f64 * 1000.0 / spent as f64)
    }

    /// Units that this run completed.
    fn advanced(&self) -> u64 {
        self.done.saturating_sub(self.skipped)
    }

    fn is_complete(&self) -> bool {
        self.units > 0 && self.done >= self.units
    }

    /// The share of the units that no earlier run had completed; 1 if the total is unknown.
    fn fresh_share(&self) -> f64 {
        if self.units == 0 { 1.0 } else { 1.0 - (self.skipped as f64 / self.units as f64).min(1.0) }
    }

    /// How much the speed so far says, from 0 to 1.
    fn evidence(&self) -> f64 {
        let (advanced, fresh) = (self.advanced() as f64, self.units.saturating_sub(self.skipped) as f64);
        (advanced / (SETTLED_SHARE * fresh).clamp(1.0, SETTLED_UNITS)).min(1.0)
    }

    /// The seconds until the phase ends, at the speed so far.
    ///
    /// The time until the first units may be a start-up, or that of many units at once of which the others follow
    /// soon. Nothing is known until as much time again has passed, and then half of it counts.
    fn measured(&self, now_ms: u64) -> Option<f64> {
        let missing = self.units.saturating_sub(self.done);
        let until_first = self.first_ms.saturating_sub(self.began_ms);
        let since_first = self.last_ms.saturating_sub(self.first_ms);
        let is_settled = now_ms.saturating_sub(self.began_ms) >= SETTLED_MS && since_first >= until_first;
        if missing == 0 || !is_settled || self.advanced() <= self.first_units {
            return None;
        }
        let seconds = (since_first as f64 + until_first as f64 / 2.0) / 1000.0;
        let per_unit = seconds / (self.advanced() as f64 - self.first_units as f64 / 2.0);
        let idle = now_ms.saturating_sub(self.last_ms) as f64 / 1000.0;
        Some((missing as f64 * per_unit - idle).max(0.0))
    }
}

/// Called with the progress and the time after each change.
type Changed = Box<dyn Fn(&Progress, u64) + Send + Sync>;

/// The progress of a stage that one thread reports and others show.
pub struct SharedProgress {
    now: Mutex<Progress>,
    changed: Changed,
}

impl SharedProgress {
    pub fn new(stage: &str) -> Arc<Self> {
        Self::with(stage, |_, _| {})
    }

    /// Calls `changed` with the progress and the time after each change.
    pub fn with(stage: &str, changed: impl Fn(&Progress, u64) + Send + Sync + 'static) -> Arc<Self> {
        let now = Mutex::new(Progress::new(stage, now_ms()));
        Arc::new(Self { now, changed: Box::new(changed) })
    }

    pub fn get(&self) -> Progress {
        self.now.lock().clone()
    }

    /// Takes over what another process reported.
    pub fn set(&self, progress: Progress) {
        self.change(|now, _| *now = progress);
    }

    fn change(&self, change: impl FnOnce(&mut Progress, u64)) {
        let time = now_ms();
        let mut now = self.now.lock();
        change(&mut now, time);
        (self.changed)(&now, time);
    }
}

impl Observer for SharedProgress {
    fn phase(&self, name: &str, units: u64) {
        self.change(|now, time| now.phase(name, units, time));
    }

    fn advance(&self, units: u64) {
        self.change(|now, time| now.advance(units, time));
    }

    fn skip(&self, units: u64) {
        self.change(|now, _| now.skip(units));
    }

    fn expect(&self, seconds: f64) {
        self.change(|now, _| now.expected_s = Some(seconds));
    }

    fn status(&self, text: &str) {
        self.change(|now, _| text.clone_into(&mut now.status));
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::{
        ChaCha8Rng,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;

    const BEGAN: u64 = 1_000_000;

    /// When units are completed, in milliseconds from the start: each takes a random time between two bounds, and this
    /// many are in work at a time.
    fn completions(units: usize, at_once: usize, [least, most]: [u64; 2]) -> Vec<u64> {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut workers = vec![0; at_once];
        let mut ends: Vec<u64> = Vec::new();
        for _ in 0..units {
            let free = workers.iter_mut().min().unwrap();
            *free += least + random.next_u64() % (most - least + 1);
            ends.push(*free);
        }
        ends.sort_unstable();
        ends
    }

    /// The stage at this time.
    fn at(ends: &[u64], expected_s: Option<f64>, now: u64) -> Progress {
        let mut progress = Progress::new("s", BEGAN);
        progress.expected_s = expected_s;
        progress.phase("units", ends.len() as u64, BEGAN);
        for end in ends.iter().take_while(|end| **end <= now) {
            progress.advance(1, BEGAN + end);
        }
        progress
    }

    /// The expected total by the true one at a share of the true time.
    fn total(ends: &[u64], expected_s: Option<f64>, share: f64) -> Option<f64> {
        let all = *ends.last().unwrap() as f64;
        let now = (share * all) as u64;
        let left = at(ends, expected_s, now).left(BEGAN + now)?;
        Some((now as f64 + left.as_secs_f64() * 1000.0) / all)
    }

    const LENGTHS: &str = "episodes of which some are eight times as long as others";

    fn curves() -> Vec<(&'static str, Vec<u64>)> {
        let after = |startup: u64, ends: Vec<u64>| ends.iter().map(|end| end + startup).collect();
        vec![
            ("steps", completions(100, 1, [800, 1200])),
            ("few steps", completions(20, 1, [3000, 3300])),
            ("steps after a slow first one", after(4000, completions(200, 1, [900, 1100]))),
            ("episodes at once", completions(512, 64, [20_000, 40_000])),
            (LENGTHS, completions(512, 64, [5000, 40_000])),
            ("episodes in waves", completions(512, 32, [29_000, 31_000])),
        ]
    }

    #[test]
    fn after_a_tenth_the_time_left_is_within_a_fifth_or_not_shown() {
        for (name, ends) in curves() {
            let mut shown = 0;
            for percent in 10..100 {
                if let Some(total) = total(&ends, None, f64::from(percent) / 100.0) {
                    // The first episodes of very different lengths are the short ones.
                    let most = if name == LENGTHS && percent < 20 { 0.3 } else { 0.2 };
                    assert!((total - 1.0).abs() <= most, "{name} at {percent} %: {total}");
                    shown += 1;
                }
            }
            assert!(shown >= 70, "{name}: {shown}");
        }
    }

    #[test]
    fn without_earlier_runs_nothing_is_shown_at_first() {
        for (name, ends) in curves() {
            for now in [0, ends[0], ends[0] + 1500] {
                assert_eq!(at(&ends, None, now).left(BEGAN + now), None, "{name} after {now} ms");
            }
        }
    }

    #[test]
    fn earlier_runs_decide_at_first_and_the_measured_speed_after_a_tenth() {
        let ends = completions(100, 1, [990, 1010]);
        let seconds = *ends.last().unwrap() as f64 / 1000.0;
        // Right, of a stage that takes 26 times as long, and of one that is much shorter.
        for (factor, at_start) in [(1.0, Some(1.0)), (26.0, Some(26.0)), (0.001, None)] {
            let expected = Some(factor * seconds);
            let near = |found: Option<f64>, wanted: f64| (found.unwrap() / wanted - 1.0).abs() < 0.05;
            match at_start {
                Some(wanted) => assert!(near(total(&ends, expected, 0.0), wanted)),
                None => assert_eq!(total(&ends, expected, 0.005), None),
            }
            assert!(near(total(&ends, expected, 0.11), 1.0), "{factor}");
        }
        let halfway = total(&ends, Some(2.0 * seconds), 0.055).unwrap();
        assert!((1.3..1.7).contains(&halfway), "both count: {halfway}");
    }

    #[test]
    fn what_an_earlier_run_had_done_takes_no_time() {
        let mut progress = Progress::new("s", BEGAN);
        progress.expected_s = Some(100.0);
        progress.phase("units", 100, BEGAN);
        progress.skip(75);
        assert_eq!(progress.left(BEGAN + 5000), Some(Duration::from_secs(20)));
        for second in 1..=5 {
            progress.advance(1, BEGAN + 2000 * second);
        }
        assert_eq!(progress.left(BEGAN + 10_000), Some(Duration::from_secs(40)));
    }

    #[test]
    fn a_complete_phase_has_no_time_left_to_show() {
        let ends = completions(20, 1, [500, 500]);
        assert_eq!(at(&ends, Some(60.0), 10_000).left(BEGAN + 10_000), None);
    }
}
