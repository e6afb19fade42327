//! How far an update has moved the policy from the one that played, and from when on that is a breakdown.

use super::loss::k3;

/// KL per token from which a policy breaks down: it makes an episode of a hundred tokens 10 nats less likely, and
/// implementations of PPO stop at a hundredth to a tenth of a nat.
const KL: f64 = 0.1;
/// Factors by which −log p of the same tokens rises or falls in a breakdown. By chance alone it halves or doubles only from
/// one minibatch to another.
const RISE: f64 = 2.0;
const FALL: f64 = 1.0 / 3.0;
/// Smallest change of −log p that counts, in nats: a policy that is nearly certain doubles next to nothing.
const CHANGE: f64 = 0.02;

/// Sums over the sampled tokens of one optimizer step, before the step and without dropout.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moved {
    tokens: u64,
    sum_kl: f64,
    /// Σ −log p under the policy that played, and under the one in training.
    sum_played: f64,
    sum_now: f64,
}

impl Moved {
    /// Adds a token with its log-probabilities when it was sampled and now.
    pub fn add(&mut self, sampled: f32, now: f32) {
        self.tokens += 1;
        self.sum_kl += k3(f64::from(now) - f64::from(sampled));
        self.sum_played -= f64::from(sampled);
        self.sum_now -= f64::from(now);
    }

    /// Estimate of KL(policy that played ‖ policy in training), in nats per token; none without tokens.
    pub fn kl(&self) -> Option<f64> {
        self.mean(self.sum_kl)
    }

    /// −mean log p under the policy in training, in nats; none without tokens.
    pub fn entropy(&self) -> Option<f64> {
        self.mean(self.sum_now)
    }

    fn mean(&self, sum: f64) -> Option<f64> {
        (self.tokens > 0).then(|| sum / self.tokens as f64)
    }

    fn is_breakdown(&self) -> bool {
        let (played, now) = (self.sum_played, self.sum_now);
        let is_far = self.kl().is_some_and(|kl| kl > KL);
        let is_changed = (now - played).abs() > CHANGE * self.tokens as f64;
        is_far || is_changed && (now > RISE * played || now < FALL * played)
    }

    /// All sums and counts, which are exact as numbers.
    pub fn to_numbers(self) -> [f64; 4] {
        let Self { tokens, sum_kl, sum_played, sum_now } = self;
        [tokens as f64, sum_kl, sum_played, sum_now]
    }

    /// The sums with these [`Self::to_numbers`].
    pub fn from_numbers([tokens, sum_kl, sum_played, sum_now]: [f64; 4]) -> Self {
        Self { tokens: tokens as u64, sum_kl, sum_played, sum_now }
    }
}

/// A line about the worst step of an update at which the policy breaks down, with what helps. None if it does not, or if
/// the policy was that far away before the first step, as after a long lag.
pub fn breakdown(steps: &[Moved]) -> Option<String> {
    if steps.first()?.is_breakdown() {
        return None;
    }
    let broken = steps.iter().enumerate().filter(|(_, step)| step.is_breakdown());
    let (taken, worst) = broken.max_by(|(_, one), (_, other)| {
        one.kl().unwrap_or_default().total_cmp(&other.kl().unwrap_or_default())
    })?;
    let (kl, played, now) = (worst.kl()?, worst.mean(worst.sum_played)?, worst.entropy()?);
    Some(format!(
        "the policy breaks down: after {taken} of {} steps it is {kl:.2} nats per token away from the one that played, whose tokens \
         had −log p = {played:.3} and have {now:.3}: lower `learning_rate`, or end updates earlier, as with `stop_kl = 0.05`",
        steps.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(pairs: &[(f32, f32)]) -> Moved {
        let mut moved = Moved::default();
        pairs.iter().for_each(|(sampled, now)| moved.add(*sampled, *now));
        moved
    }

    #[test]
    fn the_estimate_is_the_kl_over_all_that_can_be_sampled() {
        let (played, now) = ([0.5_f32, 0.25, 0.25], [0.25_f32, 0.25, 0.5]);
        // As often as they are sampled.
        let tokens = [0, 0, 1, 2].map(|at| (played[at].ln(), now[at].ln()));
        let kl: f32 = played.iter().zip(now).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((moved(&tokens).kl().unwrap() - f64::from(kl)).abs() < 1e-6);
        assert_eq!(moved(&[(-1.0, -1.0)]).kl(), Some(0.0));
        assert_eq!((Moved::default().kl(), Moved::default().entropy()), (None, None));
    }

    #[test]
    fn a_breakdown_is_a_large_kl_or_an_entropy_out_of_proportion() {
        let still = moved(&[(-0.3, -0.3); 4]);
        for (sampled, now, is_broken) in [
            (-0.3, -0.35, false),
            (-1.0, -1.6, true),
            (-0.03, -0.12, true),
            (-0.03, -0.04, false),
            (-0.001, -0.004, false),
            (-0.06, -0.01, true),
            (-0.06, -0.03, false),
        ] {
            let line = breakdown(&[still, moved(&[(sampled, now); 4])]);
            assert_eq!(line.is_some(), is_broken, "{sampled} {now}: {line:?}");
        }
        let far = moved(&[(-1.0, -2.0); 4]);
        insta::assert_snapshot!(breakdown(&[still, still, far, still]).unwrap(), @"the policy breaks down: after 2 of 4 steps it is 0.37 nats per token away from the one that played, whose tokens had −log p = 1.000 and have 2.000: lower `learning_rate`, or end updates earlier, as with `stop_kl = 0.05`");
        assert_eq!(breakdown(&[far, far]), None, "another policy played");
        assert_eq!((breakdown(&[]), breakdown(&[still])), (None, None));
    }
}
