//! Forward, backward and update over token trees.
//!
//! The microbatches of a step are shared out among threads; their gradients are added in the order of the
//! microbatches, so the result is the same bits on any number of threads.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use candle_core::Tensor;

use super::{EngineError, Optimizer, Rule};
use crate::model::{Decoder, Gradients, Parameter, Saved, TokenTree, kernels, ops};

/// Rows whose logits are held at once: `[rows, vocabulary]` is never larger than this.
const LOGIT_ROWS: usize = 256;

/// Sequences as a tree, and the next-token predictions the loss is taken on.
#[derive(Debug, Clone, Default)]
pub struct Microbatch {
    pub tree: TokenTree,
    /// (row that predicts, token predicted), each pair once, ascending.
    pub targets: Vec<(usize, u32)>,
}

impl Microbatch {
    /// Of these sequences, predictions of the tokens where `trained` is true (never the first).
    ///
    /// Also gives, per sequence, the target index of each trained token in order.
    pub fn new<S: AsRef<[u32]>, T: AsRef<[bool]>>(sequences: &[(S, T)]) -> (Self, Vec<Vec<usize>>) {
        let tokens: Vec<&[u32]> = sequences.iter().map(|(tokens, _)| tokens.as_ref()).collect();
        let tree = TokenTree::new(&tokens);
        let wanted: Vec<Vec<(usize, u32)>> = sequences
            .iter()
            .zip(&tree.paths)
            .map(|((tokens, trained), path)| {
                let trained = trained.as_ref().iter().enumerate().skip(1).filter(|(_, trained)| **trained);
                trained.map(|(at, _)| (path[at - 1], tokens.as_ref()[at])).collect()
            })
            .collect();
        let mut targets: Vec<(usize, u32)> = wanted.iter().flatten().copied().collect();
        targets.sort_unstable();
        targets.dedup();
        let index = |target| targets.binary_search(target).expect("targets hold every wanted pair");
        let indices = wanted.iter().map(|wanted| wanted.iter().map(index).collect()).collect();
        (Self { tree, targets }, indices)
    }
}

/// Calls `layer` for every layer of the decoder over a microbatch, and gives the last one's output.
fn forward(
    decoder: &Decoder,
    tree: &TokenTree,
    layout: &ops::TreeLayout<'_>,
    mut keep: impl FnMut(Saved),
) -> Result<Tensor, EngineError> {
    let mut x = decoder.embed(&tree.tokens, &tree.positions)?;
    for index in 0..decoder.config.layers {
        let layer = decoder.layer(index, x, &tree.positions, |q, k, v| layout.attend(q, k, v))?;
        x = layer.output.clone();
        keep(layer);
    }
    Ok(x)
}

/// Runs `work` with the microbatch's rows laid out for attention.
fn with_layout<T>(decoder: &Decoder, tree: &TokenTree, work: impl FnOnce(&ops::TreeLayout<'_>) -> T) -> T {
    let segments: Vec<_> =
        tree.segments.iter().map(|s| (s.rows.clone(), s.subtree.clone(), s.first)).collect();
    work(&ops::TreeLayout { positions: &tree.positions, segments: &segments, heads: decoder.config.heads })
}

/// Runs a microbatch forward and backward, adding to `gradients`; gives the log-probability of each target.
///
/// `slope(target, log p)` is the derivative of the loss by that log-probability.
fn forward_backward(
    decoder: &Decoder,
    batch: &Microbatch,
    slope: &dyn Fn(usize, f32) -> f32,
    gradients: &Gradients,
) -> Result<Vec<f32>, EngineError> {
    let tree = &batch.tree;
    with_layout(decoder, tree, |layout| {
        let mut saved = Vec::with_capacity(decoder.config.layers);
        let x = forward(decoder, tree, layout, |layer| saved.push(layer))?;
        let dx = x.zeros_like()?;
        let logprobs = predictions(decoder, batch, &x, |rows, picked, normed, logits, first| {
            slopes(batch, rows, logits, first, slope)?;
            let back = decoder.logits_backward(picked, normed, logits, gradients)?;
            let (back, width) = (ops::values(&back)?, decoder.config.hidden);
            ops::update(&dx, |dx| {
                for (row, back) in rows.iter().zip(back.chunks_exact(width)) {
                    dx[row * width..][..width].copy_from_slice(back);
                }
            })?;
            Ok(())
        })?;
        drop(x);
        while let Some(layer) = saved.pop() {
            decoder.layer_backward(saved.len(), &layer, layout, &dx, gradients)?;
        }
        ops::embed_backward(&tree.tokens, &dx, decoder.embedding.slot, gradients)?;
        Ok(logprobs)
    })
}

/// The log-probability of each target, a block of rows at a time.
///
/// `then` is given each block's rows, their hidden states before and after the norm, their logits, and the index of
/// their first target; it may overwrite the logits.
fn predictions(
    decoder: &Decoder,
    batch: &Microbatch,
    x: &Tensor,
    mut then: impl FnMut(&[usize], &Tensor, &Tensor, &Tensor, usize) -> Result<(), EngineError>,
) -> Result<Vec<f32>, EngineError> {
    let mut rows: Vec<usize> = batch.targets.iter().map(|(row, _)| *row).collect();
    rows.dedup();
    let mut logprobs = Vec::with_capacity(batch.targets.len());
    for rows in rows.chunks(LOGIT_ROWS) {
        let picked = ops::gather(x, rows)?;
        let (normed, logits) = decoder.logits(&picked)?;
        let first = logprobs.len();
        {
            let values = ops::values(&logits)?;
            for (row, logits) in rows.iter().zip(values.chunks_exact(decoder.config.vocabulary)) {
                let total = kernels::log_sum_exp(logits);
                while let Some((_, token)) = batch.targets.get(logprobs.len()).filter(|(of, _)| of == row) {
                    logprobs.push(logits[*token as usize] - total);
                }
            }
        }
        then(rows, &picked, &normed, &logits, first)?;
    }
    Ok(logprobs)
}

/// Turns the logits of a block into the loss's derivatives by them: Σ slope · (1\[token\] − p).
fn slopes(
    batch: &Microbatch,
    rows: &[usize],
    logits: &Tensor,
    first: usize,
    slope: &dyn Fn(usize, f32) -> f32,
) -> Result<(), EngineError> {
    let (_, vocabulary) = logits.dims2()?;
    let (mut target, mut probabilities, mut pushes) = (first, vec![0.0; vocabulary], Vec::new());
    ops::update(logits, |logits| {
        for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocabulary)) {
            let total = kernels::log_sum_exp_exps(logits, &mut probabilities);
            pushes.clear();
            while let Some((_, token)) = batch.targets.get(target).filter(|(of, _)| of == row) {
                pushes.push((*token as usize, slope(target, logits[*token as usize] - total)));
                target += 1;
            }
            let sum: f32 = pushes.iter().map(|(_, slope)| slope).sum();
            for (logit, probability) in logits.iter_mut().zip(&probabilities) {
                *logit = -sum * probability;
            }
            for (token, slope) in &pushes {
                logits[*token] += slope;
            }
        }
    })?;
    Ok(())
}

