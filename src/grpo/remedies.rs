//! What to change when many rollouts carry no gradient, with numbers.
//!
//! The effect of a group size is estimated from the pass rates of the groups. They are taken as drawn from a
//! beta distribution, fitted to the counts of right rollouts by maximum likelihood, so that a group with 0 of
//! 8 right is not taken for one with a pass rate of 0. A group of G rollouts varies with probability
//! `1 − E[pᴳ] − E[(1 − p)ᴳ]`.

use super::{Conduct, Signal};
use crate::text;

/// Share of groups without gradient for one reason from which a remedy is named.
const GROUPS: f64 = 0.5;
/// Share of rollouts.
const ROLLOUTS: f64 = 0.2;
/// A larger group is suggested if it has at least this many times the groups that vary.
const WORTHWHILE: f64 = 1.15;

/// Pass rates p ~ Beta(a, b).
#[derive(Debug, Clone, Copy, PartialEq)]
struct PassRates {
    a: f64,
    b: f64,
}

impl PassRates {
    /// The most likely on a grid. `groups`: right rollouts and all rollouts of each.
    fn fit(groups: &[(u32, u32)]) -> Option<Self> {
        let means = [0.002, 0.005].into_iter().chain((1..100).map(|percent| f64::from(percent) / 100.0));
        let means = means.chain([0.995, 0.998]);
        let spreads = (-3..=6).map(|power| 2f64.powi(power));
        let grid = means.flat_map(|mean| spreads.clone().map(move |sum| (mean * sum, (1.0 - mean) * sum)));
        let fits = grid.map(|(a, b)| {
            let rates = Self { a, b };
            (rates, groups.iter().map(|(right, of)| rates.log_likelihood(*right, *of)).sum::<f64>())
        });
        let best = fits.max_by(|(_, one), (_, other)| one.total_cmp(other));
        best.map(|(rates, _)| rates).filter(|_| !groups.is_empty())
    }

    fn log_likelihood(&self, right: u32, of: u32) -> f64 {
        let rising = |from: f64, count: u32| (0..count).map(|i| (from + f64::from(i)).ln()).sum::<f64>();
        rising(self.a, right) + rising(self.b, of.saturating_sub(right)) - rising(self.a + self.b, of)
    }

    /// Probability that a group of this size varies.
    fn varies(&self, size: u32) -> f64 {
        1.0 - self.log_likelihood(size, size).exp() - self.log_likelihood(0, size).exp()
    }
}

/// The smallest doubling of `size` with most groups varying, else one doubling, with its share and today's;
/// if it is worthwhile.
fn larger(groups: &[(u32, u32)], size: u32) -> Option<(u32, f64, f64)> {
    let rates = PassRates::fit(groups)?;
    let now = rates.varies(size);
    let sizes = [2, 4].map(|factor| size.saturating_mul(factor));
    let enough = sizes.into_iter().find(|larger| rates.varies(*larger) >= 0.5);
    let larger = enough.unwrap_or(sizes[0]);
    let then = rates.varies(larger);
    (then >= WORTHWHILE * now.max(0.01)).then_some((larger, now, then))
}

/// Counts of the rollouts behind an update that [`Signal`] lacks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Episodes {
    /// Right rollouts and all rollouts of each group with known answers.
    pub groups: Vec<(u32, u32)>,
    /// What the rollouts did.
    pub conduct: Conduct,
    /// Rollouts that a limit of turns, of tokens of a turn and of tokens cut short.
    pub truncated: [u64; 3],
}

