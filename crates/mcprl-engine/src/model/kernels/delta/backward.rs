//! The gradients of gated DeltaNet over a tree.
//!
//! Each head first repeats its forward and keeps its rows and the states at the starts of chunks. Then it visits the
//! pieces of chunks from the last to the first: children before parents. A child that continues its parent's chunk
//! adds to the gradients of the parent's rows. Sums have a fixed order, so the number of threads changes no bit.

use std::{ops::Range, sync::Arc};

use super::{
    super::{
        LANES, add_assign,
        gemm::{Lhs, Rhs},
        math::{exp, sigmoid},
        multiversion, team,
    },
    CHUNK, DeltaHeads, DeltaRows, DeltaSegment, DeltaWeights, add_product,
    forward::{Head, Scratch, cleared, inverse_norm, softplus},
    product, threads, walk,
};

/// The gradients of a layer's rows and parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaGradients {
    /// `[rows, channels]`
    pub mixed: Vec<f32>,
    /// `[rows, value heads]`
    pub b: Vec<f32>,
    /// `[rows, value heads]`
    pub a: Vec<f32>,
    /// `[channels, window]`
    pub conv: Vec<f32>,
    /// `[value heads]`
    pub a_log: Vec<f32>,
    /// `[value heads]`
    pub dt_bias: Vec<f32>,
}

/// A run of a segment's rows in one chunk.
struct Piece {
    rows: Range<usize>,
    /// Index of its first row in the chunk.
    offset: usize,
    /// The piece before it on its path.
    before: Option<usize>,
}

/// A tree's pieces, and the row before each row on its path.
struct Path {
    pieces: Vec<Piece>,
    before: Vec<Option<usize>>,
}

impl Path {
    fn new(segments: &[DeltaSegment], rows: usize) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut before = vec![None; rows];
        // The last piece of each segment.
        let mut ends: Vec<Option<usize>> = Vec::with_capacity(segments.len());
        for segment in segments {
            let mut last = segment.parent.and_then(|parent| ends[parent]);
            let mut start = segment.rows.start;
            while start < segment.rows.end {
                let offset = (segment.first + start - segment.rows.start) % CHUNK;
                let rows = start..segment.rows.end.min(start + CHUNK - offset);
                before[start] = last.map(|piece| pieces[piece].rows.end - 1);
                let inner = rows.start + 1..rows.end;
                before[inner.clone()].iter_mut().zip(inner).for_each(|(before, row)| *before = Some(row - 1));
                start = rows.end;
                pieces.push(Piece { rows, offset, before: last });
                last = Some(pieces.len() - 1);
            }
            ends.push(last);
        }
        Self { pieces, before }
    }

    /// The rows of a piece's chunk up to its end, and the piece before the chunk.
    fn chunk(&self, piece: usize) -> (Vec<usize>, Option<usize>) {
        let mut parts = vec![piece];
        let mut first = &self.pieces[piece];
        while let (true, Some(before)) = (first.offset > 0, first.before) {
            parts.push(before);
            first = &self.pieces[before];
        }
        let rows = parts.iter().rev().flat_map(|part| self.pieces[*part].rows.clone()).collect();
        (rows, first.before)
    }
}

/// What a head's forward computed, by row.
struct Kept {
    /// Outputs of the convolution, `[rows, width]`.
    convolved: Vec<f32>,
    /// Normalised, `[rows, key dim]`.
    keys: Vec<f32>,
    queries: Vec<f32>,
    values: Vec<KeptValue>,
}

/// The same of a value head.
struct KeptValue {
    /// `[rows, value dim]`
    u: Vec<f32>,
    /// `u / β`, `[rows, value dim]`.
    errors: Vec<f32>,
    betas: Vec<f32>,
    sums: Vec<f32>,
    /// By piece: the state at the start of its chunk.
    starts: Vec<Option<Arc<[f32]>>>,
}

