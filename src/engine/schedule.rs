//! Learning rates over a run.

/// Rises over `warmup` steps, stays, then falls linearly from step `decay_from` to `floor` (a share) at step `total`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    pub warmup: u64,
    pub decay_from: u64,
    pub total: u64,
    pub floor: f64,
}

impl Schedule {
    /// What the learning rate is multiplied by at a step, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        let rise = (step + 1) as f64 / (self.warmup + 1) as f64;
        let fall = match step.checked_sub(self.decay_from) {
            Some(past) => {
                let share = past as f64 / self.total.saturating_sub(self.decay_from).max(1) as f64;
                1.0 - (1.0 - self.floor) * share.min(1.0)
            }
            None => 1.0,
        };
        rise.min(1.0) * fall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_stays_and_falls_to_its_floor() {
        let schedule = Schedule { warmup: 3, decay_from: 10, total: 20, floor: 0.1 };
        let at = |step| (schedule.factor(step) * 1000.0).round() / 1000.0;
        assert_eq!([at(0), at(1), at(3), at(9), at(10)], [0.25, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!([at(15), at(20), at(99)], [0.55, 0.1, 0.1]);
    }
}
