//! Progress shown to the user while episodes are played.

use std::{collections::BTreeSet, time::Instant};

use crate::{data::Trajectory, text::percent};

/// Counts right answers and sampled tokens.
pub struct Scoreboard<'a> {
    started: Instant,
    /// Tokens the sampler had drawn at the start.
    before: u64,
    /// Ids of scenarios that earlier rollouts have played.
    drawn: &'a BTreeSet<String>,
    all: Tally,
    new: Tally,
}

/// Episodes with a known outcome.
#[derive(Default)]
struct Tally {
    known: usize,
    right: usize,
}

impl Tally {
    fn count(&mut self, is_right: bool) {
        self.known += 1;
        self.right += usize::from(is_right);
    }

    /// `61 %`; none without a known outcome.
    fn share(&self) -> Option<String> {
        (self.known > 0).then(|| format!("{} %", percent(self.right as f64 / self.known as f64, 0)))
    }
}

impl<'a> Scoreboard<'a> {
    pub fn new(before: u64, drawn: &'a BTreeSet<String>) -> Self {
        let (all, new) = (Tally::default(), Tally::default());
        Self { started: Instant::now(), before, drawn, all, new }
    }

    pub fn count(&mut self, trajectory: &Trajectory) {
        if let Some(is_right) = trajectory.correct {
            self.all.count(is_right);
            if !self.drawn.contains(&trajectory.scenario_id) {
                self.new.count(is_right);
            }
        }
    }

    /// `success 61 % (new 55 %) · 12.3k tokens/s`: new tasks alone where others were drawn before. `success of base 61 %` of a policy
    /// among others.
    pub fn line(&self, sampled: u64, of: Option<&str>) -> String {
        let rate = (sampled - self.before) as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let rate = match sampled - self.before {
            0 => None,
            _ if rate < 1e3 => Some(format!("{rate:.0} tokens/s")),
            _ => Some(format!("{:.1}k tokens/s", rate / 1e3)),
        };
        let new = self.new.share().filter(|_| !self.drawn.is_empty());
        let new = new.map_or(String::new(), |share| format!(" (new {share})"));
        let of = of.map_or(String::new(), |of| format!(" of {of}"));
        let success = self.all.share().map(|share| format!("success{of} {share}{new}"));
        success.into_iter().chain(rate).collect::<Vec<_>>().join(" · ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_of_new_tasks_stands_beside_that_of_all() {
        let line = |drawn: &[&str]| {
            let drawn = drawn.iter().map(|id| (*id).to_owned()).collect();
            let mut scoreboard = Scoreboard::new(0, &drawn);
            for (id, correct) in [("a", true), ("a", true), ("b", false), ("b", true), ("c", true)] {
                let (scenario_id, correct) = (id.into(), (id != "c").then_some(correct));
                scoreboard.count(&Trajectory { scenario_id, correct, ..Trajectory::default() });
            }
            assert!(scoreboard.line(0, Some("base")).starts_with("success of base 75 %"));
            scoreboard.line(0, None)
        };
        assert_eq!(line(&[]), "success 75 %");
        assert_eq!(line(&["a"]), "success 75 % (new 50 %)");
        assert_eq!(line(&["a", "b"]), "success 75 %");
    }
}
