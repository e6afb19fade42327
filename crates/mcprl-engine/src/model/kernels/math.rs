//! Row-wise kernels: normalisation, rotary embedding, gated activation, softmax.

use super::{LANES, multiversion};

/// e^x with a relative error under 2 ulp; 0 below −87.3, as for −∞.
///
/// Cody-Waite reduction and the degree-6 polynomial of Cephes' `expf`; branch-free, so that it vectorises.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.7);
    let rounded = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4f32;
    let p = p.mul_add(r, 1.398_199_9e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    // The low bits of `rounded` are those of `n`. A saturating conversion would not vectorise.
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x < -87.3 { 0.0 } else { value * scale }
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The lanes' sum, first to last.
#[inline(always)]
fn across(lanes: [f32; LANES]) -> f32 {
    let mut sum = lanes[0];
    for lane in &lanes[1..] {
        sum += lane;
    }
    sum
}

/// These values (at most 16) as whole lanes, padded with `fill`.
#[inline(always)]
fn padded(values: &[f32], fill: f32) -> [f32; LANES] {
    let mut lanes = [fill; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// Σ a·b·c over rows of one length, in a fixed order: lane by lane, then the lanes.
#[inline(always)]
fn sum_of_products(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (c, c_rest) = c.as_chunks::<LANES>();
    let count = a.len();
    let (b, c) = (&b[..count], &c[..count]);
    for at in 0..count {
        for i in 0..LANES {
            lanes[i] += a[at][i] * b[at][i] * c[at][i];
        }
    }
    let (a, b, c) = (padded(a_rest, 0.0), padded(b_rest, 0.0), padded(c_rest, 0.0));
    for i in 0..LANES {
        lanes[i] += a[i] * b[i] * c[i];
    }
    across(lanes)
}

/// Σ x² in the order of [`sum_of_products`].
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for i in 0..LANES {
            lanes[i] += x[i] * x[i];
        }
    }
    let rest = padded(rest, 0.0);
    for i in 0..LANES {
        lanes[i] += rest[i] * rest[i];
    }
    across(lanes)
}

#[inline(always)]
fn max_of(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    let rest = padded(rest, f32::NEG_INFINITY);
    for i in 0..LANES {
        lanes[i] = larger(lanes[i], rest[i]);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = larger(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Calls `set` with each value's lanes and their e^(x − max). Returns the sum of the latter: lane by lane,
/// then the lanes.
#[inline(always)]
fn exps(row: &[f32], max: f32, mut set: impl FnMut(usize, &[f32; LANES], usize)) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let mut add = |start: usize, values: &[f32; LANES], count: usize| {
        let mut powers = [0.0f32; LANES];
        for i in 0..LANES {
            powers[i] = exp(values[i] - max);
            lanes[i] += powers[i];
        }
        set(start, &powers, count);
    };
    let (whole, rest) = row.as_chunks::<LANES>();
    for (index, chunk) in whole.iter().enumerate() {
        add(index * LANES, chunk, LANES);
    }
    if !rest.is_empty() {
        add(whole.len() * LANES, &padded(rest, f32::NEG_INFINITY), rest.len());
    }
    across(lanes)
}

multiversion! {
    /// `into += from`.
    pub fn add_assign(into: &mut [f32], from: &[f32]) {
        let count = into.len().min(from.len());
        let (into, from) = (&mut into[..count], &from[..count]);
        for i in 0..count {
            into[i] += from[i];
        }
    }
}

multiversion! {
    /// RMS normalisation of rows of `weight.len()`: `out = x · weight / sqrt(mean(x²) + epsilon)`.
    pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
        let width = weight.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let scale = 1.0 / (sum_of_squares(x) / width as f32 + epsilon).sqrt();
            let (x, out) = (&x[..width], &mut out[..width]);
            for i in 0..width {
                out[i] = x[i] * scale * weight[i];
            }
        }
    }
}

multiversion! {
    /// Adds to `dx` the gradient of [`rms_norm`]'s input, and to `dweight` (if not empty) that of its weight.
    pub fn rms_norm_backward(x: &[f32], weight: &[f32], epsilon: f32, dy: &[f32], dx: &mut [f32], dweight: &mut [f32]) {
        let width = weight.len();
        for ((x, dy), dx) in x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)) {
            let (x, dy, dx) = (&x[..width], &dy[..width], &mut dx[..width]);
            let scale = 1.0 / (sum_of_squares(x) / width as f32 + epsilon).sqrt();
            let along = sum_of_products(dy, weight, x) * scale * scale * scale / width as f32;
            for i in 0..width {
                dx[i] += dy[i] * weight[i] * scale - x[i] * along;
            }
            if !dweight.is_empty() {
                let dweight = &mut dweight[..width];
                for i in 0..width {
                    dweight[i] += dy[i] * x[i] * scale;
                }
            }
        }
    }
}

