//! Which scenarios are played, and in which order.

use std::collections::BTreeMap;

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use crate::{data::Scenario, hash::Encoder};

/// Every scenario once, in drawing order: first a family, with probability proportional to the square root of
/// its size, then one of its scenarios. This favours small families over large ones.
pub(super) fn draw(scenarios: &[Scenario], seed: u64) -> Vec<usize> {
    let digest = Encoder::new("mcprl rollout choice v1").number(seed).finish();
    let mut rng = ChaCha8Rng::from_seed(*digest.as_bytes());
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        families.entry(&scenario.family).or_default().push(index);
    }
    let mut families: Vec<(f64, Vec<usize>)> =
        families.into_values().map(|members| ((members.len() as f64).sqrt(), members)).collect();
    let mut order = Vec::with_capacity(scenarios.len());
    while !families.is_empty() {
        let total: f64 = families.iter().map(|(weight, _)| weight).sum();
        let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
        let family = families.iter().position(|(weight, _)| {
            left -= weight;
            left < 0.0
        });
        // Rounding may leave a remainder after the last family.
        let family = family.unwrap_or(families.len() - 1);
        let (_, members) = &mut families[family];
        let member = (rng.next_u64() % members.len() as u64) as usize;
        order.push(members.swap_remove(member));
        if members.is_empty() {
            families.remove(family);
        }
    }
    order
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
            answer: None,
            check: "none".into(),
            entity: None,
            reference: None,
            checks: None,
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

    #[test]
    fn no_scenarios_give_an_empty_order() {
        assert!(draw(&[], 1).is_empty());
    }
}
