//! Token sequences that share prefixes. Each shared token is stored once.

use std::{cell::OnceCell, ops::Range};

use candle_core::{Device, Result, Tensor};

/// A run of tokens without a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Its tokens, as rows of the tree.
    pub rows: Range<usize>,
    /// Rows of the segment and of all its descendants: those that attend to it.
    pub subtree: Range<usize>,
    /// Position of its first token.
    pub first: usize,
}

/// A prefix tree over sequences. Rows are in depth-first order, so a segment's descendants are a range of
/// rows, and parent segments precede their children.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenTree {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub segments: Vec<Segment>,
    /// Per sequence, in input order: the row of each of its tokens.
    pub paths: Vec<Vec<usize>>,
}

impl TokenTree {
    /// Builds the tree of these sequences, with every distinct prefix once.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S]) -> Self {
        let mut sorted: Vec<(&[u32], usize)> =
            sequences.iter().enumerate().map(|(index, sequence)| (sequence.as_ref(), index)).collect();
        sorted.sort();
        let mut tree = Self { paths: vec![Vec::new(); sequences.len()], ..Self::default() };
        tree.grow(&sorted, 0);
        tree
    }

    /// Adds the remainder of these sorted sequences, which are equal up to `depth`.
    fn grow(&mut self, sorted: &[(&[u32], usize)], depth: usize) {
        let ended = sorted.iter().take_while(|(sequence, _)| sequence.len() == depth).count();
        let mut rest = &sorted[ended..];
        while let Some(((low, _), _)) = rest.split_first() {
            let same = rest.iter().take_while(|(sequence, _)| sequence[depth] == low[depth]).count();
            let (branch, others) = rest.split_at(same);
            let high = branch[same - 1].0;
            let shared = low[depth..].iter().zip(&high[depth..]).take_while(|(a, b)| a == b).count();
            let rows = self.tokens.len()..self.tokens.len() + shared;
            self.tokens.extend_from_slice(&low[depth..depth + shared]);
            self.positions.extend((depth..depth + shared).map(|position| position as u32));
            for (_, index) in branch {
                self.paths[*index].extend(rows.clone());
            }
            let segment = self.segments.len();
            self.segments.push(Segment { rows: rows.clone(), subtree: rows, first: depth });
            self.grow(branch, depth + shared);
            self.segments[segment].subtree.end = self.tokens.len();
            rest = others;
        }
    }
}

/// The positions of rows, copied to a device once it needs them.
#[derive(Debug)]
pub struct Positions<'a> {
    pub values: &'a [u32],
    on_device: OnceCell<Tensor>,
}

impl<'a> Positions<'a> {
    pub fn new(values: &'a [u32]) -> Self {
        Self { values, on_device: OnceCell::new() }
    }

    /// On the device that first asks.
    pub(super) fn on(&self, device: &Device) -> Result<&Tensor> {
        if let Some(tensor) = self.on_device.get() {
            return Ok(tensor);
        }
        let tensor = Tensor::from_slice(self.values, self.values.len(), device)?;
        Ok(self.on_device.get_or_init(|| tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_prefix_is_stored_once_and_every_sequence_is_found_along_its_path() {
        let sequences = [vec![1, 2, 3, 4], vec![1, 2, 5], vec![7], vec![1, 2], vec![1, 2, 3, 4], vec![]];
        let tree = TokenTree::new(&sequences);
        assert_eq!(tree.tokens, [1, 2, 3, 4, 5, 7]);
        for (sequence, path) in sequences.iter().zip(&tree.paths) {
            let read: Vec<u32> = path.iter().map(|row| tree.tokens[*row]).collect();
            assert_eq!(&read, sequence);
            assert!(path.iter().enumerate().all(|(position, row)| tree.positions[*row] as usize == position));
        }
        let root = &tree.segments[0];
        assert_eq!((root.rows.clone(), root.subtree.clone(), root.first), (0..2, 0..5, 0));
    }
}
