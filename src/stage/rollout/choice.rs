//! Which scenarios are played, and in which order.

use std::collections::BTreeMap;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde::Deserialize;

use crate::{
    data::{PassRate, Scenario},
    hash::Encoder,
    judge::truth,
    stage::mean,
};

/// How to choose scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::stage) enum Draw {
    Uniform,
    PassRate,
}

impl Draw {
    /// Every scenario once, in drawing order. `rates` are those of earlier rollouts.
    pub(in crate::stage) fn order(self, scenarios: &[Scenario], rates: &[PassRate], seed: u64) -> Vec<usize> {
        match self {
            Self::PassRate if !rates.is_empty() => draw_weighted(scenarios, &weights(scenarios, rates), seed),
            Self::Uniform | Self::PassRate => draw(scenarios, seed),
        }
    }
}

/// Weight in addition to p(1 − p), so that no scenario is given up.
const FLOOR: f64 = 0.02;

/// A scenario without a known answer never gets a pass rate: it weighs as much as the others do on average.
fn weights(scenarios: &[Scenario], rates: &[PassRate]) -> Vec<f64> {
    let rates: BTreeMap<&str, &PassRate> =
        rates.iter().map(|rate| (rate.scenario_id.as_str(), rate)).collect();
    let unknown = PassRate::unknown("");
    let of = |scenario: &Scenario| match rates.get(scenario.id.as_str()) {
        Some(rate) => Some(rate.variance() + FLOOR),
        None => truth::is_known(scenario).then(|| unknown.variance() + FLOOR),
    };
    let weights: Vec<Option<f64>> = scenarios.iter().map(of).collect();
    let mean = mean(weights.iter().flatten().copied()).unwrap_or(1.0);
    weights.into_iter().map(|weight| weight.unwrap_or(mean)).collect()
}

/// A family: the square root of its size, and the scenarios that are left.
type Family = (f64, Vec<usize>);

/// As [`draw`], with the scenarios of a family drawn in proportion to their weights, and families by the
/// square root of their size times the mean weight of the scenarios that are left.
fn draw_weighted(scenarios: &[Scenario], weights: &[f64], seed: u64) -> Vec<usize> {
    let of_family = |(root, members): &Family| {
        root * members.iter().map(|member| weights[*member]).sum::<f64>() / members.len() as f64
    };
    let of_member =
        |members: &[usize], rng: &mut ChaCha8Rng| pick(members.iter().map(|member| weights[*member]), rng);
    in_order(scenarios, "mcprl rollout choice by pass rate v1", seed, of_family, of_member)
}

/// Every scenario once, in drawing order: first a family, with probability proportional to the square root of
/// its size, then one of its scenarios. This favours small families over large ones.
fn draw(scenarios: &[Scenario], seed: u64) -> Vec<usize> {
    let of_member =
        |members: &[usize], rng: &mut ChaCha8Rng| (rng.next_u64() % members.len() as u64) as usize;
    in_order(scenarios, "mcprl rollout choice v1", seed, |(root, _)| *root, of_member)
}

/// Draws a family by its weight, then one of its scenarios, until none is left.
fn in_order(
    scenarios: &[Scenario],
    purpose: &str,
    seed: u64,
    of_family: impl Fn(&Family) -> f64,
    of_member: impl Fn(&[usize], &mut ChaCha8Rng) -> usize,
) -> Vec<usize> {
    let digest = Encoder::new(purpose).number(seed).finish();
    let mut rng = ChaCha8Rng::from_seed(*digest.as_bytes());
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        families.entry(&scenario.family).or_default().push(index);
    }
    let mut families: Vec<Family> =
        families.into_values().map(|members| ((members.len() as f64).sqrt(), members)).collect();
    let mut order = Vec::with_capacity(scenarios.len());
    while !families.is_empty() {
        let family = pick(families.iter().map(&of_family), &mut rng);
        let (_, members) = &mut families[family];
        let member = of_member(members, &mut rng);
        order.push(members.swap_remove(member));
        if members.is_empty() {
            families.remove(family);
        }
    }
    order
}