/// What one optimiser step did.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Per microbatch, the log-probability of each target before the update.
    pub logprobs: Vec<Vec<f32>>,
}

/// A decoder being trained.
pub struct Trainer {
    pub decoder: Decoder,
    optimizer: Optimizer,
    threads: usize,
}

impl Trainer {
    /// The optimizer has one rule per trained parameter of the decoder.
    pub fn new(
        mut decoder: Decoder,
        rules: impl FnOnce(&[Parameter<'_>]) -> Vec<Rule>,
        threads: usize,
    ) -> Self {
        let rules = rules(&decoder.trained());
        Self { decoder, optimizer: Optimizer::new(rules), threads }
    }

    pub fn optimizer(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Does `work` for every microbatch, shared out among the threads; results in the order of the microbatches.
    fn each<T: Send>(
        &self,
        batches: &[Microbatch],
        work: impl Fn(usize, &Microbatch) -> Result<T, EngineError> + Sync,
    ) -> Result<Vec<T>, EngineError> {
        let next = AtomicUsize::new(0);
        let done = Mutex::new(batches.iter().map(|_| None).collect::<Vec<_>>());
        let run = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(batch) = batches.get(index) else { return };
                let result = work(index, batch);
                done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(batches.len()) {
                scope.spawn(run);
            }
            run();
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
    }

    /// The log-probability of every target, without gradients.
    pub fn score(&self, batches: &[Microbatch]) -> Result<Vec<Vec<f32>>, EngineError> {
        self.each(batches, |_, batch| {
            with_layout(&self.decoder, &batch.tree, |layout| {
                let x = forward(&self.decoder, &batch.tree, layout, drop)?;
                predictions(&self.decoder, batch, &x, |_, _, _, _, _| Ok(()))
            })
        })
    }

    /// Gradients of all microbatches and the log-probabilities of their targets, without an update.
    ///
    /// `slope(microbatch, target, log p)` is the derivative of the loss by that log-probability.
    pub fn gradients(
        &mut self,
        batches: &[Microbatch],
        slope: &(dyn Fn(usize, usize, f32) -> f32 + Sync),
    ) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
        let shapes: Vec<Tensor> = self.decoder.trained().iter().map(|p| p.tensor().clone()).collect();
        let zeros = || {
            let slots = shapes.iter().map(Tensor::zeros_like).collect::<candle_core::Result<_>>()?;
            Ok::<_, EngineError>(Gradients { slots })
        };
        let results = self.each(batches, |index, batch| {
            let gradients = zeros()?;
            let logprobs =
                forward_backward(&self.decoder, batch, &|target, p| slope(index, target, p), &gradients)?;
            Ok((gradients, logprobs))
        })?;
        let total = zeros()?;
        let mut logprobs = Vec::with_capacity(batches.len());
        for (gradients, of) in results {
            total.merge(&gradients)?;
            logprobs.push(of);
        }
        Ok((total, logprobs))
    }

    /// One optimiser step over these microbatches, the gradient clipped to this norm.
    ///
    /// # Errors
    /// If the gradient is not finite; the parameters are then unchanged.
    pub fn step(
        &mut self,
        batches: &[Microbatch],
        slope: &(dyn Fn(usize, usize, f32) -> f32 + Sync),
        learning_rate: f64,
        max_norm: f64,
    ) -> Result<StepReport, EngineError> {
        let (gradients, logprobs) = self.gradients(batches, slope)?;
        let gradient_norm = gradients.norm()?;
        if !gradient_norm.is_finite() {
            return Err(EngineError::Diverged { what: "the gradient norm" });
        }
        let scale = if gradient_norm > max_norm { max_norm / (gradient_norm + 1e-6) } else { 1.0 };
        let mut parameters = self.decoder.trained();
        self.optimizer.step(
            &mut parameters,
            &gradients.slots,
            learning_rate as f32,
            scale as f32,
            self.threads,
        )?;
        Ok(StepReport { gradient_norm, logprobs })
    }
}
