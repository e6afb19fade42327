//! Keys and values of a segment, in the words of the attention products.
//!
//! They are in `f32`, or rounded to bf16 and stored as pairs: for keys two neighbours along the head, for
//! values two neighbouring tokens. A product of pairs adds its values one after another. So a row's sum over
//! the keys of its path has the same bits wherever the path is split into segments, even between the values
//! of a pair.

use std::ops::Range;

use super::{
    super::{
        Format, Lhs, PANEL, Rhs,
        frozen::convert::{round_to_bf16, rounded, to_pairs, widen_bf16},
        gemm::{local_gemm, tiled_gemm},
        multiplies_bf16, team,
    },
    Heads,
};

/// Keys and values of one segment in one layer. New ones are appended.
#[derive(Debug, Clone)]
pub struct KeyValues {
    pub(super) len: usize,
    dim: usize,
    pub(super) data: KvData,
}

/// Per kv head.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KvData {
    Words(Vec<Head<f32>>),
    Pairs(Vec<Head<u32>>),
}

/// A word contains one value or two, which are adjacent in the product's sum.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Head<W> {
    /// Panels `[tokens / 32][dim / word][32]`.
    keys: Vec<W>,
    /// `[tokens / word, dim]`
    values: Vec<W>,
}

impl<W: Copy + Default> Head<W> {
    fn bytes(&self) -> usize {
        (self.keys.capacity() + self.values.capacity()) * size_of::<W>()
    }

    /// Grows to `len` tokens of `width` words per key and `dim` values, `word` of them in a word, with
    /// capacity for `room`.
    fn grow(&mut self, (len, room): (usize, usize), width: usize, dim: usize, word: usize) {
        self.keys.reserve_exact((room * width).saturating_sub(self.keys.len()));
        self.values.reserve_exact((room / word * dim).saturating_sub(self.values.len()));
        self.keys.resize(len.next_multiple_of(PANEL) * width, W::default());
        self.values.resize(len.div_ceil(word) * dim, W::default());
    }

    /// The keys of `len` tokens from `at` on, and room for their values.
    fn later_keys(
        &self,
        (at, len): (usize, usize),
        room: usize,
        (width, dim, word): (usize, usize, usize),
    ) -> Self {
        let mut own = Self::default();
        own.grow((len, room), width, dim, word);
        for token in 0..len {
            let from = &self.keys[(at + token) / PANEL * width * PANEL..][..width * PANEL];
            let into = &mut own.keys[token / PANEL * width * PANEL..][..width * PANEL];
            for (into, from) in into.chunks_exact_mut(PANEL).zip(from.chunks_exact(PANEL)) {
                into[token % PANEL] = from[(at + token) % PANEL];
            }
        }
        own
    }

    /// Drops the tokens from `at` on.
    fn cut(&mut self, at: usize, room: usize, (width, dim, word): (usize, usize, usize)) {
        self.keys.truncate(at.next_multiple_of(PANEL) * width);
        if !at.is_multiple_of(PANEL) {
            for lanes in self.keys[at / PANEL * width * PANEL..].chunks_exact_mut(PANEL) {
                lanes[at % PANEL..].fill(W::default());
            }
        }
        self.values.truncate(at.div_ceil(word) * dim);
        self.keys.shrink_to(room * width);
        self.values.shrink_to(room / word * dim);
    }
}

impl Head<f32> {
    fn put(&mut self, token: usize, key: &[f32], value: &[f32]) {
        let dim = key.len();
        let panel = &mut self.keys[token / PANEL * dim * PANEL..][..dim * PANEL];
        for (lanes, key) in panel.chunks_exact_mut(PANEL).zip(key) {
            lanes[token % PANEL] = *key;
        }
        self.values[token * dim..][..dim].copy_from_slice(value);
    }
}

impl Head<u32> {
    /// Tokens are added in order.
    fn put(&mut self, token: usize, key: &[f32], value: &[f32]) {
        let (dim, half) = (key.len(), key.len().div_ceil(2));
        let panel = &mut self.keys[token / PANEL * half * PANEL..][..half * PANEL];
        for (lanes, pair) in panel.chunks_exact_mut(PANEL).zip(key.chunks(2)) {
            let second = pair.get(1).map_or(0, |second| rounded(*second) >> 16);
            lanes[token % PANEL] = rounded(pair[0]) | second;
        }
        let pairs = self.values[token / 2 * dim..][..dim].iter_mut().zip(value);
        match token % 2 {
            0 => pairs.for_each(|(pair, value)| *pair = rounded(*value)),
            _ => pairs.for_each(|(pair, value)| *pair |= rounded(*value) >> 16),
        }
    }
}

