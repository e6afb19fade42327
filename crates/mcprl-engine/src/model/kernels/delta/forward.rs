//! The rows of one key head, a piece of a chunk at a time.

use std::ops::Range;

use super::{
    super::{
        gemm::{Lhs, Rhs},
        math::{exp, sigmoid, sum_of_squares},
        multiversion, team,
    },
    CHUNK, DeltaHeads, DeltaRows, DeltaWeights, Group, add_product, product,
};

/// Added to the squared norm of queries and keys.
const EPSILON: f32 = 1e-6;

/// A key head's part of a layer's parameters and rows.
pub(super) struct Head<'a> {
    pub heads: DeltaHeads,
    pub index: usize,
    pub rows: DeltaRows<'a>,
    /// `[window, width]`
    pub conv: Vec<f32>,
    /// `−exp(a_log)` of each value head.
    pub rates: Vec<f32>,
    pub dt_bias: &'a [f32],
}

/// The values of one piece, and space for its products.
#[derive(Default)]
pub(super) struct Scratch {
    /// Inputs of the convolution with those before the piece, `[window − 1 + rows, width]`.
    inputs: Vec<f32>,
    /// Outputs of the convolution, `[rows, width]`.
    pub convolved: Vec<f32>,
    active: Vec<f32>,
    /// Normalised keys, then queries, `[2 · rows, key dim]`.
    pub keys: Vec<f32>,
    /// Products of these with the keys of the chunk, `[2 · rows, keys]`.
    dots: Vec<f32>,
    /// Products with the state at the chunk's start, `[2 · rows, value dim]`.
    carried: Vec<f32>,
    decays: Vec<f32>,
    /// For each value head: `u / β`, `[rows, value dim]`.
    pub errors: Vec<Vec<f32>>,
    /// For each value head: β, `[rows]`.
    pub betas: Vec<Vec<f32>>,
    /// For each value head, `[rows, value dim]`.
    outs: Vec<Vec<f32>>,
    scaled: Vec<f32>,
}

/// Sets a buffer's length, with zeros.
pub(super) fn cleared(buffer: &mut Vec<f32>, length: usize) -> &mut [f32] {
    buffer.clear();
    buffer.resize(length, 0.0);
    buffer
}

/// `log(1 + e^x)`
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp(-x.abs()).ln_1p()
}

/// One over the norm.
pub(super) fn inverse_norm(x: &[f32]) -> f32 {
    1.0 / (sum_of_squares(x) + EPSILON).sqrt()
}

multiversion! {
    /// Convolves rows with the rows before them. `weights`: `[window, width]`; `inputs` has `window − 1` rows more
    /// than `out`. `active` becomes its SiLU.
    pub fn convolve(inputs: &[f32], weights: &[f32], width: usize, out: &mut [f32], active: &mut [f32]) {
        for (row, (out, active)) in out.chunks_exact_mut(width).zip(active.chunks_exact_mut(width)).enumerate() {
            let (out, active) = (&mut out[..width], &mut active[..width]);
            for (lag, weights) in weights.chunks_exact(width).enumerate() {
                let (input, weights) = (&inputs[(row + lag) * width..][..width], &weights[..width]);
                for i in 0..width {
                    out[i] = weights[i].mul_add(input[i], out[i]);
                }
            }
            for i in 0..width {
                active[i] = out[i] * sigmoid(out[i]);
            }
        }
    }
}

