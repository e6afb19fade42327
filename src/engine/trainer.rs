//! Forward, backward and update over token trees.
//!
//! Threads share the microbatches of a step. Their gradients are added in the order of the microbatches, so
//! the result has the same bits on any number of threads. Activations are kept for the backward pass or
//! recomputed from each layer's input ([`Recompute`]), with the same bits either way. Logits are computed for
//! a block of rows at a time, never for all tokens.

use std::{collections::BTreeMap, sync::Arc};

use candle_core::Tensor;

use super::{
    DeviceSet, DeviceSlot, EngineError, Footprint, Microbatch, ModelCache, Optimizer, Recompute, Rule,
    ThreadPlan, TrainingLoad,
    memory::{WHAT_IS_TRAINED, smaller},
    nccl::Link,
    optimizer::Resumed,
    reduce::{Reduction, Sets},
    replicas::{self, Rank, Replica},
};
use crate::model::{
    Adapter, AdapterSize, Decoder, Dropout, Gradients, ModelConfig, Parameter, Saved, TokenTree, kernels,
    kernels::Format,
    ops::{self, composed},
};

/// Most rows whose logits one thread stores at once, and most bytes of these logits.
const LOGIT_ROWS: usize = 256;
const LOGIT_BYTES: usize = 32 << 20;

/// Rows whose logits are in memory at once.
pub(super) fn logit_rows(config: &ModelConfig) -> usize {
    (LOGIT_BYTES / (config.vocabulary * size_of::<f32>())).clamp(1, LOGIT_ROWS)
}

/// Calls `layer` for every layer of the decoder over a microbatch. Returns the output of the last layer.
fn forward(
    decoder: &Decoder,
    tree: &TokenTree,
    layout: &ops::TreeLayout<'_>,
    mut keep: impl FnMut(usize, Tensor, Saved),
) -> Result<Tensor, EngineError> {
    let mut x = decoder.embed(&tree.tokens, &tree.positions)?;
    for index in 0..decoder.config.layers {
        let input = x.clone();
        let layer = decoder.layer(index, x, &tree.positions, |q, k, v| layout.attend(q, k, v))?;
        x = layer.output.clone();
        keep(index, input, layer);
    }
    Ok(x)
}

/// What a layer's forward keeps for its backward.
enum SavedActivations {
    Whole(Box<Saved>),
    /// The layer's input, `[tokens, hidden]`. The rest is recomputed.
    Input(Tensor),
}