impl Kept {
    fn new(head: &Head<'_>, segments: &[DeltaSegment], rows: usize) -> Self {
        let heads = head.heads;
        let zeros = |width: usize| vec![0.0; rows * width];
        let value = || KeptValue {
            u: zeros(heads.value_dim),
            errors: zeros(heads.value_dim),
            betas: zeros(1),
            sums: zeros(1),
            starts: Vec::new(),
        };
        let mut kept = Self {
            convolved: zeros(heads.own_width()),
            keys: zeros(heads.key_dim),
            queries: zeros(heads.key_dim),
            values: (0..heads.group()).map(|_| value()).collect(),
        };
        let mut scratch = Scratch::default();
        walk(heads, segments, |segment, group| {
            head.run(group, segment.rows.clone(), segment.first, &mut scratch, |scratch, rows, group| {
                let put = |into: &mut [f32], from: &[f32], width: usize| {
                    into[rows.start * width..rows.end * width].copy_from_slice(from);
                };
                put(&mut kept.convolved, &scratch.convolved, heads.own_width());
                let (keys, queries) = scratch.keys.split_at(rows.len() * heads.key_dim);
                put(&mut kept.keys, keys, heads.key_dim);
                put(&mut kept.queries, queries, heads.key_dim);
                let position = segment.first + rows.start - segment.rows.start;
                let chunk = position % CHUNK..position % CHUNK + rows.len();
                for (index, (into, from)) in kept.values.iter_mut().zip(&group.values).enumerate() {
                    let width = heads.value_dim;
                    put(&mut into.u, &from.u[chunk.start * width..chunk.end * width], width);
                    put(&mut into.errors, &scratch.errors[index], width);
                    put(&mut into.betas, &scratch.betas[index], 1);
                    put(&mut into.sums, &from.sums[chunk.clone()], 1);
                    into.starts.push(from.start.clone());
                }
            });
        });
        kept
    }
}

/// The gradients of the rows of a head.
struct HeadGradients {
    keys: Vec<f32>,
    queries: Vec<f32>,
}

/// The gradients of the rows of a value head.
struct ValueGradients {
    /// `[rows, value dim]`
    u: Vec<f32>,
    values: Vec<f32>,
    betas: Vec<f32>,
    /// Of `G`, then of the gates.
    gates: Vec<f32>,
}

multiversion! {
    /// One row of products with a chunk's rows, `dots`, and the gradient of `decays · dots`, `d`. `dots` becomes
    /// `decays · dots`, and `d` the gradient of the dots. Subtracts the gradients of `G` from `dsums`. Returns the
    /// gradient of the row's own `G`.
    pub fn weigh(decays: &[f32], dots: &mut [f32], d: &mut [f32], dsums: &mut [f32]) -> f32 {
        let count = decays.len();
        let (dots, d, dsums) = (&mut dots[..count], &mut d[..count], &mut dsums[..count]);
        let mut total = 0.0;
        for j in 0..count {
            dots[j] *= decays[j];
            let x = d[j] * dots[j];
            d[j] *= decays[j];
            dsums[j] -= x;
            total += x;
        }
        total
    }
}

multiversion! {
    /// Rows of `into` plus the weights' multiples of `row`.
    pub fn add_outer(into: &mut [f32], weights: &[f32], row: &[f32]) {
        let width = row.len();
        for (into, weight) in into.chunks_exact_mut(width).zip(weights) {
            let (into, row) = (&mut into[..width], &row[..width]);
            for i in 0..width {
                into[i] = weight.mul_add(row[i], into[i]);
            }
        }
    }
}

multiversion! {
    /// The sum of products: lane by lane, then the lanes.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        assert_eq!(a.len(), b.len());
        let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for i in 0..LANES {
                lanes[i] = a[i].mul_add(b[i], lanes[i]);
            }
        }
        for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
            lanes[i] = a.mul_add(*b, lanes[i]);
        }
        lanes.iter().sum()
    }
}

