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
    /// Every scenario once, in drawing order. `rates` are those of earlier rollouts, `group_size` the episodes of a scenario.
    pub(in crate::stage) fn order(
        self,
        scenarios: &[Scenario],
        rates: &[PassRate],
        group_size: u32,
        seed: u64,
    ) -> Vec<usize> {
        match self {
            Self::PassRate if !rates.is_empty() => draw_by_rate(scenarios, rates, group_size, seed),
            Self::Uniform | Self::PassRate => draw(scenarios, seed),
        }
    }
}

/// Weight in addition to what a scenario teaches, so that none is given up.
const FLOOR: f64 = 0.02;

/// What a scenario can teach: the chance that a group of so many episodes has both right and wrong ones, times the share that is
/// wrong, which is what the policy can still gain.
fn teaches(rate: f64, group_size: u32) -> f64 {
    let exponent = f64::from(group_size);
    (1.0 - rate.powf(exponent) - (1.0 - rate).powf(exponent)) * (1.0 - rate)
}

/// First scenarios with a known answer that were never played, then those that were, by what they teach, and at the end those that
/// are solved. A scenario without a known answer never gets a pass rate: it weighs as much as those that were played do on
/// average.
fn draw_by_rate(scenarios: &[Scenario], rates: &[PassRate], group_size: u32, seed: u64) -> Vec<usize> {
    let rates: BTreeMap<&str, &PassRate> =
        rates.iter().map(|rate| (rate.scenario_id.as_str(), rate)).collect();
    let (mut new, mut played, mut solved) = (Vec::new(), Vec::new(), Vec::new());
    for (index, scenario) in scenarios.iter().enumerate() {
        match rates.get(scenario.id.as_str()) {
            Some(rate) if rate.is_solved() => solved.push((index, None)),
            Some(rate) => played.push((index, Some(teaches(rate.expected(), group_size) + FLOOR))),
            None if truth::is_known(scenario) => new.push((index, None)),
            None => played.push((index, None)),
        }
    }
    let mut order = Vec::with_capacity(scenarios.len());
    for part in [new, played, solved] {
        let mean = mean(part.iter().filter_map(|(_, weight)| *weight)).unwrap_or(1.0);
        let weights: Vec<f64> = part.iter().map(|(_, weight)| weight.unwrap_or(mean)).collect();
        let members: Vec<&Scenario> = part.iter().map(|(index, _)| &scenarios[*index]).collect();
        order.extend(draw_weighted(&members, &weights, seed).into_iter().map(|place| part[place].0));
    }
    order
}

/// A family: the square root of its size, and the scenarios that are left.
type Family = (f64, Vec<usize>);

/// As [`draw`], with the scenarios of a family drawn in proportion to their weights, and families by the
/// square root of their size times the mean weight of the scenarios that are left.
fn draw_weighted(scenarios: &[&Scenario], weights: &[f64], seed: u64) -> Vec<usize> {
    let of_family = |(root, members): &Family| {
        root * members.iter().map(|member| weights[*member]).sum::<f64>() / members.len() as f64
    };
    let of_member =
        |members: &[usize], rng: &mut ChaCha8Rng| pick(members.iter().map(|member| weights[*member]), rng);
    in_order(scenarios, "mcprl rollout choice by pass rate v2", seed, of_family, of_member)
}

/// Every scenario once, in drawing order: first a family, with probability proportional to the square root of
/// its size, then one of its scenarios. This favours small families over large ones.
fn draw(scenarios: &[Scenario], seed: u64) -> Vec<usize> {
    let of_member =
        |members: &[usize], rng: &mut ChaCha8Rng| (rng.next_u64() % members.len() as u64) as usize;
    let scenarios: Vec<&Scenario> = scenarios.iter().collect();
    in_order(&scenarios, "mcprl rollout choice v1", seed, |(root, _)| *root, of_member)
}