/// One line for each reason that leaves many rollouts without gradient, with what helps.
pub fn remedies(signal: &Signal, episodes: &Episodes) -> Vec<String> {
    let mut lines = Vec::new();
    let (all, many) = (signal.groups, |groups: u64| groups > 0 && share(groups, signal.groups) >= GROUPS);
    // The usual one: groups may have grown or lost episodes.
    let mut sizes: Vec<u32> = episodes.groups.iter().map(|(_, of)| *of).collect();
    sizes.sort_unstable();
    let size = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    let or_larger = || match larger(&episodes.groups, size) {
        Some((larger, now, then)) => format!(
            ", or raise group_size (for such groups alone: max_group_size) from {size} to {larger} (groups that vary: about {} instead of {})",
            percent(then),
            percent(now)
        ),
        None => String::new(),
    };
    if many(signal.all_wrong) {
        lines.extend(episodes.conduct.hurdles());
        lines.extend(episodes.conduct.forms());
        lines.push(format!(
            "{} of {all} groups are all wrong: train on reference solutions (`demonstrations`, with `sft` first or as an input of `grpo`), on easier tasks{}",
            signal.all_wrong,
            or_larger()
        ));
    }
    if many(signal.all_right) {
        let right = signal.all_right;
        lines.push(format!(
            "in {right} of {all} groups all rollouts are right, so they teach nothing: train on harder tasks, or `draw = \"pass_rate\"`"
        ));
    }
    if many(signal.all_equal) {
        lines.push(format!(
            "{} of {all} groups have equal rewards: let the judge tell their episodes apart (`relative`, checks, or \
             known answers)",
            signal.all_equal
        ));
    }
    let limits = ["max_turns", "max_turn_tokens", "max_episode_tokens"];
    for (limit, truncated) in limits.into_iter().zip(episodes.truncated) {
        if share(truncated, signal.rollouts) >= ROLLOUTS {
            let of = signal.rollouts;
            lines.push(format!("{truncated} of {of} episodes reached {limit} of [agent]: raise it"));
        }
    }
    let unjudged = signal.without_gradient.get(&super::NoSignal::Unjudged).copied().unwrap_or(0);
    if share(unjudged, signal.rollouts) >= ROLLOUTS {
        lines.push(format!(
            "{unjudged} of {} episodes have no reward: see the judge's notes",
            signal.rollouts
        ));
    }
    lines
}

fn share(part: u64, of: u64) -> f64 {
    part as f64 / of.max(1) as f64
}

fn percent(share: f64) -> String {
    format!("{} %", text::percent(share, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpo::NoSignal;

    #[test]
    fn groups_with_a_known_pass_rate_vary_as_the_binomial_says() {
        // Half of a million rollouts each: the fit has nearly one pass rate.
        let rates = PassRates { a: 0.3e6, b: 0.7e6 };
        for size in [2, 4, 8, 16] {
            let expected = 1.0 - 0.3_f64.powi(size) - 0.7_f64.powi(size);
            assert!((rates.varies(size as u32) - expected).abs() < 1e-4, "{size}");
        }
    }

    #[test]
    fn the_fit_finds_the_mean_pass_rate_and_whether_groups_differ() {
        let alike = PassRates::fit(&[(2, 8), (1, 8), (2, 8), (3, 8), (2, 8)]).unwrap();
        assert!((alike.a / (alike.a + alike.b) - 0.25).abs() < 0.02 && alike.a + alike.b > 30.0, "{alike:?}");
        let apart = PassRates::fit(&[(8, 8), (0, 8), (8, 8), (0, 8)]).unwrap();
        assert!(apart.a + apart.b < 0.5 && apart.varies(16) < 0.4, "{apart:?}");
        assert_eq!(PassRates::fit(&[]), None);
    }

    #[test]
    fn larger_groups_are_suggested_where_rare_successes_become_visible() {
        let mut groups = vec![(0, 8); 13];
        groups.extend([(1, 8), (1, 8), (2, 8)]);
        let (size, now, then) = larger(&groups, 8).unwrap();
        assert!(size >= 16 && then > WORTHWHILE * now && then < 1.0, "{size} {now} {then}");
        assert_eq!(larger(&[(4, 8), (3, 8), (5, 8)], 8), None, "these vary already");
    }

    fn signal(of: impl Fn(&mut Signal)) -> Signal {
        let mut signal = Signal { groups: 16, rollouts: 128, ..Signal::default() };
        of(&mut signal);
        signal
    }

    #[test]
    fn each_reason_has_one_line_with_its_numbers() {
        let mut groups = vec![(0, 8); 13];
        groups.extend([(1, 8), (1, 8), (2, 8)]);
        let wrong = Episodes { groups, ..Episodes::default() };
        let cut = Episodes { truncated: [0, 40, 10], ..Episodes::default() };
        let none = Episodes::default();
        let lines = [
            remedies(&signal(|signal| signal.all_wrong = 13), &wrong),
            remedies(&signal(|signal| signal.all_right = 9), &none),
            remedies(&signal(|signal| signal.all_equal = 16), &none),
            remedies(&signal(|_| ()), &cut),
            remedies(&signal(|signal| _ = signal.without_gradient.insert(NoSignal::Unjudged, 64)), &none),
        ];
        assert!(lines.iter().all(|lines| lines.len() == 1), "{lines:#?}");
        insta::assert_snapshot!(lines.concat().join("\n"));
    }

    #[test]
    fn a_step_with_signal_has_no_line() {
        let signal = signal(|signal| (signal.all_wrong, signal.all_right) = (5, 4));
        assert!(remedies(&signal, &Episodes { truncated: [3, 0, 0], ..Episodes::default() }).is_empty());
        assert!(remedies(&Signal::default(), &Episodes::default()).is_empty());
    }
}