multiversion! {
    /// `e^(last − sum)` of each sum.
    pub fn decay(last: f32, sums: &[f32], out: &mut [f32]) {
        let count = out.len();
        let sums = &sums[..count];
        for i in 0..count {
            out[i] = exp(last - sums[i]);
        }
    }
}

multiversion! {
    /// The gradient of `scale · silu(x) / |silu(x)|` with respect to `silu(x)`. `active` is space for the latter.
    pub fn normalise_backward(x: &[f32], active: &mut [f32], scale: f32, dout: &[f32], d: &mut [f32]) {
        let width = x.len();
        let (active, dout, d) = (&mut active[..width], &dout[..width], &mut d[..width]);
        for i in 0..width {
            active[i] = x[i] * sigmoid(x[i]);
        }
        let inverse = inverse_norm(active);
        let along = dot(active, dout) * inverse * inverse;
        for i in 0..width {
            d[i] = scale * inverse * (dout[i] - active[i] * along);
        }
    }
}

multiversion! {
    /// Multiplies `d` by the slope of SiLU.
    pub fn silu_backward(x: &[f32], d: &mut [f32]) {
        let width = x.len();
        let d = &mut d[..width];
        for i in 0..width {
            let s = sigmoid(x[i]);
            d[i] *= s * (1.0 + x[i] * (1.0 - s));
        }
    }
}

/// The rows of a matrix, one after another.
fn picked(from: &[f32], rows: &[usize], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|row| &from[row * width..(row + 1) * width]).copied().collect()
}

fn transposed(from: &[f32], width: usize) -> Vec<f32> {
    let rows = from.len() / width;
    let mut into = vec![0.0; from.len()];
    for (row, values) in from.chunks_exact(width).enumerate() {
        values.iter().enumerate().for_each(|(column, value)| into[column * rows + row] = *value);
    }
    into
}

/// Multiplies each row by its factor.
fn scale_rows(values: &mut [f32], width: usize, factors: impl Iterator<Item = f32>) {
    for (row, factor) in values.chunks_exact_mut(width).zip(factors) {
        row.iter_mut().for_each(|value| *value *= factor);
    }
}

/// Adds rows to the rows of a matrix with these indices.
fn scatter(into: &mut [f32], rows: &[usize], width: usize, from: &[f32]) {
    for (row, from) in rows.iter().zip(from.chunks_exact(width)) {
        add_assign(&mut into[row * width..(row + 1) * width], from);
    }
}

/// The gradients of [`super::delta_tree`]. `dout`: `[rows, value heads, value dim]`.
pub fn delta_tree_backward(
    heads: DeltaHeads,
    weights: DeltaWeights<'_>,
    rows: DeltaRows<'_>,
    segments: &[DeltaSegment],
    dout: &[f32],
) -> DeltaGradients {
    let count = rows.b.len() / heads.value;
    let path = Path::new(segments, count);
    let mut all = DeltaGradients {
        mixed: vec![0.0; count * heads.channels()],
        b: vec![0.0; count * heads.value],
        a: vec![0.0; count * heads.value],
        conv: vec![0.0; heads.channels() * heads.window],
        a_log: vec![0.0; heads.value],
        dt_bias: vec![0.0; heads.value],
    };
    let into = [&mut all.mixed, &mut all.b, &mut all.a, &mut all.conv, &mut all.a_log, &mut all.dt_bias]
        .map(|values| team::Shared::new(values));
    team::share(threads(heads, segments), heads.key, |index| {
        let head = Head::new(heads, weights, rows, index);
        let kept = Kept::new(&head, segments, count);
        backward(&head, &kept, &path, dout, into);
    });
    all
}

