//! Forward and backward over one microbatch.
//!
//! Logits are computed for a block of rows at a time, never for all tokens. Activations are kept for the backward
//! pass or recomputed from each layer's input, with the same bits either way.

use candle_core::Tensor;

use super::{EngineError, Microbatch, size::logit_rows};
use crate::model::{
    Decoder, Gradients, Saved, TokenTree, kernels,
    ops::{self, TreeLayout, composed},
};

/// A tree's layouts, one on each device of a decoder.
struct Layouts<'a>(Vec<TreeLayout<'a>>);

impl<'a> Layouts<'a> {
    fn new(decoder: &Decoder, tree: &'a TokenTree) -> Self {
        Self(decoder.placement().each(|layer| TreeLayout::new(tree, decoder.kv_format(layer))))
    }

    /// That of a layer's device.
    fn of(&self, decoder: &Decoder, layer: usize) -> &TreeLayout<'a> {
        &self.0[decoder.placement().index(layer)]
    }
}

/// Calls `keep` with the input of every layer of the decoder over a microbatch and what the layer computed. Returns the output
/// of the last layer, where the logits are computed.
fn forward(
    decoder: &Decoder,
    tree: &TokenTree,
    layouts: &Layouts<'_>,
    mut keep: impl FnMut(usize, Tensor, Saved),
) -> Result<Tensor, EngineError> {
    let mut x = decoder.embed(&tree.tokens, &tree.positions)?;
    for index in 0..decoder.config.layers {
        let layout = layouts.of(decoder, index);
        let input = x.clone();
        let layer = decoder.layer(index, x, &layout.positions, &mut &*layout)?;
        x = layer.output.clone();
        keep(index, input, layer);
    }
    Ok(ops::move_to(&x, decoder.device())?)
}

/// What a layer's forward keeps for its backward.
enum SavedActivations {
    All(Box<Saved>),
    /// The layer's input, `[tokens, hidden]`. The rest is recomputed.
    Input(Tensor),
}

/// Runs a microbatch forward and backward, adding to `gradients`. Returns the log-probability of each target.
///
/// `dloss_dlogp(target, log p)` is the derivative of the loss with respect to that log-probability.
pub fn forward_backward(
    decoder: &Decoder,
    batch: &Microbatch,
    recompute: bool,
    dloss_dlogp: &dyn Fn(usize, f32) -> f32,
    gradients: &Gradients,
) -> Result<Vec<f32>, EngineError> {
    let tree = &batch.tree;
    let layouts = &Layouts::new(decoder, tree);
    let mut kept = Vec::with_capacity(decoder.config.layers);
    // The last layer's backward runs first, so dropping its activations saves nothing, except for its
    // feed-forward.
    let last = decoder.config.layers - 1;
    let x = forward(decoder, tree, layouts, |index, input, mut saved| {
        if recompute && decoder.by_kernels() {
            saved.drop_feed_forward();
        }
        kept.push(if recompute && index < last {
            SavedActivations::Input(input)
        } else {
            SavedActivations::All(Box::new(saved))
        });
    })?;
    let mut dx = x.zeros_like()?;
    let logprobs = predictions(decoder, batch, &x, |rows, picked, normed, logits, (first, found)| {
        logit_gradients(batch, rows, logits, (first, found), dloss_dlogp)?;
        let back = decoder.logits_backward(picked, normed, logits, gradients)?;
        Ok(ops::set_rows(&dx, rows, &back)?)
    })?;
    drop(x);
    while let Some(layer) = kept.pop() {
        let index = kept.len();
        let layout = layouts.of(decoder, index);
        dx = ops::move_to(&dx, decoder.placement().device(index))?;
        let saved = match layer {
            SavedActivations::All(saved) => *saved,
            SavedActivations::Input(x) => {
                decoder.recompute_layer(index, x, &layout.positions, &mut &*layout)?
            }
        };
        decoder.layer_backward(index, saved, layout, &dx, gradients)?;
    }
    let dx = ops::move_to(&dx, decoder.device())?;
    decoder.embed_backward(&tree.tokens, &dx, gradients)?;
    Ok(logprobs)
}