/// The index of one of these weights, with probability in proportion to it.
fn pick(weights: impl ExactSizeIterator<Item = f64> + Clone, rng: &mut ChaCha8Rng) -> usize {
    let last = weights.len().saturating_sub(1);
    let mut left = crate::random::unit(rng) * weights.clone().sum::<f64>();
    let found = weights.into_iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Rounding may leave a remainder after the last one.
    found.unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenarios(sizes: &[usize]) -> Vec<Scenario> {
        let scenario = |family: usize, index: usize| Scenario {
            id: format!("{family}-{index}"),
            split: "train".into(),
            family: format!("family {family}"),
            task: String::new(),
            answer: Some("7".into()),
            check: "number".into(),
            ..Scenario::default()
        };
        sizes
            .iter()
            .enumerate()
            .flat_map(|(family, size)| (0..*size).map(move |index| scenario(family, index)))
            .collect()
    }

    #[test]
    fn every_scenario_is_drawn_once_and_the_seed_decides_when() {
        let scenarios = scenarios(&[5, 1, 30]);
        let order = draw(&scenarios, 1);
        assert_eq!(order, draw(&scenarios, 1));
        assert_ne!(order, draw(&scenarios, 2));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..36).collect::<Vec<_>>());
    }

    #[test]
    fn families_come_first_by_the_square_root_of_their_size() {
        let scenarios = scenarios(&[4, 36]);
        let first_is_small = (0..4000).filter(|seed| draw(&scenarios, *seed)[0] < 4).count();
        let share = first_is_small as f64 / 4000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    fn rate(scenario: &Scenario, episodes: f64, right: f64) -> PassRate {
        PassRate { episodes, right, ..PassRate::unknown(&scenario.id) }
    }

    #[test]
    fn by_pass_rate_every_scenario_is_still_drawn_once_and_the_seed_decides_when() {
        let scenarios = scenarios(&[5, 1, 30]);
        let rates: Vec<PassRate> =
            scenarios.iter().enumerate().map(|(index, of)| rate(of, 8.0, (index % 9) as f64)).collect();
        let order = Draw::PassRate.order(&scenarios, &rates, 1);
        assert_eq!(order, Draw::PassRate.order(&scenarios, &rates, 1));
        assert_ne!(order, Draw::PassRate.order(&scenarios, &rates, 2));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..36).collect::<Vec<_>>());
    }

    #[test]
    fn scenarios_near_one_half_and_unknown_ones_come_first() {
        let scenarios = scenarios(&[3]);
        // Always wrong, half of the time right, unknown.
        let rates = [rate(&scenarios[0], 16.0, 0.0), rate(&scenarios[1], 16.0, 8.0)];
        let mut first = [0; 3];
        for seed in 0..4000 {
            first[Draw::PassRate.order(&scenarios, &rates, seed)[0]] += 1;
        }
        let share = |count: i32| f64::from(count) / 4000.0;
        let wrong = 17.0 / 324.0 + FLOOR;
        let expected = wrong / (wrong + 2.0 * (0.25 + FLOOR));
        assert!((share(first[0]) - expected).abs() < 0.02, "{first:?}");
        assert!((share(first[1]) - share(first[2])).abs() < 0.04, "{first:?}");
    }

    #[test]
    fn scenarios_without_a_known_answer_come_as_often_as_the_others_on_average() {
        let mut scenarios = scenarios(&[4]);
        // Two are always right, one is right half of the time.
        let rates = [(0, 1e6), (1, 1e6), (2, 5e5)].map(|(index, right)| rate(&scenarios[index], 1e6, right));
        scenarios[3].answer = None;
        let weights = weights(&scenarios, &rates);
        let expected = (2.0 * FLOOR + 0.25 + FLOOR) / 3.0;
        assert!((weights[3] - expected).abs() < 1e-5, "{weights:?}");
        scenarios.iter_mut().for_each(|scenario| scenario.answer = None);
        assert_eq!(super::weights(&scenarios, &[]), [1.0; 4]);
    }

    #[test]
    fn families_keep_their_weight_where_pass_rates_are_equal() {
        let scenarios = scenarios(&[4, 36]);
        let rates: Vec<PassRate> = scenarios.iter().map(|of| rate(of, 4.0, 1.0)).collect();
        let small = |seed: &u64| Draw::PassRate.order(&scenarios, &rates, *seed)[0] < 4;
        let share = (0..4000).filter(small).count() as f64 / 4000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    #[test]
    fn without_pass_rates_the_draw_is_the_uniform_one() {
        let scenarios = scenarios(&[5, 9]);
        assert_eq!(Draw::PassRate.order(&scenarios, &[], 7), Draw::Uniform.order(&scenarios, &[], 7));
    }

    #[test]
    fn no_scenarios_give_an_empty_order() {
        assert!(draw(&[], 1).is_empty());
    }
}