multiversion! {
    /// Rotary position embedding in place over `[tokens, heads, head]`. Rotates the pairs `(i, i + half)` and
    /// leaves the values of a head beyond `2·half`. `dims` is head and half.
    ///
    /// `cos`, `sin`: `[positions, half]`. `sign` is 1 forward and −1 for the gradient (the inverse rotation).
    pub fn rope(
        x: &mut [f32],
        heads: usize,
        dims: (usize, usize),
        positions: &[u32],
        cos: &[f32],
        sin: &[f32],
        sign: f32,
    ) {
        let (head, half) = dims;
        for (token, position) in x.chunks_exact_mut(heads * head).zip(positions) {
            let at = *position as usize * half;
            let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
            for head in token.chunks_exact_mut(head) {
                let (low, high) = head.split_at_mut(half);
                let (low, high) = (&mut low[..half], &mut high[..half]);
                for i in 0..half {
                    let (a, b, s) = (low[i], high[i], sin[i] * sign);
                    low[i] = a * cos[i] - b * s;
                    high[i] = b * cos[i] + a * s;
                }
            }
        }
    }
}

multiversion! {
    /// `out = silu(gate) · up`.
    pub fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let count = gate.len().min(up.len()).min(out.len());
        let (gate, up, out) = (&gate[..count], &up[..count], &mut out[..count]);
        for i in 0..count {
            out[i] = gate[i] * sigmoid(gate[i]) * up[i];
        }
    }
}

multiversion! {
    /// Gradients of [`silu_mul`] with respect to `gate` and `up`.
    pub fn silu_mul_backward(gate: &[f32], up: &[f32], dout: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let count = gate.len().min(up.len()).min(dout.len()).min(dgate.len()).min(dup.len());
        let (gate, up, dout) = (&gate[..count], &up[..count], &dout[..count]);
        let (dgate, dup) = (&mut dgate[..count], &mut dup[..count]);
        for i in 0..count {
            let s = sigmoid(gate[i]);
            dup[i] = dout[i] * gate[i] * s;
            dgate[i] = dout[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s));
        }
    }
}

/// The factor of the gate in its tanh-approximated GELU (Hendrycks and Gimpel 2016), and that factor's derivative by the gate:
/// `(1 + tanh u) / 2` is the sigmoid of `2u`, with `u = √(2/π)·(x + 0.044715·x³)`.
#[inline(always)]
fn gelu(x: f32) -> (f32, f32) {
    const SLOPE: f32 = 2.0 * 0.797_884_6;
    const CUBIC: f32 = 0.044_715;
    let s = sigmoid(SLOPE * x * (1.0 + CUBIC * x * x));
    (s, s * (1.0 - s) * SLOPE * (1.0 + 3.0 * CUBIC * x * x))
}

multiversion! {
    /// `out = gelu(gate) · up`.
    pub fn gelu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let count = gate.len().min(up.len()).min(out.len());
        let (gate, up, out) = (&gate[..count], &up[..count], &mut out[..count]);
        for i in 0..count {
            out[i] = gate[i] * gelu(gate[i]).0 * up[i];
        }
    }
}

multiversion! {
    /// Gradients of [`gelu_mul`] with respect to `gate` and `up`.
    pub fn gelu_mul_backward(gate: &[f32], up: &[f32], dout: &[f32], dgate: &mut [f32], dup: &mut [f32]) {
        let count = gate.len().min(up.len()).min(dout.len()).min(dgate.len()).min(dup.len());
        let (gate, up, dout) = (&gate[..count], &up[..count], &dout[..count]);
        let (dgate, dup) = (&mut dgate[..count], &mut dup[..count]);
        for i in 0..count {
            let (s, slope) = gelu(gate[i]);
            dup[i] = dout[i] * gate[i] * s;
            dgate[i] = dout[i] * up[i] * (s + gate[i] * slope);
        }
    }
}

