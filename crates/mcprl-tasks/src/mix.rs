//! What a mix takes of each source: a seeded sample in which every split and every family is represented.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    data::{Scenario, folded},
    hash::{Digest, Encoder},
};

/// Draws tasks of each source by its weight, as many as the scarcest one allows, and keeps each source's order. A sentence
/// counts once: for the first source that has it.
pub fn draw(parts: Vec<(f64, Vec<Scenario>)>, seed: u64) -> Vec<Scenario> {
    let scale = parts
        .iter()
        .filter(|(_, tasks)| !tasks.is_empty())
        .map(|(weight, tasks)| tasks.len() as f64 / weight)
        .fold(f64::INFINITY, f64::min);
    let mut seen = BTreeSet::new();
    let mut drawn = Vec::new();
    for (weight, tasks) in parts {
        let most = (weight * scale).round() as usize;
        let order = order(&tasks, seed);
        let is_new = |place: &usize| seen.insert(folded(&tasks[*place].task));
        let places: BTreeSet<usize> = order.into_iter().filter(is_new).take(most).collect();
        drawn.extend(places.into_iter().map(|place| tasks[place].clone()));
    }
    drawn
}

/// The places of tasks in an order whose every beginning is a sample: of every split and family about the same share, and one
/// task of each before two of any, splits first.
fn order(tasks: &[Scenario], seed: u64) -> Vec<usize> {
    let draw =
        |place: &usize| Encoder::new("mcprl mixed tasks v1").number(seed).text(&tasks[*place].id).finish();
    /// By family: the draws and places of its tasks.
    type Families<'t> = BTreeMap<&'t str, Vec<(Digest, usize)>>;
    let mut strata: BTreeMap<&str, Families<'_>> = BTreeMap::new();
    for (place, task) in tasks.iter().enumerate() {
        let split = strata.entry(&task.split).or_default();
        split.entry(&task.family).or_default().push((draw(&place), place));
    }
    let splits = strata.into_values().map(|families| {
        let shuffled = families.into_values().map(|mut family| {
            family.sort_unstable();
            family
        });
        interleaved(shuffled.collect())
    });
    interleaved(splits.collect()).into_iter().map(|(_, place)| place).collect()
}

/// Merges lists so that every beginning has about the same share of each, and the first of each list before the second of any.
/// Where lists are level, the lesser first item is first.
fn interleaved<T: Ord>(mut lists: Vec<Vec<T>>) -> Vec<T> {
    lists.sort_by(|one, other| one.first().cmp(&other.first()));
    let mut ranked: Vec<((usize, usize), T)> = lists
        .into_iter()
        .flat_map(|list| {
            let length = list.len();
            list.into_iter().enumerate().map(move |(place, item)| ((place, length), item))
        })
        .collect();
    // Compares place / length.
    ranked.sort_by(|((one, of), _), ((other, in_all), _)| (one * in_all).cmp(&(other * of)));
    ranked.into_iter().map(|(_, item)| item).collect()
}

/// Takes from every family in turn up to `limit`.
pub fn evenly<T>(families: Vec<Vec<T>>, limit: usize) -> Vec<T> {
    let places = families.into_iter().flat_map(|family| family.into_iter().enumerate());
    let mut ranked: Vec<(usize, T)> = places.collect();
    ranked.sort_by_key(|(place, _)| *place);
    ranked.into_iter().take(limit).map(|(_, item)| item).collect()
}

