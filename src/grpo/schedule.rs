//! Learning rate by optimizer step.

use serde::{Deserialize, Serialize};

/// The shape of the learning rate's decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Shape {
    Constant,
    Linear,
    Cosine,
}

/// A warmup to the peak, a plateau, then a decay.
///
/// Steps count from 0 over the whole training, so that all updates of a loop follow one schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub peak: f64,
    /// Steps of the warmup: step `k` has `(k + 1) / (warmup + 1)` of the peak.
    pub warmup: u64,
    pub shape: Shape,
    /// The step at which the decay ends; `None` for no decay.
    pub total: Option<u64>,
    /// Share of `total` at which the decay starts, in `[0, 1]`.
    pub decay_from: f64,
    /// Final rate, as a share of the peak.
    pub floor: f64,
}

impl Schedule {
    /// The rate at this step.
    pub fn rate(&self, step: u64) -> f64 {
        let ramp = ((step + 1) as f64 / (self.warmup + 1) as f64).min(1.0);
        self.peak * ramp * self.decay(step)
    }

    /// With a warmup that ends within the first update, whose last step has the peak at the latest. `before`: the steps of
    /// earlier updates. `steps`: those of this one.
    #[must_use]
    pub fn warm_within(self, before: u64, steps: u64) -> Self {
        let most = if before == 0 { steps.saturating_sub(1) } else { 0 };
        Self { warmup: self.warmup.min(most), ..self }
    }

    fn decay(&self, step: u64) -> f64 {
        let Some(total) = self.total else { return 1.0 };
        let first = total as f64 * self.decay_from;
        let length = (total as f64 - first).max(1.0);
        let done = ((step as f64 - first) / length).clamp(0.0, 1.0);
        let remaining = match self.shape {
            Shape::Constant => 1.0,
            Shape::Linear => 1.0 - done,
            Shape::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
        };
        self.floor + (1.0 - self.floor) * remaining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(shape: Shape, steps: &[u64]) -> Vec<f64> {
        let schedule =
            Schedule { peak: 8.0, warmup: 3, shape, total: Some(20), decay_from: 0.5, floor: 0.25 };
        steps.iter().map(|step| schedule.rate(*step)).collect()
    }

    #[test]
    fn a_rate_warms_up_stays_and_decays_to_its_floor() {
        assert_eq!(rates(Shape::Linear, &[0, 1, 3, 10, 15, 20, 99]), [2.0, 4.0, 8.0, 8.0, 5.0, 2.0, 2.0]);
        let cosine = rates(Shape::Cosine, &[10, 15, 20]);
        for (rate, expected) in cosine.iter().zip([8.0, 5.0, 2.0]) {
            assert!((rate - expected).abs() < 1e-12, "{cosine:?}");
        }
    }

    #[test]
    fn a_constant_rate_only_warms_up() {
        assert_eq!(rates(Shape::Constant, &[0, 3, 99]), [2.0, 8.0, 8.0]);
    }

    #[test]
    fn the_first_update_ends_at_the_peak_and_later_ones_have_it() {
        let schedule = Schedule {
            peak: 8.0,
            warmup: 3,
            shape: Shape::Constant,
            total: None,
            decay_from: 0.0,
            floor: 0.0,
        };
        let rates = |before: u64, steps: u64| -> Vec<f64> {
            let schedule = schedule.warm_within(before, steps);
            (before..before + steps).map(|step| schedule.rate(step)).collect()
        };
        assert_eq!(rates(0, 2), [4.0, 8.0]);
        assert_eq!(rates(0, 5), [2.0, 4.0, 6.0, 8.0, 8.0]);
        assert_eq!((rates(0, 1), rates(0, 0)), (vec![8.0], vec![]));
        assert_eq!(rates(1, 2), [8.0, 8.0], "what is left of it is dropped");
    }

    #[test]
    fn without_a_total_nothing_decays() {
        let schedule =
            Schedule { peak: 1.0, warmup: 0, shape: Shape::Linear, total: None, decay_from: 0.0, floor: 0.0 };
        assert_eq!(schedule.rate(1_000_000), 1.0);
    }

    #[derive(Deserialize)]
    struct Fixture {
        schedules: Vec<Reference>,
    }

    #[derive(Deserialize)]
    struct Reference {
        shape: Shape,
        warmup: u64,
        total: u64,
        peak: f64,
        rates: Vec<f64>,
    }

    #[test]
    fn rates_match_transformers_without_its_first_step_of_zero() {
        let text = include_str!("../../tests/reference/fixtures/optimizer.json");
        for Reference { shape, warmup, total, peak, rates } in
            serde_json::from_str::<Fixture>(text).unwrap().schedules
        {
            let schedule = Schedule {
                peak,
                warmup: warmup - 1,
                shape,
                total: Some(total - 1),
                decay_from: (warmup - 1) as f64 / (total - 1) as f64,
                floor: 0.0,
            };
            assert_eq!(rates[0], 0.0);
            for (step, theirs) in rates[1..].iter().enumerate() {
                let ours = schedule.rate(step as u64);
                assert!((ours - theirs).abs() < 1e-12 * peak.max(1.0), "{shape:?} {step}: {ours} {theirs}");
            }
        }
    }
}