/// Token capacity for this many tokens: whole panels, and beyond 512 tokens at most an eighth too many.
fn room(tokens: usize) -> usize {
    tokens.next_multiple_of((tokens.next_power_of_two() / 16).max(PANEL))
}

/// Queries `[rows, dim]` in the words of the products with keys.
#[derive(Debug, Default)]
pub(super) struct Queries {
    /// Rounded if keys are.
    pub words: Vec<f32>,
    /// `[rows, dim / 2]`, if the machine multiplies pairs.
    pairs: Vec<u32>,
}

impl Queries {
    /// Prepares `words` for keys of this format.
    pub fn prepare(&mut self, dim: usize, format: Format) {
        if !format.is_multiplied_in_bf16() {
            return;
        }
        round_to_bf16(&mut self.words);
        if multiplies_bf16() {
            self.pairs.resize(self.words.len() / dim * dim.div_ceil(2), 0);
            to_pairs(&self.words, dim, dim, &mut self.pairs);
        }
    }
}

/// Some rows of a product, and their destination.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub rows: usize,
    pub to: (team::Shared, usize),
    pub stride: usize,
}

impl KeyValues {
    /// For a decoder whose linear layers have this format.
    pub fn new(heads: Heads, format: Format) -> Self {
        let data = match format.is_multiplied_in_bf16() {
            true => KvData::Pairs(vec![Head::default(); heads.kv]),
            false => KvData::Words(vec![Head::default(); heads.kv]),
        };
        Self { len: 0, dim: heads.dim, data }
    }

    pub fn tokens(&self) -> usize {
        self.len
    }

    fn heads(&self) -> usize {
        match &self.data {
            KvData::Words(heads) => heads.len(),
            KvData::Pairs(heads) => heads.len(),
        }
    }

    /// The type they are rounded to.
    pub fn format(&self) -> Format {
        match self.data {
            KvData::Words(_) => Format::F32,
            KvData::Pairs(_) => Format::Bf16,
        }
    }

    pub fn bytes(&self) -> usize {
        match &self.data {
            KvData::Words(heads) => heads.iter().map(Head::bytes).sum(),
            KvData::Pairs(heads) => heads.iter().map(Head::bytes).sum(),
        }
    }

    /// The value of [`Self::bytes`] with this many tokens.
    pub fn bytes_for(heads: Heads, format: Format, tokens: usize) -> usize {
        let words = match format.is_multiplied_in_bf16() {
            true => room(tokens) * heads.dim.div_ceil(2) + room(tokens) / 2 * heads.dim,
            false => 2 * room(tokens) * heads.dim,
        };
        heads.kv * words * size_of::<f32>()
    }

    /// Appends tokens: `keys` and `values` are `[tokens, kv heads, dim]`. The final number of tokens is
    /// `expected` or more.
    pub fn extend(&mut self, keys: &[f32], values: &[f32], expected: usize) {
        let (dim, half) = (self.dim, self.dim.div_ceil(2));
        let width = dim * self.heads();
        let (start, len) = (self.len, self.len + keys.len() / width);
        let size = (len, room(len.max(expected)));
        let tokens = || (start..len).zip(keys.chunks_exact(width).zip(values.chunks_exact(width)));
        match &mut self.data {
            KvData::Words(heads) => {
                for (index, head) in heads.iter_mut().enumerate() {
                    head.grow(size, dim, dim, 1);
                    for (token, (key, value)) in tokens() {
                        head.put(token, &key[index * dim..][..dim], &value[index * dim..][..dim]);
                    }
                }
            }
            KvData::Pairs(heads) => {
                for (index, head) in heads.iter_mut().enumerate() {
                    head.grow(size, half, dim, 2);
                    for (token, (key, value)) in tokens() {
                        head.put(token, &key[index * dim..][..dim], &value[index * dim..][..dim]);
                    }
                }
            }
        }
        self.len = len;
    }

