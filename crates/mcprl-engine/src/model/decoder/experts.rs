//! A mixture of experts: a router chooses a few feed-forwards for each token (Shazeer et al. 2017).
//!
//! The tokens of an expert are gathered, so each expert is one product per matrix. A token's experts are
//! added in ascending order, so its result does not depend on the other tokens.

use candle_core::{Result, Tensor, bail};

use super::projection::{project, project_backward};
use crate::model::{
    Experts, Gradients, Linear, kernels,
    ops::{self, Activation, filled},
};

/// What the forward keeps for the backward.
pub struct Routed {
    /// `[tokens, experts]`
    probabilities: Vec<f32>,
    low: Option<Tensor>,
    passes: Vec<ExpertBatch>,
}

/// The tokens of one expert.
struct ExpertBatch {
    expert: usize,
    rows: Vec<usize>,
    /// Per row, the share of this expert in the token's result.
    weights: Vec<f32>,
    /// Per row, the divisor of its token's weights: a probability, or 1 if they are not normalised.
    totals: Vec<f32>,
    input: Tensor,
    gate: Tensor,
    up: Tensor,
    active: Tensor,
    output: Tensor,
    low: Vec<Option<Tensor>>,
}

/// The linear layers of an expert: gate and up, and down.
fn of_expert(linears: &[Linear], count: usize, expert: usize) -> Result<(&[Linear], &Linear)> {
    let each = linears.len() / count;
    match &linears[expert * each..][..each] {
        [into @ .., down] => Ok((into, down)),
        [] => bail!("an expert without linear layers"),
    }
}

/// The most probable experts, most probable first. Of equals, the first.
fn choose(probabilities: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
    order.truncate(count);
    order
}

/// `residual` plus the experts' result on `x`, both `[tokens, hidden]`. `linears`: the router, then each
/// expert's.
pub fn forward(
    experts: Experts,
    linears: &[Linear],
    x: &Tensor,
    residual: &Tensor,
) -> Result<(Tensor, Routed)> {
    let Some((router, linears)) = linears.split_first() else { bail!("a mixture without a router") };
    let (logits, low) = router.forward(x, None)?;
    let mut probabilities = ops::read(&logits)?;
    // Per expert: rows, weights and totals.
    let mut chosen = vec![(Vec::new(), Vec::new(), Vec::new()); experts.count];
    for (row, probabilities) in probabilities.chunks_exact_mut(experts.count).enumerate() {
        kernels::softmax(probabilities);
        let choice = choose(probabilities, experts.per_token);
        let total = match experts.normalised {
            true => choice.iter().map(|expert| probabilities[*expert]).sum(),
            false => 1.0,
        };
        for expert in choice {
            let (rows, weights, totals) = &mut chosen[expert];
            rows.push(row);
            weights.push(probabilities[expert] / total);
            totals.push(total);
        }
    }
    let sum = residual.copy()?;
    let mut passes = Vec::new();
    for (expert, (rows, weights, totals)) in chosen.into_iter().enumerate() {
        if rows.is_empty() {
            continue;
        }
        let (into, down) = of_expert(linears, experts.count, expert)?;
        let mut low = Vec::new();
        let input = ops::gather(x, &rows)?;
        let wide = down.weight.inputs();
        let [gate, up] = project(into, &input, [wide, wide], &mut low)?;
        let active = ops::gated(Activation::Silu, &gate, &up)?;
        let (output, kept) = down.forward(&active, None)?;
        low.push(kept);
        ops::add_rows(&sum, &rows, Some(&weights), &output)?;
        passes.push(ExpertBatch { expert, rows, weights, totals, input, gate, up, active, output, low });
    }
    Ok((sum, Routed { probabilities, low, passes }))
}

/// Adds the gradient of `x` to `dx`, given `x` and the gradient of the result.
pub fn backward(
    experts: Option<Experts>,
    linears: &[Linear],
    routed: &Routed,
    (x, dy): (&Tensor, &Tensor),
    dx: &Tensor,
    gradients: &Gradients,
) -> Result<()> {
    let (Some(experts), Some((router, linears))) = (experts, linears.split_first()) else {
        bail!("a mixture without a router")
    };
    let (tokens, _) = x.dims2()?;
    // Gradient by the probability of each expert: d loss / d weight, then the term from the division by the
    // total.
    let mut dprobabilities = vec![0.0; routed.probabilities.len()];
    let mut along = vec![0.0; tokens];
    for pass in &routed.passes {
        let doutput = ops::gather(dy, &pass.rows)?;
        let dweights = ops::dot_and_scale_rows(&doutput, &pass.output, &pass.weights)?;
        for (index, (row, dweight)) in pass.rows.iter().zip(dweights).enumerate() {
            dprobabilities[row * experts.count + pass.expert] = dweight / pass.totals[index];
            if experts.normalised {
                along[*row] += dweight * pass.weights[index] / pass.totals[index];
            }
        }
        let (into, down) = of_expert(linears, experts.count, pass.expert)?;
        let dactive = pass.active.zeros_like()?;
        down.backward(&pass.active, pass.low[into.len()].as_ref(), &doutput, &dactive, gradients)?;
        let (dgate, dup) = ops::gated_backward(Activation::Silu, &pass.gate, &pass.up, &dactive)?;
        let dinput = pass.input.zeros_like()?;
        project_backward(into, &pass.input, &pass.low, &[&dgate, &dup], &dinput, gradients)?;
        ops::add_rows(dx, &pass.rows, None, &dinput)?;
    }
    for pass in &routed.passes {
        for row in &pass.rows {
            dprobabilities[row * experts.count + pass.expert] -= along[*row];
        }
    }
    let dlogits = filled(tokens, experts.count, |dlogits| {
        let rows =
            routed.probabilities.chunks_exact(experts.count).zip(dprobabilities.chunks_exact(experts.count));
        for ((p, dp), dlogits) in rows.zip(dlogits.chunks_exact_mut(experts.count)) {
            let mean: f32 = p.iter().zip(dp).map(|(p, dp)| p * dp).sum();
            for ((dlogit, p), dp) in dlogits.iter_mut().zip(p).zip(dp) {
                *dlogit = p * (dp - mean);
            }
        }
    })?;
    let dlogits = dlogits.to_device(x.device())?;
    router.backward(x, routed.low.as_ref(), &dlogits, dx, gradients)
}