/// The log-probability of each target, a block of rows at a time.
///
/// `then` receives each block's rows, their hidden states before and after the norm, their logits, the index of their
/// first target, and the log-probabilities of their targets. It may overwrite the logits.
fn predictions(
    decoder: &Decoder,
    batch: &Microbatch,
    x: &Tensor,
    mut then: impl FnMut(&[usize], &Tensor, &Tensor, &Tensor, (usize, &[f32])) -> Result<(), EngineError>,
) -> Result<Vec<f32>, EngineError> {
    let mut rows: Vec<usize> = batch.targets.iter().map(|(row, _)| *row).collect();
    rows.dedup();
    let mut logprobs = Vec::with_capacity(batch.targets.len());
    for rows in rows.chunks(logit_rows(&decoder.config, decoder.by_kernels())) {
        let picked = ops::gather(x, rows)?;
        let (normed, logits) = decoder.logits(&picked)?;
        let first = logprobs.len();
        let tokens = tokens_of(batch, rows, first);
        if !ops::by_kernels(&logits) {
            logprobs.extend(composed::log_probabilities(&logits, &tokens)?.into_iter().flatten());
        } else {
            let values = ops::values(&logits)?;
            for (tokens, logits) in tokens.iter().zip(values.chunks_exact(decoder.config.vocabulary)) {
                let total = kernels::log_sum_exp(logits);
                logprobs.extend(tokens.iter().map(|token| logits[*token as usize] - total));
            }
        }
        then(rows, &picked, &normed, &logits, (first, &logprobs[first..]))?;
    }
    Ok(logprobs)
}

/// The tokens that each of these rows predicts. `first` is the index of their first target.
fn tokens_of(batch: &Microbatch, rows: &[usize], first: usize) -> Vec<Vec<u32>> {
    let mut targets = batch.targets[first..].iter().peekable();
    let mut of = |row: &usize| {
        let mut tokens = Vec::new();
        while let Some((_, token)) = targets.next_if(|(of, _)| of == row) {
            tokens.push(*token);
        }
        tokens
    };
    rows.iter().map(&mut of).collect()
}

/// Turns the logits of a block into the gradient of the loss: Σ dloss_dlogp · (1\[token\] − p). `found` are the
/// log-probabilities of its targets, from `first` on.
fn logit_gradients(
    batch: &Microbatch,
    rows: &[usize],
    logits: &Tensor,
    (first, found): (usize, &[f32]),
    dloss_dlogp: &dyn Fn(usize, f32) -> f32,
) -> Result<(), EngineError> {
    let tokens = tokens_of(batch, rows, first);
    if !ops::by_kernels(logits) {
        let mut targets = (first..).zip(found);
        let mut of = |tokens: &Vec<u32>| -> Vec<f32> {
            targets.by_ref().take(tokens.len()).map(|(target, p)| dloss_dlogp(target, *p)).collect()
        };
        let logit_gradients: Vec<Vec<f32>> = tokens.iter().map(&mut of).collect();
        return Ok(composed::log_probabilities_backward(logits, &tokens, &logit_gradients)?);
    }
    let (_, vocabulary) = logits.dims2()?;
    let (mut targets, mut probabilities) = (first.., vec![0.0; vocabulary]);
    ops::update(logits, |logits| {
        for (tokens, logits) in tokens.iter().zip(logits.chunks_exact_mut(vocabulary)) {
            let total = kernels::log_sum_exp_exps(logits, &mut probabilities);
            let push = |(token, target): (&u32, usize)| {
                let token = *token as usize;
                (token, dloss_dlogp(target, logits[token] - total))
            };
            let pushes: Vec<(usize, f32)> = tokens.iter().zip(&mut targets).map(push).collect();
            let sum: f32 = pushes.iter().map(|(_, dloss_dlogp)| dloss_dlogp).sum();
            for (logit, probability) in logits.iter_mut().zip(&probabilities) {
                *logit = -sum * probability;
            }
            for (token, dloss_dlogp) in &pushes {
                logits[*token] += dloss_dlogp;
            }
        }
    })?;
    Ok(())
}

/// Logits at every position of a sequence, `[tokens, vocabulary]`, all in memory at once: for comparisons.
pub fn logits(decoder: &Decoder, tokens: &[u32]) -> Result<Tensor, EngineError> {
    let tree = TokenTree::new(&[tokens]);
    let x = forward(decoder, &tree, &Layouts::new(decoder, &tree), |_, _, saved| drop(saved))?;
    Ok(decoder.logits(&x)?.1)
}

/// The log-probability of every target of a microbatch.
pub fn scored(decoder: &Decoder, batch: &Microbatch) -> Result<Vec<f32>, EngineError> {
    let tree = &batch.tree;
    let x = forward(decoder, tree, &Layouts::new(decoder, tree), |_, _, saved| drop(saved))?;
    predictions(decoder, batch, &x, |_, _, _, _, _| Ok(()))
}
