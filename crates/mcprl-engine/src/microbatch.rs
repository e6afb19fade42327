//! Microbatches: sequences as a tree, split so that no tree exceeds a token budget beside the prompt of a split group.

use std::collections::BTreeSet;

use crate::model::TokenTree;

/// Sequences as a tree, and the next-token predictions in the loss.
#[derive(Debug, Clone, Default)]
pub struct Microbatch {
    pub tree: TokenTree,
    /// (row that predicts, token predicted), each pair once, ascending.
    pub targets: Vec<(usize, u32)>,
}

impl Microbatch {
    /// Builds a microbatch of these sequences. It predicts the tokens where `trained` is true (never the
    /// first).
    ///
    /// Also returns, per sequence, the target index of each trained token in order.
    pub fn new<S: AsRef<[u32]>, T: AsRef<[bool]>>(sequences: &[(S, T)]) -> (Self, Vec<Vec<usize>>) {
        let tokens: Vec<&[u32]> = sequences.iter().map(|(tokens, _)| tokens.as_ref()).collect();
        let tree = TokenTree::new(&tokens);
        let predicted: Vec<Vec<(usize, u32)>> = sequences
            .iter()
            .zip(&tree.paths)
            .map(|((tokens, trained), path)| {
                let trained = trained.as_ref().iter().enumerate().skip(1).filter(|(_, trained)| **trained);
                trained.map(|(at, _)| (path[at - 1], tokens.as_ref()[at])).collect()
            })
            .collect();
        let mut targets: Vec<(usize, u32)> = predicted.iter().flatten().copied().collect();
        targets.sort_unstable();
        targets.dedup();
        let index = |target| targets.binary_search(target).expect("every predicted pair is a target");
        let indices = predicted.iter().map(|pairs| pairs.iter().map(index).collect()).collect();
        (Self { tree, targets }, indices)
    }

    /// Distinct tokens of the largest of these batches.
    pub fn most_rows(batches: &[Self]) -> usize {
        batches.iter().map(|batch| batch.tree.tokens.len()).max().unwrap_or(0)
    }
}

/// Splits groups of sequences into batches whose trees hold at most `budget` tokens each. Every sequence is
/// in exactly one batch.
///
/// The sequences of a group share their prompt. A group stays whole if it fits into one batch. A larger one
/// is split between its sequences, and neighbours in token order stay together. The prompt that all of them
/// share then does not count: every batch has to compute it again, so the fewer the better, and a prompt of
/// the budget's length would leave each sequence alone. A sequence that is longer than the budget without
/// that prompt gets its own batch. Returns the indices of each batch's sequences as (group, member).
pub fn pack<S: AsRef<[u32]>>(groups: &[Vec<S>], budget: usize) -> Vec<Vec<(usize, usize)>> {
    let mut batches = Vec::new();
    let mut batch = Batch { budget, ..Batch::default() };
    for (index, group) in groups.iter().enumerate() {
        let sequences: Vec<&[u32]> = group.iter().map(AsRef::as_ref).collect();
        if !batch.sequences.is_empty() && !batch.fits(&sequences) {
            batches.push(batch.take());
        }
        let mut order: Vec<usize> = (0..group.len()).collect();
        if !batch.fits(&sequences) {
            order.sort_by_key(|member| sequences[*member]);
            batch.uncounted = match (order.first(), order.last()) {
                (Some(first), Some(last)) => shared(sequences[*first], sequences[*last]),
                _ => 0,
            };
        }
        for member in order {
            if !batch.sequences.is_empty() && !batch.fits(&sequences[member..=member]) {
                batches.push(batch.take());
            }
            batch.add(sequences[member]);
            batch.members.push((index, member));
        }
        batch.uncounted = 0;
    }
    batches.extend((!batch.sequences.is_empty()).then(|| batch.take()));
    batches
}

/// Tokens that both sequences begin with.
fn shared(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// A batch under construction.
#[derive(Default)]
struct Batch<'a> {
    budget: usize,
    /// Tokens of the prompt of the group that is being split.
    uncounted: usize,
    sequences: BTreeSet<&'a [u32]>,
    /// Distinct prefixes of the batch's sequences: the rows of its tree.
    tokens: usize,
    members: Vec<(usize, usize)>,
}