/// One head. `into` are the vectors of [`DeltaGradients`].
fn backward(head: &Head<'_>, kept: &Kept, path: &Path, dout: &[f32], into: [team::Shared; 6]) {
    let heads = head.heads;
    let (rows, width, dim, value_dim) =
        (path.before.len(), heads.own_width(), heads.key_dim, heads.value_dim);
    let [dmixed, db, da, dconv, da_log, ddt_bias] = into;
    let mut of_head = HeadGradients { keys: vec![0.0; rows * dim], queries: vec![0.0; rows * dim] };
    // Of the convolution's output.
    let mut dconvolved = vec![0.0; rows * width];
    for (index, value) in kept.values.iter().enumerate() {
        let column = head.index * heads.group() + index;
        let first = column * value_dim;
        let dout: Vec<f32> = dout
            .chunks_exact(heads.value * value_dim)
            .flat_map(|row| &row[first..first + value_dim])
            .copied()
            .collect();
        let of_value = value_backward(heads, (kept, value), path, &dout, &mut of_head);
        let at = 2 * dim + index * value_dim;
        let values = of_value.values.chunks_exact(value_dim);
        for (into, from) in dconvolved.chunks_exact_mut(width).zip(values) {
            into[at..at + value_dim].copy_from_slice(from);
        }
        let (mut of_a_log, mut of_bias) = (0.0, 0.0);
        for row in 0..rows {
            let cell = row * heads.value + column;
            let beta = value.betas[row];
            let input = head.rows.a[cell] + head.dt_bias[index];
            let (rate, dgate) = (head.rates[index], of_value.gates[row]);
            let dinput = dgate * rate * sigmoid(input);
            of_a_log += dgate * rate * softplus(input);
            of_bias += dinput;
            // SAFETY: each task writes only its own heads' values, here and below.
            unsafe {
                db.at(cell).write(of_value.betas[row] * beta * (1.0 - beta));
                da.at(cell).write(dinput);
            }
        }
        // SAFETY: as above.
        unsafe {
            da_log.at(column).write(of_a_log);
            ddt_bias.at(column).write(of_bias);
        }
    }

    let scale = 1.0 / (dim as f32).sqrt();
    let mut active = vec![0.0; dim];
    for row in 0..rows {
        let convolved = &kept.convolved[row * width..(row + 1) * width];
        let dconvolved = &mut dconvolved[row * width..(row + 1) * width];
        let of_row = row * dim..(row + 1) * dim;
        for (at, d, scale) in [(0, &of_head.queries, scale), (dim, &of_head.keys, 1.0)] {
            let at = at..at + dim;
            normalise_backward(
                &convolved[at.clone()],
                &mut active,
                scale,
                &d[of_row.clone()],
                &mut dconvolved[at],
            );
        }
        silu_backward(convolved, dconvolved);
    }
    convolution_backward(head, path, &dconvolved, dmixed, dconv);
}

/// The gradients of a head's part of the convolution.
fn convolution_backward(
    head: &Head<'_>,
    path: &Path,
    dout: &[f32],
    dmixed: team::Shared,
    dconv: team::Shared,
) {
    let heads = head.heads;
    let (rows, width, window) = (path.before.len(), heads.own_width(), heads.window);
    let (mut dinputs, mut dweights) = (vec![0.0; rows * width], vec![0.0; window * width]);
    let mut inputs = vec![0.0; rows * width];
    inputs.chunks_exact_mut(width).enumerate().for_each(|(row, input)| head.gather(row, input));
    for (row, dout) in dout.chunks_exact(width).enumerate() {
        let mut from = Some(row);
        for lag in (0..window).rev() {
            let Some(source) = from else { break };
            let (own, input) = (lag * width..(lag + 1) * width, source * width..(source + 1) * width);
            multiply_add(&mut dinputs[input.clone()], dout, &head.conv[own.clone()]);
            multiply_add(&mut dweights[own], dout, &inputs[input]);
            from = path.before[source];
        }
    }
    let columns = heads.columns(head.index);
    for (row, dinputs) in dinputs.chunks_exact(width).enumerate() {
        let mut at = 0;
        for columns in &columns {
            let first = row * heads.channels() + columns.start;
            // SAFETY: each task writes only its own head's channels.
            unsafe { dmixed.range(first..first + columns.len()) }
                .copy_from_slice(&dinputs[at..at + columns.len()]);
            at += columns.len();
        }
    }
    for (at, channel) in columns.into_iter().flatten().enumerate() {
        for lag in 0..window {
            // SAFETY: as above.
            unsafe { dconv.at(channel * window + lag).write(dweights[lag * width + at]) };
        }
    }
}