/// Runs `work` with the attention layout of the microbatch's rows.
fn with_layout<T>(decoder: &Decoder, tree: &TokenTree, work: impl FnOnce(&ops::TreeLayout<'_>) -> T) -> T {
    let segments: Vec<_> =
        tree.segments.iter().map(|s| (s.rows.clone(), s.subtree.clone(), s.first)).collect();
    let ops::KvFormat { heads, format, .. } = decoder.holding();
    let layout = ops::TreeLayout::new(&tree.positions, &segments, heads, format);
    work(&ops::TreeLayout { mask: ops::AttentionMask::new(decoder.half()), ..layout })
}

/// Runs a microbatch forward and backward, adding to `gradients`. Returns the log-probability of each target.
///
/// `dloss_dlogp(target, log p)` is the derivative of the loss with respect to that log-probability.
fn forward_backward(
    decoder: &Decoder,
    batch: &Microbatch,
    recompute: bool,
    dloss_dlogp: &dyn Fn(usize, f32) -> f32,
    gradients: &Gradients,
) -> Result<Vec<f32>, EngineError> {
    let tree = &batch.tree;
    with_layout(decoder, tree, |layout| {
        let mut kept = Vec::with_capacity(decoder.config.layers);
        // The last layer's backward runs first, so dropping its activations saves nothing, except for its
        // feed-forward.
        let last = decoder.config.layers - 1;
        let x = forward(decoder, tree, layout, |index, input, mut saved| {
            if recompute && decoder.by_kernels() {
                saved.forget_feed();
            }
            kept.push(if recompute && index < last {
                SavedActivations::Input(input)
            } else {
                SavedActivations::Whole(Box::new(saved))
            });
        })?;
        let dx = x.zeros_like()?;
        let logprobs = predictions(decoder, batch, &x, |rows, picked, normed, logits, first| {
            logit_gradients(batch, rows, logits, first, dloss_dlogp)?;
            let back = decoder.logits_backward(picked, normed, logits, gradients)?;
            Ok(ops::set_rows(&dx, rows, &back)?)
        })?;
        drop(x);
        while let Some(layer) = kept.pop() {
            let index = kept.len();
            let saved = match layer {
                SavedActivations::Whole(saved) => *saved,
                SavedActivations::Input(x) => {
                    decoder.layer_again(index, x, &tree.positions, |q, k, v| layout.attend(q, k, v))?
                }
            };
            decoder.layer_backward(index, saved, layout, &dx, gradients)?;
        }
        ops::embed_backward(&tree.tokens, &dx, decoder.embedding.slot, gradients)?;
        Ok(logprobs)
    })
}

/// The log-probability of each target, a block of rows at a time.
///
/// `then` receives each block's rows, their hidden states before and after the norm, their logits, and the
/// index of their first target. It may overwrite the logits.
fn predictions(
    decoder: &Decoder,
    batch: &Microbatch,
    x: &Tensor,
    mut then: impl FnMut(&[usize], &Tensor, &Tensor, &Tensor, usize) -> Result<(), EngineError>,
) -> Result<Vec<f32>, EngineError> {
    let mut rows: Vec<usize> = batch.targets.iter().map(|(row, _)| *row).collect();
    rows.dedup();
    let mut logprobs = Vec::with_capacity(batch.targets.len());
    for rows in rows.chunks(logit_rows(&decoder.config)) {
        let picked = ops::gather(x, rows)?;
        let (normed, logits) = decoder.logits(&picked)?;
        let first = logprobs.len();
        if !ops::by_kernels(&logits) {
            let tokens = tokens_of(batch, rows, first);
            logprobs.extend(composed::log_probabilities(&logits, &tokens)?.into_iter().flatten());
        } else {
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

/// Turns the logits of a block into the gradient of the loss: Σ dloss_dlogp · (1\[token\] − p).
fn logit_gradients(
    batch: &Microbatch,
    rows: &[usize],
    logits: &Tensor,
    first: usize,
    dloss_dlogp: &dyn Fn(usize, f32) -> f32,
) -> Result<(), EngineError> {
    if !ops::by_kernels(logits) {
        let tokens = tokens_of(batch, rows, first);
        let logprobs = composed::log_probabilities(logits, &tokens)?;
        let mut target = first..;
        let mut of = |logprobs: Vec<f32>| -> Vec<f32> {
            logprobs.into_iter().zip(&mut target).map(|(p, target)| dloss_dlogp(target, p)).collect()
        };
        let logit_gradients: Vec<Vec<f32>> = logprobs.into_iter().map(&mut of).collect();
        return Ok(composed::log_probabilities_backward(logits, &tokens, &logit_gradients)?);
    }
    let (_, vocabulary) = logits.dims2()?;
    let (mut target, mut probabilities, mut pushes) = (first, vec![0.0; vocabulary], Vec::new());
    ops::update(logits, |logits| {
        for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocabulary)) {
            let total = kernels::log_sum_exp_exps(logits, &mut probabilities);
            pushes.clear();
            while let Some((_, token)) = batch.targets.get(target).filter(|(of, _)| of == row) {
                pushes.push((*token as usize, dloss_dlogp(target, logits[*token as usize] - total)));
                target += 1;
            }
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

/// The result of one optimiser step.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Per microbatch, the log-probability of each target before the update.
    pub logprobs: Vec<Vec<f32>>,
}

/// A decoder in training, on one device or several.
pub struct Trainer {
    /// The decoder of the first device, where the optimiser steps.
    pub decoder: Decoder,
    optimizer: Optimizer,
    /// Threads of all devices.
    threads: usize,
    crew: ThreadPlan,
    /// Replicas on the other devices. Between steps their parameters equal the first decoder's.
    pub(super) others: Vec<Replica>,
    link: Option<Link>,
    pub recompute: Recompute,
    /// Evicts models for a step that needs their memory.
    bases: Option<Arc<ModelCache>>,
    /// Bytes besides the weights for which memory was found sufficient.
    fitting: usize,
    /// Rate and seed of the adapters' dropout in [`Self::gradients`] and [`Self::step`]. Scoring uses no
    /// dropout.
    pub dropout: Option<(f64, u64)>,
}

impl Trainer {
    /// Trains on one CPU device. The optimizer has one rule per trained parameter of the decoder.
    pub fn new(
        mut decoder: Decoder,
        rules: impl FnOnce(&[Parameter<'_>]) -> Vec<Rule>,
        threads: usize,
    ) -> Self {
        let optimizer = Optimizer::new(rules(&decoder.trained()));
        let crew = ThreadPlan::new(&decoder, threads);
        Self {
            decoder,
            optimizer,
            threads,
            crew,
            others: Vec::new(),
            link: None,
            recompute: Recompute::Auto,
            bases: None,
            fitting: 0,
            dropout: None,
        }
    }

    /// Trains on these devices. The decoder is on the first.
    pub fn across(
        decoder: Decoder,
        rules: impl FnOnce(&[Parameter<'_>]) -> Vec<Rule>,
        places: &DeviceSet,
    ) -> Result<Self, EngineError> {
        let mut trainer = Self::new(decoder, rules, places.first.threads);
        // Copied after the parameters are numbered.
        trainer.others = Replica::of(&trainer.decoder, &places.others)?;
        trainer.threads = places.threads();
        trainer.bases.clone_from(&places.bases);
        let devices = places.others.iter().map(|place: &DeviceSlot| &place.device);
        let devices: Vec<_> = std::iter::once(&places.first.device).chain(devices).collect();
        trainer.link = Link::between(&devices)?;
        Ok(trainer)
    }

    /// The first decoder and its copies.
    fn members(&self) -> Vec<Rank<'_>> {
        let first = Rank { decoder: &self.decoder, crew: &self.crew };
        std::iter::once(first).chain(self.others.iter().map(Replica::member)).collect()
    }

    /// Number of devices that share a step.
    pub fn devices(&self) -> usize {
        1 + self.others.len()
    }

    /// Number of microbatches that run at once.
    pub fn workers(&self) -> usize {
        self.members().iter().map(|member| member.crew.workers()).sum()
    }

    /// Microbatches whose activations are in the same memory at once.
    fn neighbours(&self, batches: &[Microbatch]) -> usize {
        match self.decoder.by_kernels() {
            true => self.workers().min(batches.len()).max(1),
            false => 1,
        }
    }

    /// Whether activations of these microbatches are recomputed.
    pub fn recomputes(&self, batches: &[Microbatch]) -> bool {
        self.recompute.decide(&self.decoder, Microbatch::most_rows(batches) * self.neighbours(batches))
    }

    pub fn optimizer(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Restores only the optimiser's saved state.
    pub fn resume_optimizer(&mut self, named: &BTreeMap<String, Tensor>) -> Result<Resumed, EngineError> {
        let parameters = self.decoder.trained();
        let values: Vec<usize> = parameters.iter().map(|parameter| parameter.tensor().elem_count()).collect();
        self.optimizer.resume(named, &values)
    }

    /// Trained parameters and the optimiser's state, as named tensors. They are copies, because steps change
    /// parameters in place.
    pub fn state(&mut self) -> Result<BTreeMap<String, Tensor>, EngineError> {
        let mut named = self.optimizer.state()?;
        for (index, parameter) in self.decoder.trained().iter().enumerate() {
            named.insert(format!("parameter.{index:04}"), parameter.tensor().copy()?);
        }
        Ok(named)
    }

    /// Restores a [`Self::state`]. Training continues with the same bits. Returns `false` and changes nothing
    /// if the state does not fit.
    pub fn resume(&mut self, named: &BTreeMap<String, Tensor>) -> Result<bool, EngineError> {
        let mut parameters = self.decoder.trained();
        let found: Option<Vec<Tensor>> = (0..parameters.len())
            .map(|index| named.get(&format!("parameter.{index:04}")).cloned())
            .zip(&parameters)
            .map(|(found, parameter)| found.filter(|found| found.dims() == parameter.tensor().dims()))
            .collect();
        let Some(found) = found else { return Ok(false) };
        let values: Vec<usize> = parameters.iter().map(|parameter| parameter.tensor().elem_count()).collect();
        if self.optimizer.resume(named, &values)? != Resumed::GoesOn {
            return Ok(false);
        }
        for (parameter, tensor) in parameters.iter_mut().zip(found) {
            let tensor = tensor.to_device(parameter.tensor().device())?;
            parameter.set(tensor);
        }
        replicas::spread(&parameters, &mut self.others, self.link.as_ref())?;
        Ok(true)
    }

    /// The log-probability of every target, without gradients.
    pub fn score(&self, batches: &[Microbatch]) -> Result<Vec<Vec<f32>>, EngineError> {
        replicas::score(&self.members(), batches)
    }

    /// Fails if a step needs more memory than all before it and that memory is not available.
    fn check_memory(
        &mut self,
        batches: &[Microbatch],
        workers: usize,
        recompute: bool,
    ) -> Result<(), EngineError> {
        // A device reports its own lack of memory.
        if !self.decoder.by_kernels() {
            return Ok(());
        }
        let (more, adapter, moments) = self.takes(batches, workers, recompute);
        if more.total() <= self.fitting {
            return Ok(());
        }
        let what = if more.trained > more.total() / 2 { WHAT_IS_TRAINED } else { "the training step" };
        more.fits(self.bases.as_deref(), what, || match recompute {
            _ if what == WHAT_IS_TRAINED => smaller(adapter, moments),
            false => "set recompute = \"always\"".into(),
            true => format!(
                "lower tokens_per_microbatch: the largest microbatch has {} tokens",
                Microbatch::most_rows(batches)
            ),
        })?;
        self.fitting = more.total();
        Ok(())
    }

    /// Memory that a step takes in addition to what is allocated; the size of the adapter, if one is trained;
    /// and bytes of the moments per parameter.
    fn takes(
        &mut self,
        batches: &[Microbatch],
        workers: usize,
        recompute: bool,
    ) -> (Footprint, Option<AdapterSize>, usize) {
        let adapter = Adapter::size(&self.decoder);
        let positions = batches.iter().flat_map(|batch| &batch.tree.positions);
        let load = TrainingLoad {
            rows: Microbatch::most_rows(batches),
            longest: positions.max().map_or(0, |last| *last as usize + 1),
            workers,
            threads: self.threads / self.workers(),
            devices: self.devices(),
            recompute,
            adapter,
            moments: 0,
        };
        let planned = Footprint::training(&self.decoder.config, Format::F32, &load);
        let parameters = self.decoder.trained();
        let values: Vec<usize> = parameters.iter().map(|parameter| parameter.tensor().elem_count()).collect();
        let packed: usize = parameters.iter().map(Parameter::packed_bytes).sum();
        let [moments, there] = self.optimizer.bytes(&values);
        let values: usize = values.iter().sum();
        let held = self.devices() * (values * size_of::<f32>() + packed);
        let trained = planned.trained.saturating_sub(held).saturating_add(moments.saturating_sub(there));
        let more = Footprint { weights: 0, trained, beside: 0, ..planned };
        (more, adapter, moments / values.max(1))
    }

    /// Computes the gradients of all microbatches and the log-probabilities of their targets, without an
    /// update.
    ///
    /// `dloss_dlogp(microbatch, target, log p)` is the derivative of the loss with respect to that
    /// log-probability.
    pub fn gradients(
        &mut self,
        batches: &[Microbatch],
        dloss_dlogp: &(dyn Fn(usize, usize, f32) -> f32 + Sync),
    ) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
        let shapes: Vec<Tensor> = self.decoder.trained().iter().map(|p| p.tensor().clone()).collect();
        let recompute = self.recomputes(batches);
        self.check_memory(batches, self.neighbours(batches), recompute)?;
        let steps = self.optimizer.steps();
        let dropout = self.dropout.map(|(rate, seed)| (rate, Dropout::seed(seed, steps)));
        self.set_dropout(dropout);
        let result = self.summed(&shapes, batches, |decoder, index, gradients| {
            let dloss_dlogp = |target, p| dloss_dlogp(index, target, p);
            forward_backward(decoder, &batches[index], recompute, &dloss_dlogp, gradients)
        });
        self.set_dropout(None);
        result
    }

    fn set_dropout(&mut self, dropout: Option<(f64, u64)>) {
        Adapter::set_dropout(&mut self.decoder, dropout);
        self.others.iter_mut().for_each(|replica| Adapter::set_dropout(&mut replica.decoder, dropout));
    }

    /// Sums the gradients that `work` adds, over all microbatches.
    fn summed(
        &self,
        shapes: &[Tensor],
        batches: &[Microbatch],
        work: impl Fn(&Decoder, usize, &Gradients) -> Result<Vec<f32>, EngineError> + Sync,
    ) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
        let members = self.members();
        if !self.decoder.by_kernels() {
            return replicas::sum_by_device(&members, self.link.as_ref(), shapes, batches, work);
        }
        let hands = replicas::hands(&members);
        let workers = hands.len().min(batches.len()).max(1);
        Reduction::new(batches.len(), Sets::new(shapes, workers)).run(workers, |worker, index, gradients| {
            let Rank { decoder, crew } = hands[worker];
            crew.run(|| work(decoder, index, gradients))
        })
    }

    /// Runs one optimiser step over these microbatches. Clips the gradient to this norm; 0 disables clipping.
    ///
    /// # Errors
    /// Fails if the gradient is not finite. The parameters are then unchanged.
    pub fn step(
        &mut self,
        batches: &[Microbatch],
        dloss_dlogp: &(dyn Fn(usize, usize, f32) -> f32 + Sync),
        learning_rate: f64,
        max_norm: f64,
    ) -> Result<StepReport, EngineError> {
        let (gradients, logprobs) = self.gradients(batches, dloss_dlogp)?;
        let gradient_norm = gradients.norm()?;
        if !gradient_norm.is_finite() {
            return Err(EngineError::Diverged { what: "the gradient norm" });
        }
        let clips = max_norm > 0.0 && gradient_norm > max_norm;
        let scale = if clips { max_norm / (gradient_norm + 1e-6) } else { 1.0 };
        let mut parameters = self.decoder.trained();
        self.optimizer.step(
            &mut parameters,
            &gradients.slots,
            learning_rate as f32,
            scale as f32,
            self.threads,
        )?;
        replicas::spread(&parameters, &mut self.others, self.link.as_ref())?;
        Ok(StepReport { gradient_norm, logprobs })
    }
}

/// The log-probability of every target of every microbatch, on this many threads of the CPU.
pub fn score(
    decoder: &Decoder,
    batches: &[Microbatch],
    threads: usize,
) -> Result<Vec<Vec<f32>>, EngineError> {
    replicas::score(&[Rank { decoder, crew: &ThreadPlan::Apart(threads.max(1)) }], batches)
}

/// Logits at every position of a sequence, `[tokens, vocabulary]`, all in memory at once: for comparisons.
pub fn logits(decoder: &Decoder, tokens: &[u32]) -> Result<Tensor, EngineError> {
    let tree = TokenTree::new(&[tokens]);
    with_layout(decoder, &tree, |layout| {
        let x = forward(decoder, &tree, layout, |_, _, saved| drop(saved))?;
        Ok(decoder.logits(&x)?.1)
    })
}

/// The log-probability of every target of a microbatch.
pub(super) fn scored(decoder: &Decoder, batch: &Microbatch) -> Result<Vec<f32>, EngineError> {
    with_layout(decoder, &batch.tree, |layout| {
        let x = forward(decoder, &batch.tree, layout, |_, _, saved| drop(saved))?;
        predictions(decoder, batch, &x, |_, _, _, _, _| Ok(()))
    })
}