multiversion! {
    /// `out = sigmoid(gate) · x`.
    pub fn sigmoid_mul(gate: &[f32], x: &[f32], out: &mut [f32]) {
        let count = gate.len().min(x.len()).min(out.len());
        let (gate, x, out) = (&gate[..count], &x[..count], &mut out[..count]);
        for i in 0..count {
            out[i] = sigmoid(gate[i]) * x[i];
        }
    }
}

multiversion! {
    /// Gradients of [`sigmoid_mul`] with respect to `gate` and `x`.
    pub fn sigmoid_mul_backward(gate: &[f32], x: &[f32], dout: &[f32], dgate: &mut [f32], dx: &mut [f32]) {
        let count = gate.len().min(x.len()).min(dout.len()).min(dgate.len()).min(dx.len());
        let (gate, x, dout) = (&gate[..count], &x[..count], &dout[..count]);
        let (dgate, dx) = (&mut dgate[..count], &mut dx[..count]);
        for i in 0..count {
            let s = sigmoid(gate[i]);
            dx[i] = dout[i] * s;
            dgate[i] = dout[i] * x[i] * s * (1.0 - s);
        }
    }
}

multiversion! {
    /// Softmax of one row in place. Entries of −∞ become 0.
    pub fn softmax(row: &mut [f32]) {
        let max = max_of(row);
        let (whole, rest) = row.as_chunks_mut::<LANES>();
        let mut lanes = [0.0f32; LANES];
        let mut add = |chunk: &mut [f32; LANES]| {
            for i in 0..LANES {
                chunk[i] = exp(chunk[i] - max);
                lanes[i] += chunk[i];
            }
        };
        for chunk in whole {
            add(chunk);
        }
        let mut last = padded(rest, f32::NEG_INFINITY);
        add(&mut last);
        rest.copy_from_slice(&last[..rest.len()]);
        let scale = 1.0 / across(lanes);
        for value in row {
            *value *= scale;
        }
    }
}

multiversion! {
    /// log Σ e^x of one row.
    pub fn log_sum_exp(row: &[f32]) -> f32 {
        let max = max_of(row);
        max + exps(row, max, |_, _, _| {}).ln()
    }
}

multiversion! {
    /// [`log_sum_exp`], with `probabilities` set to the softmax of the row.
    pub fn log_sum_exp_exps(row: &[f32], probabilities: &mut [f32]) -> f32 {
        let max = max_of(row);
        let sum = exps(row, max, |start, powers, count| {
            probabilities[start..start + count].copy_from_slice(&powers[..count]);
        });
        let scale = 1.0 / sum;
        for probability in probabilities {
            *probability *= scale;
        }
        max + sum.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_and_vanishes_for_masked_scores() {
        for i in -8700..8800 {
            let x = i as f32 / 100.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got / want - 1.0).abs() < 2.4e-7, "exp({x}) = {got}, expected {want}");
        }
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-100.0), 0.0);
    }

    #[test]
    fn a_masked_tail_changes_no_bit_of_a_softmax() {
        let scores: Vec<f32> = (0..21).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut padded = scores.clone();
        padded.resize(64, f32::NEG_INFINITY);
        let mut plain = scores;
        softmax(&mut plain);
        softmax(&mut padded);
        assert_eq!(plain[..], padded[..21]);
        assert!(padded[21..].iter().all(|p| *p == 0.0));
    }

    #[test]
    fn both_forms_of_log_sum_exp_give_the_same_bits() {
        for length in [1, 15, 16, 17, 90, 1024, 3001] {
            let row: Vec<f32> = (0..length).map(|i| (i as f32 * 1.3).cos() * 9.0).collect();
            let mut probabilities = vec![0.0; row.len()];
            let total = log_sum_exp_exps(&row, &mut probabilities);
            assert_eq!(total.to_bits(), log_sum_exp(&row).to_bits(), "{length} values");
            assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }
}