multiversion! {
    /// `into += a · b`
    pub fn multiply_add(into: &mut [f32], a: &[f32], b: &[f32]) {
        let count = into.len();
        let (a, b) = (&a[..count], &b[..count]);
        for i in 0..count {
            into[i] = a[i].mul_add(b[i], into[i]);
        }
    }
}

/// The recurrence of one value head. Adds to the gradients of normalised keys and queries.
fn value_backward(
    heads: DeltaHeads,
    (kept, value): (&Kept, &KeptValue),
    path: &Path,
    dout: &[f32],
    of_head: &mut HeadGradients,
) -> ValueGradients {
    let rows = path.before.len();
    let mut of_value = ValueGradients {
        u: vec![0.0; rows * heads.value_dim],
        values: vec![0.0; rows * heads.value_dim],
        betas: vec![0.0; rows],
        gates: vec![0.0; rows],
    };
    // By piece: the gradient of the state that it ends with, and the gradient of the gates after it in its chunk.
    let mut dends: Vec<Option<Vec<f32>>> = vec![None; path.pieces.len()];
    let mut after = vec![0.0; path.pieces.len()];
    for (index, piece) in path.pieces.iter().enumerate().rev() {
        let (chunk, before) = path.chunk(index);
        let start = value.starts[index].as_deref();
        let mut dstart = start.map(|state| vec![0.0; state.len()]);
        let work = PieceWork::new(heads, kept, value, &chunk, piece);
        work.backward(dout, start, (dends[index].take().as_deref(), dstart.as_mut()), of_head, &mut of_value);
        if let (Some(before), Some(dstart)) = (before, dstart) {
            match &mut dends[before] {
                Some(sum) => add_assign(sum, &dstart),
                none => *none = Some(dstart),
            }
        }
        // A gate is in `G` of its row and of all rows after it in the chunk.
        let mut sum = after[index];
        for row in piece.rows.clone().rev() {
            sum += of_value.gates[row];
            of_value.gates[row] = sum;
        }
        if let (true, Some(before)) = (piece.offset > 0, piece.before) {
            after[before] += sum;
        }
    }
    of_value
}

/// A piece with the rows of its chunk up to its end.
struct PieceWork<'a> {
    heads: DeltaHeads,
    kept: &'a Kept,
    value: &'a KeptValue,
    chunk: &'a [usize],
    piece: &'a Piece,
    /// Of the chunk's rows: `[rows, key dim]`, `[rows, value dim]`, `[rows]`.
    keys: Vec<f32>,
    u: Vec<f32>,
    sums: Vec<f32>,
}

impl<'a> PieceWork<'a> {
    fn new(
        heads: DeltaHeads,
        kept: &'a Kept,
        value: &'a KeptValue,
        chunk: &'a [usize],
        piece: &'a Piece,
    ) -> Self {
        let keys = picked(&kept.keys, chunk, heads.key_dim);
        let u = picked(&value.u, chunk, heads.value_dim);
        let sums = picked(&value.sums, chunk, 1);
        Self { heads, kept, value, chunk, piece, keys, u, sums }
    }