/// Takes tasks from their groups in turn, each group in an order of its own.
pub fn in_turn<K: Ord, T>(
    tasks: Vec<T>,
    key: impl Fn(&T) -> K,
    ordered: impl Fn(Vec<T>) -> Vec<T>,
) -> Vec<T> {
    let mut groups: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for task in tasks {
        groups.entry(key(&task)).or_default().push(task);
    }
    evenly(groups.into_values().map(ordered).collect(), usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks of each split and family, in blocks.
    fn tasks(source: &str, blocks: &[(&str, &str, usize)]) -> Vec<Scenario> {
        let of_block = |(split, family, count): &(&str, &str, usize)| {
            let task = |number| {
                let text = format!("{source} {split} {family} {number}");
                let (split, family) = ((*split).to_owned(), (*family).to_owned());
                Scenario { id: text.clone(), task: text, split, family, ..Scenario::default() }
            };
            (0..*count).map(task).collect::<Vec<_>>()
        };
        blocks.iter().flat_map(of_block).collect()
    }

    fn counts<'a>(tasks: &'a [Scenario], key: impl Fn(&'a Scenario) -> &'a str) -> BTreeMap<&'a str, usize> {
        let mut counts = BTreeMap::new();
        tasks.iter().for_each(|task| *counts.entry(key(task)).or_default() += 1);
        counts
    }

    #[test]
    fn a_mix_takes_the_same_share_of_each_family() {
        let families = tasks("a", &[("train", "one", 240), ("train", "two", 120), ("train", "three", 40)]);
        let file = tasks("b", &[("train", "file", 50)]);
        let drawn = draw(vec![(1.0, families), (1.0, file)], 7);
        let found = counts(&drawn, |task| &task.family);
        assert_eq!(found.values().sum::<usize>(), 100);
        assert_eq!(found["file"], 50);
        for (family, share) in [("one", 30), ("two", 15), ("three", 5)] {
            assert!(found[family].abs_diff(share) <= 1, "{found:?}");
        }
    }

    #[test]
    fn no_split_vanishes_and_none_of_its_families_before_there_are_too_few_tasks() {
        let heldout = [
            ("unseen_entities", "one", 40),
            ("unseen_entities", "two", 40),
            ("unseen_phrasings", "one", 20),
            ("unseen_families", "three", 2),
        ];
        for most in 1..20 {
            let file = tasks("b", &[("file", "file", most)]);
            let drawn = draw(vec![(1.0, tasks("a", &heldout)), (1.0, file)], 7);
            let own = &drawn[..most];
            assert_eq!(counts(own, |task| &task.split).len(), most.min(3), "{most}");
            if most >= 6 {
                let pairs: BTreeSet<_> = own.iter().map(|task| (&task.split, &task.family)).collect();
                assert_eq!(pairs.len(), 4, "{most}");
            }
        }
    }

    #[test]
    fn the_seed_decides_what_is_drawn_and_the_source_its_order() {
        let drawn = |seed, reversed: bool| -> Vec<String> {
            let mut many = tasks("a", &[("train", "one", 60), ("train", "two", 60)]);
            if reversed {
                many.reverse();
            }
            let parts = vec![(1.0, many), (1.0, tasks("b", &[("train", "file", 10)]))];
            draw(parts, seed).into_iter().map(|task| task.task).collect()
        };
        assert_eq!(drawn(1, false), drawn(1, false));
        assert_ne!(drawn(1, false), drawn(2, false));
        // No prefix of a family.
        let places: Vec<usize> = drawn(1, false)[..10]
            .iter()
            .map(|task| task.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(places.iter().any(|place| *place >= 20), "{places:?}");
        let mut backwards = drawn(1, true);
        backwards[..10].reverse();
        assert_eq!(backwards, drawn(1, false), "the same tasks in the order of the source");
    }

    #[test]
    fn a_mix_that_takes_everything_is_its_sources_one_after_the_other() {
        let parts = [tasks("a", &[("train", "x", 9), ("train", "y", 3)]), tasks("b", &[("train", "z", 12)])];
        let drawn = draw(parts.iter().cloned().map(|tasks| (1.0, tasks)).collect(), 3);
        assert_eq!(drawn, parts.concat());
    }

    #[test]
    fn a_sentence_of_two_sources_counts_once_and_others_take_its_place() {
        let shared = tasks("a", &[("train", "x", 20)]);
        let mut more = tasks("b", &[("train", "y", 40)]);
        for (task, twin) in more.iter_mut().zip(&shared) {
            task.task = format!("{}!", twin.task.to_uppercase());
        }
        let drawn = draw(vec![(1.0, shared), (1.0, more)], 5);
        let texts: BTreeSet<String> = drawn.iter().map(|task| folded(&task.task)).collect();
        assert_eq!((texts.len(), drawn.len()), (40, 40));
    }
}
