//! A chunk of gated DeltaNet as products of matrices, many heads at once.
//!
//! `S` is the state at the chunk's start, `G` the running sum of the gates, and `D` has `e^{G_i − G_j}` for j ≤ i:
//!
//! - `A` is the part of `β · KKᵀ ⊙ D` below the diagonal, `P = QKᵀ ⊙ D`
//! - `U = (I + A)⁻¹ β (V − e^G KS)`, and the output is `e^G QS + PU`
//! - at the end, `S` becomes `e^{G_C} S + (e^{G_C − G} K)ᵀ U`
//!
//! A row of zeros with a gate of zero changes nothing, so short runs are padded at their end (arXiv 2406.06484, 2412.06464).

use candle_core::{Device, Result, Tensor};

/// Constants of chunks of some number of rows, each `[rows, rows]`.
pub struct Masks {
    identity: Tensor,
    /// Ones on the diagonal and below it.
    lower: Tensor,
    /// Ones below the diagonal.
    strict: Tensor,
    /// By size of a block (1, 2, 4…): ones where the second of two neighbouring blocks meets the first.
    pairs: Vec<Tensor>,
}

impl Masks {
    /// `rows` is a power of two.
    pub fn new(rows: usize, device: &Device) -> Result<Self> {
        let of = |holds: &dyn Fn(usize, usize) -> bool| {
            let value = |at: usize| f32::from(u8::from(holds(at / rows, at % rows)));
            Tensor::from_vec((0..rows * rows).map(value).collect(), (rows, rows), device)
        };
        let sizes = std::iter::successors(Some(1), |size| Some(2 * size)).take_while(|size| *size < rows);
        let pair = |size: usize| of(&|i, j| i / size == j / size + 1 && (i / size) % 2 == 1);
        Ok(Self {
            identity: of(&|i, j| i == j)?,
            lower: of(&|i, j| i >= j)?,
            strict: of(&|i, j| i > j)?,
            pairs: sizes.map(pair).collect::<Result<_>>()?,
        })
    }

    /// `G_i − G_j` for j ≤ i, from the gates between them (`[heads, rows, 1]`): the difference of two long sums would have the
    /// rounding of both. Other entries are zero.
    fn sums_between(&self, gate: &Tensor) -> Result<Tensor> {
        let (heads, rows, _) = gate.dims3()?;
        let later = gate.transpose(1, 2)?.broadcast_mul(&self.strict.t()?)?;
        let sums = later.reshape((heads * rows, rows))?.matmul(&self.lower.t()?)?;
        sums.reshape((heads, rows, rows))?.transpose(1, 2)
    }

    /// The gradient of the gates, `[heads, rows]`.
    fn sums_between_backward(&self, d: &Tensor) -> Result<Tensor> {
        let (heads, rows, _) = d.dims3()?;
        let d = d.transpose(1, 2)?.contiguous()?.reshape((heads * rows, rows))?;
        let later = d.matmul(&self.lower)?.reshape((heads, rows, rows))?;
        later.broadcast_mul(&self.strict.t()?)?.sum(1)
    }

    /// `(I + a)⁻¹` for matrices that are zero on the diagonal and above it. Inverts blocks on the diagonal, each time of twice the
    /// size. Unlike the product of `I + (−a)^{2^k}`, it has no large terms that cancel, whatever the keys.
    fn inverse(&self, a: &Tensor) -> Result<Tensor> {
        let mut inverse = self.identity.broadcast_as(a.shape())?.contiguous()?;
        for pair in &self.pairs {
            let between = a.broadcast_mul(pair)?;
            inverse = (&inverse - inverse.matmul(&between)?.matmul(&inverse)?)?;
        }
        Ok(inverse)
    }
}

/// Rows of a chunk by head, or their gradients.
pub struct Rows {
    /// Scaled, `[heads, rows, key dim]`.
    pub query: Tensor,
    /// `[heads, rows, key dim]`
    pub key: Tensor,
    /// `[heads, rows, value dim]`
    pub value: Tensor,
    /// `[heads, rows, 1]`
    pub beta: Tensor,
    /// Logarithms of the decays, `[heads, rows, 1]`.
    pub gate: Tensor,
}

/// A chunk and what its backward needs.
pub struct Chunk<'a> {
    masks: &'a Masks,
    rows: Rows,
    /// The state at its start, `[heads, key dim, value dim]`.
    start: Tensor,
    /// `e^G`, `[heads, rows, 1]`.
    decay: Tensor,
    /// `e^{G_C − G}`, `[heads, rows, 1]`.
    rest: Tensor,
    /// `e^{G_C}`, `[heads, 1, 1]`.
    whole: Tensor,
    /// `D`
    decays: Tensor,
    /// `KKᵀ ⊙ D`
    keys: Tensor,
    a: Tensor,
    inverse: Tensor,
    p: Tensor,
    /// `KS`, `[heads, rows, value dim]`, as the following.
    read: Tensor,
    /// `V − e^G KS`
    errors: Tensor,
    u: Tensor,
}

/// `x · yᵀ` of matrices.
fn times_transposed(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x.matmul(&y.transpose(1, 2)?)
}

/// `xᵀ · y` of matrices.
fn transposed_times(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.matmul(y)
}