    /// `start` is the state at the chunk's start; `dend` the gradient of the state at its end, if a row sees it; `dstart`
    /// gets the gradient of `start`.
    fn backward(
        &self,
        dout: &[f32],
        start: Option<&[f32]>,
        (dend, dstart): (Option<&[f32]>, Option<&mut Vec<f32>>),
        of_head: &mut HeadGradients,
        of_value: &mut ValueGradients,
    ) {
        let DeltaHeads { key_dim: dim, value_dim, .. } = self.heads;
        let (rows, all, offset) = (self.piece.rows.clone(), self.chunk.len(), self.piece.offset);
        let count = rows.len();
        let mut dkeys = vec![0.0; all * dim];
        let mut dsums = vec![0.0; all];
        // Of the chunk's rows, from this piece and, for its own rows, from those below.
        let mut du = vec![0.0; all * value_dim];
        du[offset * value_dim..].copy_from_slice(&of_value.u[rows.start * value_dim..rows.end * value_dim]);
        let mut unused = Vec::new();
        let dstart = dstart.unwrap_or(&mut unused);

        if let Some(dend) = dend {
            self.end_backward(start, dend, dstart, (&mut dkeys, &mut du, &mut dsums));
        }

        let of = |width: usize| rows.start * width..rows.end * width;
        let (own_keys, queries) = (&self.kept.keys[of(dim)], &self.kept.queries[of(dim)]);
        let dout = &dout[of(value_dim)];
        let (keys_across, u_across) = (transposed(&self.keys, dim), transposed(&self.u, value_dim));
        let mut decays = vec![0.0; count * all];
        for (row, decays) in decays.chunks_exact_mut(all).enumerate() {
            let seen = offset + row + 1;
            let last = self.sums[seen - 1];
            decay(last, &self.sums, &mut decays[..seen]);
        }

        // Outputs.
        let (mut dots, mut d) = (vec![0.0; count * all], vec![0.0; count * all]);
        product(count, Lhs::rows(queries, dim), Rhs::rows(&keys_across, dim, all), &mut dots, all);
        product(count, Lhs::rows(dout, value_dim), Rhs::rows(&u_across, value_dim, all), &mut d, all);
        for row in 0..count {
            let cells = row * all..(row + 1) * all;
            dsums[offset + row] +=
                weigh(&decays[cells.clone()], &mut dots[cells.clone()], &mut d[cells], &mut dsums);
        }
        add_product(all, Lhs::transposed(&dots, all), Rhs::rows(dout, count, value_dim), &mut du, value_dim);
        let dqueries = &mut of_head.queries[of(dim)];
        add_product(count, Lhs::rows(&d, all), Rhs::rows(&self.keys, all, dim), dqueries, dim);
        add_product(all, Lhs::transposed(&d, all), Rhs::rows(queries, count, dim), &mut dkeys, dim);

        // Rows of `u`, from the last.
        product(count, Lhs::rows(own_keys, dim), Rhs::rows(&keys_across, dim, all), &mut dots, all);
        for row in 0..count {
            // A row's own key is not among those before it.
            decays[row * all + offset + row] = 0.0;
        }
        let mut derrors = vec![0.0; count * value_dim];
        for row in (0..count).rev() {
            let (at, before) = (rows.start + row, offset + row);
            let (earlier, own) = du.split_at_mut(before * value_dim);
            let derror = &mut derrors[row * value_dim..(row + 1) * value_dim];
            of_value.betas[at] =
                dot(&own[..value_dim], &self.value.errors[at * value_dim..(at + 1) * value_dim]);
            derror.iter_mut().zip(&*own).for_each(|(d, own)| *d = own * self.value.betas[at]);
            let cells = row * all..row * all + before;
            let weights: Vec<f32> =
                decays[cells.clone()].iter().zip(&dots[cells]).map(|(decay, dot)| -decay * dot).collect();
            add_outer(earlier, &weights, derror);
        }
        of_value.values[of(value_dim)].copy_from_slice(&derrors);
        product(count, Lhs::rows(&derrors, value_dim), Rhs::rows(&u_across, value_dim, all), &mut d, all);
        d.iter_mut().for_each(|d| *d = -*d);
        for row in 0..count {
            let cells = row * all..(row + 1) * all;
            dsums[offset + row] +=
                weigh(&decays[cells.clone()], &mut dots[cells.clone()], &mut d[cells], &mut dsums);
        }
        let own = &mut dkeys[offset * dim..];
        add_product(count, Lhs::rows(&d, all), Rhs::rows(&self.keys, all, dim), own, dim);
        add_product(all, Lhs::transposed(&d, all), Rhs::rows(own_keys, count, dim), &mut dkeys, dim);

        if let Some(start) = start {
            let (dkeys, dsums) = (&mut dkeys[offset * dim..], &mut dsums[offset..]);
            self.start_backward(start, (queries, dout, dqueries, 1.0), dsums, dstart);
            self.start_backward(start, (own_keys, &derrors, dkeys, -1.0), dsums, dstart);
        }

        let earlier = &self.chunk[..offset];
        scatter(&mut of_value.u, earlier, value_dim, &du[..offset * value_dim]);
        scatter(&mut of_head.keys, self.chunk, dim, &dkeys);
        scatter(&mut of_value.gates, self.chunk, 1, &dsums);
    }