impl<'a> Batch<'a> {
    /// Rows that this sequence would add: the tokens after the longest prefix that it shares with one in the
    /// batch.
    fn new_tokens(sequences: &BTreeSet<&'a [u32]>, sequence: &[u32]) -> usize {
        let shared = |other: &&[u32]| shared(other, sequence);
        let before = sequences.range(..=sequence).next_back().map_or(0, shared);
        let after = sequences.range(sequence..).next().map_or(0, shared);
        sequence.len() - before.max(after)
    }

    fn fits(&self, sequences: &[&'a [u32]]) -> bool {
        let (mut all, mut tokens) = (None, self.tokens);
        for sequence in sequences {
            let all = all.get_or_insert_with(|| self.sequences.clone());
            tokens += Self::new_tokens(all, sequence);
            all.insert(sequence);
            if tokens > self.budget.saturating_add(self.uncounted) {
                return false;
            }
        }
        true
    }

    fn add(&mut self, sequence: &'a [u32]) {
        self.tokens += Self::new_tokens(&self.sequences, sequence);
        self.sequences.insert(sequence);
    }

    fn take(&mut self) -> Vec<(usize, usize)> {
        self.sequences.clear();
        self.tokens = 0;
        std::mem::take(&mut self.members)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_group_that_does_not_fit_is_split_between_its_sequences() {
        let groups = vec![
            vec![vec![1, 2, 3, 4], vec![1, 2, 3, 5]],
            vec![vec![1, 2, 6, 7]],
            vec![vec![9, 1, 1, 1], vec![9, 2, 2, 2], vec![9, 1, 1, 2]],
        ];
        // Trees of 7 (5 + 2) and of 8 rows (4 + 1 + 3). With a budget of 6 the last group is split, and
        // similar sequences stay together.
        assert_eq!(pack(&groups, 8), [vec![(0, 0), (0, 1), (1, 0)], vec![(2, 0), (2, 1), (2, 2)]]);
        let split = [vec![(0, 0), (0, 1)], vec![(1, 0)], vec![(2, 0), (2, 2)], vec![(2, 1)]];
        assert_eq!(pack(&groups, 6), split);
        assert_eq!(pack(&groups, 1).len(), 6, "a sequence over the budget has its own batch");
    }

    #[test]
    fn a_group_shares_its_prompt_even_if_that_alone_exceeds_the_budget() {
        let prompt = |of: u32| (0..10).map(move |at| 100 * of + at);
        let group = |of: u32| -> Vec<Vec<u32>> {
            (0..4)
                .map(|rollout| prompt(of).chain((0..3).map(|at| 1000 + 10 * rollout + at)).collect())
                .collect()
        };
        let halves = |of: usize| [vec![(of, 0), (of, 1)], vec![(of, 2), (of, 3)]];
        assert_eq!(pack(&[group(1)], 12), [vec![(0, 0), (0, 1), (0, 2), (0, 3)]]);
        assert_eq!(pack(&[group(1)], 8), halves(0));
        // The prompt counts again for what another group would add to the last batch.
        assert_eq!(pack(&[group(1), group(2)], 8), [halves(0), halves(1)].concat());
        let next = vec![vec![7_u32]];
        assert_eq!(pack(&[group(1), next], 8), [halves(0).to_vec(), vec![vec![(1, 0)]]].concat());
    }

    proptest! {
        #[test]
        fn every_sequence_is_packed_once_and_trees_stay_within_the_budget(
            groups in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0u32..3, 1..9), 1..5), 0..6),
            budget in 1usize..30,
        ) {
            let batches = pack(&groups, budget);
            let mut seen: Vec<(usize, usize)> = batches.iter().flatten().copied().collect();
            seen.sort_unstable();
            let all = groups.iter().enumerate().flat_map(|(g, of)| (0..of.len()).map(move |m| (g, m)));
            prop_assert_eq!(seen, all.collect::<Vec<_>>());
            for batch in &batches {
                let sequences: Vec<_> = batch.iter().map(|(g, m)| &groups[*g][*m]).collect();
                let rows = TokenTree::new(&sequences).tokens.len();
                let group = &groups[batch[0].0];
                let prompt = group.iter().map(|other| shared(&group[0], other)).min().unwrap_or(0);
                let is_split = batch.iter().all(|(of, _)| *of == batch[0].0);
                let most = if is_split { budget + prompt } else { budget };
                prop_assert!(rows <= most || batch.len() == 1, "{} rows, budget {}", rows, budget);
            }
        }
    }
}