/// The inputs of one row of a value head.
pub struct Row<'a> {
    /// Index in its chunk.
    index: usize,
    /// `G` of the chunk.
    sums: &'a [f32],
    /// Products of its key, and of its query, with the chunk's keys.
    dots: [&'a [f32]; 2],
    /// Products of its key, and of its query, with the state at the chunk's start; empty without a state.
    carried: [&'a [f32]; 2],
    value: &'a [f32],
    beta: f32,
}

multiversion! {
    /// One row. Writes its row of `u`, its error (`u / β`), and its output.
    pub fn recur(row: &Row<'_>, u: &mut [f32], decays: &mut [f32], error: &mut [f32], out: &mut [f32]) {
        let (index, width) = (row.index, row.value.len());
        let (before, own) = u.split_at_mut(index * width);
        let (own, error, out) = (&mut own[..width], &mut error[..width], &mut out[..width]);
        let (sums, decays) = (&row.sums[..=index], &mut decays[..=index]);
        let last = sums[index];
        for (decay, sum) in decays.iter_mut().zip(sums) {
            *decay = exp(last - sum);
        }
        error.copy_from_slice(row.value);
        out.fill(0.0);
        if !row.carried[0].is_empty() {
            let decay = exp(last);
            let (key, query) = (&row.carried[0][..width], &row.carried[1][..width]);
            for i in 0..width {
                error[i] = (-decay).mul_add(key[i], error[i]);
                out[i] = decay * query[i];
            }
        }
        for (j, u) in before.chunks_exact(width).enumerate() {
            let (of_key, of_query) = (-decays[j] * row.dots[0][j], decays[j] * row.dots[1][j]);
            let u = &u[..width];
            for i in 0..width {
                error[i] = of_key.mul_add(u[i], error[i]);
                out[i] = of_query.mul_add(u[i], out[i]);
            }
        }
        let of_query = row.dots[1][index];
        for i in 0..width {
            own[i] = row.beta * error[i];
            out[i] = of_query.mul_add(own[i], out[i]);
        }
    }
}

impl<'a> Head<'a> {
    pub fn new(heads: DeltaHeads, weights: DeltaWeights<'a>, rows: DeltaRows<'a>, index: usize) -> Self {
        let width = heads.own_width();
        let mut conv = vec![0.0; heads.window * width];
        for (at, channel) in heads.columns(index).into_iter().flatten().enumerate() {
            for lag in 0..heads.window {
                conv[lag * width + at] = weights.conv[channel * heads.window + lag];
            }
        }
        let group = heads.group();
        let own = index * group..(index + 1) * group;
        let rates = weights.a_log[own.clone()].iter().map(|a_log| -a_log.exp()).collect();
        Self { heads, index, rows, conv, rates, dt_bias: &weights.dt_bias[own] }
    }

    /// Copies this head's channels of a row of the layer's input.
    pub fn gather(&self, row: usize, into: &mut [f32]) {
        let from = &self.rows.mixed[row * self.heads.channels()..];
        let mut at = 0;
        for columns in self.heads.columns(self.index) {
            into[at..at + columns.len()].copy_from_slice(&from[columns.clone()]);
            at += columns.len();
        }
    }

    /// Continues a state by rows, the first of which has this position. Calls `then` after each piece of a chunk, with
    /// the rows of the piece, and the state before a finished chunk is folded.
    pub fn run(
        &self,
        group: &mut Group,
        rows: Range<usize>,
        position: usize,
        scratch: &mut Scratch,
        mut then: impl FnMut(&Scratch, Range<usize>, &Group),
    ) {
        let mut start = rows.start;
        while start < rows.end {
            let offset = (position + start - rows.start) % CHUNK;
            let piece = start..rows.end.min(start + CHUNK - offset);
            start = piece.end;
            self.piece(group, piece.clone(), offset, scratch);
            let ends = offset + piece.len() == CHUNK;
            then(scratch, piece, group);
            if ends {
                self.fold(group, scratch);
            }
        }
    }

    fn piece(&self, group: &mut Group, rows: Range<usize>, offset: usize, scratch: &mut Scratch) {
        let (heads, width, count) = (self.heads, self.heads.own_width(), rows.len());
        let (dim, value_dim, keys) = (heads.key_dim, heads.value_dim, offset + count);
        let before = group.history.len();
        let inputs = cleared(&mut scratch.inputs, before + count * width);
        inputs[..before].copy_from_slice(&group.history);
        for (into, row) in inputs[before..].chunks_exact_mut(width).zip(rows.clone()) {
            self.gather(row, into);
        }
        group.history.copy_from_slice(&inputs[count * width..]);
        let (convolved, active) =
            (cleared(&mut scratch.convolved, count * width), cleared(&mut scratch.active, count * width));
        convolve(inputs, &self.conv, width, convolved, active);

        let normed = cleared(&mut scratch.keys, 2 * count * dim);
        let scale = 1.0 / (dim as f32).sqrt();
        let (of_keys, of_queries) = normed.split_at_mut(count * dim);
        let each = active.chunks_exact(width).zip(of_keys.chunks_exact_mut(dim));
        for (index, ((active, key), query)) in each.zip(of_queries.chunks_exact_mut(dim)).enumerate() {
            for (from, into, scale) in
                [(&active[..dim], query, scale), (&active[dim..2 * dim], &mut *key, 1.0)]
            {
                let inverse = inverse_norm(from);
                into.iter_mut().zip(from).for_each(|(into, from)| *into = from * inverse * scale);
            }
            key.iter().enumerate().for_each(|(i, key)| group.keys[i * CHUNK + offset + index] = *key);
        }
        let dots = cleared(&mut scratch.dots, 2 * count * keys);
        product(2 * count, Lhs::rows(normed, dim), Rhs::strided(&group.keys, dim, keys, CHUNK), dots, keys);

        let decays = cleared(&mut scratch.decays, CHUNK);
        for buffers in [&mut scratch.errors, &mut scratch.outs, &mut scratch.betas] {
            buffers.resize(heads.group(), Vec::new());
        }
        for (index, value) in group.values.iter_mut().enumerate() {
            let carried = match &value.start {
                Some(state) => {
                    let carried = cleared(&mut scratch.carried, 2 * count * value_dim);
                    let state = Rhs::rows(state, dim, value_dim);
                    product(2 * count, Lhs::rows(normed, dim), state, carried, value_dim);
                    carried
                }
                None => &mut [],
            };
            let errors = cleared(&mut scratch.errors[index], count * value_dim);
            let outs = cleared(&mut scratch.outs[index], count * value_dim);
            let betas = cleared(&mut scratch.betas[index], count);
            let column = self.index * heads.group() + index;
            for (at, row) in rows.clone().enumerate() {
                let (b, a) =
                    (self.rows.b[row * heads.value + column], self.rows.a[row * heads.value + column]);
                let gate = self.rates[index] * softplus(a + self.dt_bias[index]);
                let chunk_row = offset + at;
                value.sums[chunk_row] = if chunk_row > 0 { value.sums[chunk_row - 1] + gate } else { gate };
                betas[at] = sigmoid(b);
                let of =
                    |row: usize, from: &'_ [f32]| row * value_dim..((row + 1) * value_dim).min(from.len());
                let carried = match carried.is_empty() {
                    true => [&[][..]; 2],
                    false => [&carried[of(at, carried)], &carried[of(count + at, carried)]],
                };
                let first = 2 * dim + index * value_dim;
                let row = Row {
                    index: chunk_row,
                    sums: &value.sums,
                    dots: [&dots[at * keys..][..keys], &dots[(count + at) * keys..][..keys]],
                    carried,
                    value: &active[at * width + first..][..value_dim],
                    beta: betas[at],
                };
                let own = at * value_dim..(at + 1) * value_dim;
                recur(&row, &mut value.u, decays, &mut errors[own.clone()], &mut outs[own]);
            }
        }
    }

    /// Folds a finished chunk into the states.
    fn fold(&self, group: &mut Group, scratch: &mut Scratch) {
        let DeltaHeads { key_dim, value_dim, .. } = self.heads;
        for value in &mut group.values {
            let last = value.sums[CHUNK - 1];
            let scaled = cleared(&mut scratch.scaled, CHUNK * value_dim);
            let rows = scaled.chunks_exact_mut(value_dim).zip(value.u.chunks_exact(value_dim));
            for ((scaled, u), sum) in rows.zip(&value.sums) {
                let decay = exp(last - sum);
                scaled.iter_mut().zip(u).for_each(|(scaled, u)| *scaled = decay * u);
            }
            let mut state = match &value.start {
                Some(state) => {
                    let decay = exp(last);
                    state.iter().map(|value| decay * value).collect()
                }
                None => vec![0.0; key_dim * value_dim],
            };
            let keys = Lhs::rows(&group.keys, CHUNK);
            add_product(key_dim, keys, Rhs::rows(scaled, CHUNK, value_dim), &mut state, value_dim);
            value.start = Some(state.into());
        }
    }

    /// Writes the outputs of a piece's rows.
    pub fn write(&self, scratch: &Scratch, rows: &Range<usize>, out: team::Shared) {
        let (value_dim, group) = (self.heads.value_dim, self.heads.group());
        for (index, outs) in scratch.outs.iter().enumerate() {
            for (row, from) in rows.clone().zip(outs.chunks_exact(value_dim)) {
                let at = (row * self.heads.value + self.index * group + index) * value_dim;
                // SAFETY: each task writes only its own head's values.
                unsafe { out.range(at..at + value_dim) }.copy_from_slice(from);
            }
        }
    }
}