impl<'a> Chunk<'a> {
    pub fn new(masks: &'a Masks, rows: Rows, start: Tensor) -> Result<Self> {
        let (_, count, _) = rows.gate.dims3()?;
        let decay = rows.gate.squeeze(2)?.matmul(&masks.lower.t()?)?.exp()?.unsqueeze(2)?;
        let decays = masks.sums_between(&rows.gate)?.exp()?.broadcast_mul(&masks.lower)?;
        let rest = decays.narrow(1, count - 1, 1)?.transpose(1, 2)?.contiguous()?;
        let whole = decay.narrow(1, count - 1, 1)?.contiguous()?;
        let keys = (times_transposed(&rows.key, &rows.key)? * &decays)?;
        let a = keys.broadcast_mul(&rows.beta)?.broadcast_mul(&masks.strict)?;
        let inverse = masks.inverse(&a)?;
        let p = (times_transposed(&rows.query, &rows.key)? * &decays)?;
        let read = rows.key.matmul(&start)?;
        let errors = (&rows.value - read.broadcast_mul(&decay)?)?;
        let u = inverse.matmul(&errors.broadcast_mul(&rows.beta)?)?;
        Ok(Self { masks, rows, start, decay, rest, whole, decays, keys, a, inverse, p, read, errors, u })
    }

    /// `[heads, rows, value dim]`
    pub fn out(&self) -> Result<Tensor> {
        let carried = self.rows.query.matmul(&self.start)?.broadcast_mul(&self.decay)?;
        carried + self.p.matmul(&self.u)?
    }

    /// The state at its end.
    pub fn end(&self) -> Result<Tensor> {
        let kept = self.start.broadcast_mul(&self.whole)?;
        kept + transposed_times(&self.rows.key.broadcast_mul(&self.rest)?, &self.u)?
    }

    /// Gradients of the rows and of the state at the start, from those of the output and of the state at the end.
    pub fn backward(&self, dout: &Tensor, dend: &Tensor) -> Result<(Rows, Tensor)> {
        let Rows { query, key, beta, .. } = &self.rows;
        let folded = key.matmul(dend)?;
        let du = (transposed_times(&self.p, dout)? + folded.broadcast_mul(&self.rest)?)?;
        let w = transposed_times(&self.inverse, &du)?;
        let dvalue = w.broadcast_mul(beta)?;
        let dp = times_transposed(dout, &self.u)?.broadcast_mul(&self.masks.lower)?;
        let da = times_transposed(&w, &self.u)?.broadcast_mul(&self.masks.strict)?.neg()?;
        let dbeta = ((&w * &self.errors)?.sum_keepdim(2)? + (&da * &self.keys)?.sum_keepdim(2)?)?;

        let of_queries = (&dp * &self.decays)?;
        let of_keys = (da.broadcast_mul(beta)? * &self.decays)?;
        let (dread, dcarried) = (dvalue.broadcast_mul(&self.decay)?, dout.broadcast_mul(&self.decay)?);
        let dquery = (times_transposed(&dcarried, &self.start)? + of_queries.matmul(key)?)?;
        let both = (&of_keys + of_keys.transpose(1, 2)?)?;
        let dkey = (transposed_times(&of_queries, query)? + both.matmul(key)?)?;
        let dkey = (dkey - times_transposed(&dread, &self.start)?)?;
        let dkey = (dkey + times_transposed(&self.u, dend)?.broadcast_mul(&self.rest)?)?;
        let dstart = (dend.broadcast_mul(&self.whole)? + transposed_times(query, &dcarried)?)?;
        let dstart = (dstart - transposed_times(key, &dread)?)?;

        // From D, e^G, e^{G_C − G} and e^{G_C}.
        let pairs = ((dp * &self.p)? + (da * &self.a)?)?;
        let between = self.masks.sums_between_backward(&pairs)?;
        let carried = (dcarried * query.matmul(&self.start)?)?;
        let own = (carried - (dread * &self.read)?)?.sum(2)?.matmul(&self.masks.lower)?;
        let folded = ((folded * &self.u)?.sum_keepdim(2)? * &self.rest)?.squeeze(2)?;
        let folded = folded.matmul(&self.masks.strict.t()?)?;
        let kept = ((dend * &self.start)?.sum_keepdim((1, 2))? * &self.whole)?.squeeze(2)?;
        let dgate = ((between + own)? + folded)?.broadcast_add(&kept)?.unsqueeze(2)?;
        Ok((Rows { query: dquery, key: dkey, value: dvalue, beta: dbeta, gate: dgate }, dstart))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ops::read;

    #[test]
    fn a_triangle_of_ones_has_an_exact_inverse() {
        // Equal keys without decay: the powers of this matrix have entries beyond 1e17.
        for rows in [1, 2, 64] {
            let masks = Masks::new(rows, &Device::Cpu).unwrap();
            let inverse = masks.inverse(&masks.strict.unsqueeze(0).unwrap()).unwrap();
            let expected = |at: usize| match (at / rows).checked_sub(at % rows) {
                Some(0) => 1.0,
                Some(1) => -1.0,
                _ => 0.0,
            };
            assert_eq!(read(&inverse).unwrap(), (0..rows * rows).map(expected).collect::<Vec<f32>>());
        }
    }
}