/// Draws a family by its weight, then one of its scenarios, until none is left.
fn in_order(
    scenarios: &[&Scenario],
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

    fn by_rate(scenarios: &[Scenario], rates: &[PassRate], seed: u64) -> Vec<usize> {
        Draw::PassRate.order(scenarios, rates, 8, seed)
    }

    #[test]
    fn by_pass_rate_every_scenario_is_still_drawn_once_and_the_seed_decides_when() {
        let scenarios = scenarios(&[5, 1, 30]);
        let rates: Vec<PassRate> =
            scenarios.iter().enumerate().map(|(index, of)| rate(of, 8.0, (index % 9) as f64)).collect();
        let order = by_rate(&scenarios, &rates, 1);
        assert_eq!(order, by_rate(&scenarios, &rates, 1));
        assert_ne!(order, by_rate(&scenarios, &rates, 2));
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..36).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_never_played_comes_first_and_what_is_solved_last() {
        let scenarios = scenarios(&[2, 4]);
        let solved = |of: &Scenario| rate(of, 8.0, 8.0).with_newer(8, 8).with_newer(8, 8);
        let rates = [solved(&scenarios[0]), rate(&scenarios[2], 8.0, 0.0), rate(&scenarios[4], 8.0, 8.0)];
        for seed in 0..50 {
            let order = by_rate(&scenarios, &rates, seed);
            let mut first = order[..3].to_vec();
            first.sort_unstable();
            assert_eq!((first, order[5]), (vec![1, 3, 5], 0));
        }
    }

    #[test]
    fn a_scenario_that_is_seldom_solved_teaches_more_than_one_that_is_seldom_missed() {
        let scenarios = scenarios(&[3]);
        let rates = [0, 1, 2].map(|place| rate(&scenarios[place], 1e9, [1e8, 5e8, 9e8][place]));
        let mut first = [0; 3];
        for seed in 0..4000 {
            first[by_rate(&scenarios, &rates, seed)[0]] += 1;
        }
        // By hand: (1 − 0.1⁸ − 0.9⁸) · 0.9, (1 − 2 · 0.5⁸) · 0.5 and (1 − 0.9⁸ − 0.1⁸) · 0.1, and 0.02 for each.
        let weights = [0.51257 + 0.02, 0.49609 + 0.02, 0.05695 + 0.02];
        for (count, weight) in first.into_iter().zip(weights) {
            let share = f64::from(count) / 4000.0;
            assert!((share - weight / weights.iter().sum::<f64>()).abs() < 0.03, "{first:?}");
        }
    }

    #[test]
    fn scenarios_without_a_known_answer_come_as_often_as_those_that_were_played_on_average() {
        let mut scenarios = scenarios(&[4]);
        let rates = [0, 1, 2].map(|place| rate(&scenarios[place], 1e9, [1e8, 5e8, 9e8][place]));
        scenarios[3].answer = None;
        let is_first = |seed: &u64| by_rate(&scenarios, &rates, *seed)[0] == 3;
        let share = (0..4000).filter(is_first).count() as f64 / 4000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    #[test]
    fn families_keep_their_weight_where_pass_rates_are_equal() {
        let scenarios = scenarios(&[4, 36]);
        let rates: Vec<PassRate> = scenarios.iter().map(|of| rate(of, 4.0, 1.0)).collect();
        let small = |seed: &u64| by_rate(&scenarios, &rates, *seed)[0] < 4;
        let share = (0..4000).filter(small).count() as f64 / 4000.0;
        assert!((share - 0.25).abs() < 0.03, "{share}");
    }

    #[test]
    fn without_pass_rates_the_draw_is_the_uniform_one() {
        let scenarios = scenarios(&[5, 9]);
        assert_eq!(by_rate(&scenarios, &[], 7), Draw::Uniform.order(&scenarios, &[], 8, 7));
    }

    #[test]
    fn no_scenarios_give_an_empty_order() {
        assert!(draw(&[], 1).is_empty());
    }
}