    /// Moves the tokens from `at` on into keys and values of their own, with room for `expected` of them.
    pub fn split(&mut self, at: usize, expected: usize) -> Self {
        let (dim, half, len) = (self.dim, self.dim.div_ceil(2), self.len - at);
        let rooms = [room(at), room(len.max(expected))];
        let data = match &mut self.data {
            KvData::Words(heads) => {
                let split = |head: &mut Head<f32>| {
                    let mut own = head.later_keys((at, len), rooms[1], (dim, dim, 1));
                    own.values.copy_from_slice(&head.values[at * dim..][..len * dim]);
                    head.cut(at, rooms[0], (dim, dim, 1));
                    own
                };
                KvData::Words(heads.iter_mut().map(split).collect())
            }
            KvData::Pairs(heads) => {
                let split = |head: &mut Head<u32>| {
                    let mut own = head.later_keys((at, len), rooms[1], (half, dim, 2));
                    for token in 0..len {
                        let from = &head.values[(at + token) / 2 * dim..][..dim];
                        for (into, pair) in own.values[token / 2 * dim..][..dim].iter_mut().zip(from) {
                            // The first of a pair is its upper half.
                            let value =
                                if (at + token).is_multiple_of(2) { pair >> 16 } else { pair & 0xffff };
                            *into |= if token.is_multiple_of(2) { value << 16 } else { value };
                        }
                    }
                    head.cut(at, rooms[0], (half, dim, 2));
                    if !at.is_multiple_of(2) {
                        head.values[at / 2 * dim..].iter_mut().for_each(|pair| *pair &= 0xffff_0000);
                    }
                    own
                };
                KvData::Pairs(heads.iter_mut().map(split).collect())
            }
        };
        self.len = at;
        Self { len, dim, data }
    }

    /// Scores of queries from row `first` on with these keys of a head, from the start of a panel.
    pub(super) fn scores(
        &self,
        (head, keys): (usize, Range<usize>),
        queries: &Queries,
        first: usize,
        target: Target,
    ) {
        let (dim, half) = (self.dim, self.dim.div_ceil(2));
        let Target { rows, to: (to, at), stride } = target;
        let words = Lhs::rows(&queries.words[first * dim..], dim);
        let (skipped, keys) = (keys.start, keys.len());
        match &self.data {
            KvData::Words(heads) => {
                let right = Rhs::packed(&heads[head].keys[skipped * dim..], dim, keys);
                local_gemm(rows, words, right, (to, at), stride, false);
            }
            KvData::Pairs(heads) if multiplies_bf16() => {
                let pairs = Lhs::rows(&queries.pairs[first * half..], half);
                let right = Rhs::packed(&heads[head].keys[skipped * half..], half, keys);
                tiled_gemm(rows, pairs, right, (to, at), stride, false);
            }
            KvData::Pairs(heads) => {
                let mut panel = vec![0.0; 2 * half * PANEL];
                let panels = heads[head].keys[skipped * half..].chunks_exact(half * PANEL);
                for (start, pairs) in (0..keys).step_by(PANEL).zip(panels) {
                    widen_bf16(pairs, PANEL, &mut panel);
                    let right = Rhs::packed(&panel, dim, PANEL.min(keys - start));
                    local_gemm(rows, words, right, (to, at + start), stride, false);
                }
            }
        }
    }

    /// Adds the values of these keys of a head, from the start of a panel, times `probabilities`, whose rows are `columns`
    /// apart.
    ///
    /// In bf16 the probabilities are rounded too, as FlashAttention does (Dao 2023).
    pub(super) fn add_values(
        &self,
        (head, keys): (usize, Range<usize>),
        (probabilities, columns): (&[f32], usize),
        scratch: &mut Vec<u32>,
        target: Target,
    ) {
        let dim = self.dim;
        let Target { rows, to, stride } = target;
        let (skipped, keys) = (keys.start, keys.len());
        match &self.data {
            KvData::Words(heads) => {
                let left = Lhs { data: probabilities, row: columns, column: 1 };
                let right = Rhs::rows(&heads[head].values[skipped * dim..], keys, dim);
                local_gemm(rows, left, right, to, stride, true);
            }
            KvData::Pairs(heads) if multiplies_bf16() => {
                let half = keys.div_ceil(2);
                scratch.resize(rows * half, 0);
                to_pairs(probabilities, columns, keys, scratch);
                let right = Rhs::rows(&heads[head].values[skipped / 2 * dim..], half, dim);
                local_gemm(rows, Lhs::rows(scratch, half), right, to, stride, true);
            }
            KvData::Pairs(heads) => {
                let (mut left, mut values) = (vec![0.0; rows * PANEL], vec![0.0; PANEL * dim]);
                let pairs = heads[head].values[skipped / 2 * dim..].chunks(PANEL / 2 * dim);
                for (start, pairs) in (0..keys).step_by(PANEL).zip(pairs) {
                    let count = PANEL.min(keys - start);
                    for (row, left) in left.chunks_exact_mut(PANEL).enumerate() {
                        left[..count].copy_from_slice(&probabilities[row * columns + start..][..count]);
                    }
                    round_to_bf16(&mut left);
                    widen_bf16(pairs, dim, &mut values);
                    let right = Rhs::rows(&values, count, dim);
                    local_gemm(rows, Lhs::rows(&left, PANEL), right, to, stride, true);
                }
            }
        }
    }
}
