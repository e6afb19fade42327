//! Progress shown to the user while episodes are played.

use std::time::Instant;

use crate::data::Trajectory;

/// Counts right answers and sampled tokens.
pub struct Scoreboard {
    started: Instant,
    /// Tokens the sampler had drawn at the start.
    before: u64,
    known: usize,
    right: usize,
}

impl Scoreboard {
    pub fn new(before: u64) -> Self {
        Self { started: Instant::now(), before, known: 0, right: 0 }
    }

    pub fn count(&mut self, trajectory: &Trajectory) {
        if let Some(right) = trajectory.correct {
            self.known += 1;
            self.right += usize::from(right);
        }
    }

    pub fn line(&self, sampled: u64) -> String {
        let rate = (sampled - self.before) as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = match sampled - self.before {
            0 => None,
            _ if rate < 1e3 => Some(format!("{rate:.0} tokens/s")),
            _ => Some(format!("{:.1}k tokens/s", rate / 1e3)),
        };
        let success =
            (self.known > 0).then(|| format!("success {:.2}", self.right as f64 / self.known as f64));
        success.into_iter().chain(rate).collect::<Vec<_>>().join(" · ")
    }
}