    /// What rows `x` read of the state at the chunk's start, with this sign: from the gradient `d` of what they read, adds to theirs, to
    /// those of the sums and to that of the state.
    fn start_backward(
        &self,
        start: &[f32],
        (x, d, dx, sign): (&[f32], &[f32], &mut [f32], f32),
        dsums: &mut [f32],
        dstart: &mut [f32],
    ) {
        let DeltaHeads { key_dim: dim, value_dim, .. } = self.heads;
        let count = self.piece.rows.len();
        let across = transposed(start, value_dim);
        let factors = || self.sums[self.piece.offset..].iter().map(|sum| sign * exp(*sum));
        let mut through = vec![0.0; count * dim];
        product(count, Lhs::rows(d, value_dim), Rhs::rows(&across, value_dim, dim), &mut through, dim);
        scale_rows(&mut through, dim, factors());
        let each = through.chunks_exact(dim).zip(x.chunks_exact(dim));
        each.zip(dsums).for_each(|((through, x), sum)| *sum += dot(through, x));
        add_assign(dx, &through);
        let mut scaled = x.to_vec();
        scale_rows(&mut scaled, dim, factors());
        add_product(dim, Lhs::transposed(&scaled, dim), Rhs::rows(d, count, value_dim), dstart, value_dim);
    }

    /// The gradients of the rows of a whole chunk, and of the state at its start, from those of the state at its end.
    fn end_backward(
        &self,
        start: Option<&[f32]>,
        dend: &[f32],
        dstart: &mut Vec<f32>,
        (dkeys, du, dsums): (&mut [f32], &mut [f32], &mut [f32]),
    ) {
        let DeltaHeads { key_dim: dim, value_dim, .. } = self.heads;
        let last = self.sums[CHUNK - 1];
        let factors = || self.sums.iter().map(|sum| exp(last - sum));
        let mut through = vec![0.0; CHUNK * value_dim];
        let state = Rhs::rows(dend, dim, value_dim);
        product(CHUNK, Lhs::rows(&self.keys, dim), state, &mut through, value_dim);
        scale_rows(&mut through, value_dim, factors());
        let each = through.chunks_exact(value_dim).zip(self.u.chunks_exact(value_dim));
        let mut total = 0.0;
        for ((through, u), sum) in each.zip(&mut *dsums) {
            let y = dot(through, u);
            *sum -= y;
            total += y;
        }
        add_assign(du, &through);
        let across = transposed(dend, value_dim);
        let mut through = vec![0.0; CHUNK * dim];
        product(CHUNK, Lhs::rows(&self.u, value_dim), Rhs::rows(&across, value_dim, dim), &mut through, dim);
        scale_rows(&mut through, dim, factors());
        add_assign(dkeys, &through);
        if let Some(start) = start {
            let decay = exp(last);
            total += decay * dot(dend, start);
            cleared(dstart, 0);
            dstart.extend(dend.iter().map(|d| decay * d));
        }
        dsums[CHUNK - 1] += total;
    }
}
