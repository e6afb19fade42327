//! Training steps over token trees.
//!
//! Threads share the microbatches of a step. Their gradients are added in the order of the microbatches, so
//! the result has the same bits on any number of threads.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use candle_core::Tensor;
use tokio_util::sync::CancellationToken;

use super::{
    DeviceSet, EngineError, Footprint, Microbatch, ModelCache, Optimizer, Recompute, Rule, SplitMode,
    ThreadPlan, TrainingLoad,
    memory::{TRAINED, fewer_trained},
    nccl::Link,
    optimizer::Resumed,
    passes::forward_backward,
    recompute,
    reduce::Reduction,
    replicas::{self, Group, Rank},
    size::{activation_bytes, all_weights},
};
use crate::model::{Adapter, AdapterSize, Decoder, Dropout, Gradients, Parameter, kernels::Format};

/// The result of one optimizer step.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Per microbatch, the log-probability of each target before the update.
    pub logprobs: Vec<Vec<f32>>,
}

/// A decoder in training, on one device or several.
pub struct Trainer {
    /// The decoder of the first device, where the optimizer steps.
    pub decoder: Decoder,
    optimizer: Optimizer,
    /// Threads of all devices.
    threads: usize,
    /// Between steps the parameters of copies equal the decoder's.
    pub(super) group: Group,
    link: Option<Link>,
    pub recompute: Recompute,
    /// Bytes of activations that are kept under [`Recompute::Auto`].
    activation_budget: OnceLock<usize>,
    /// Evicts models for a step that needs their memory.
    model_cache: Option<Arc<ModelCache>>,
    /// Workspace bytes that a previous check found available.
    checked_bytes: usize,
    /// Rate and seed of the adapters' dropout in [`Self::gradients`] and [`Self::step`]. Scoring uses no
    /// dropout.
    pub dropout: Option<(f64, u64)>,
    /// Ends [`Self::gradients`], [`Self::step`] and [`Self::score`] between two microbatches.
    pub cancel: CancellationToken,
}

impl Trainer {
    /// Trains on one CPU device. The optimizer has one rule per trained parameter of the decoder.
    pub fn new(
        mut decoder: Decoder,
        rules: impl FnOnce(&[Parameter<'_>]) -> Vec<Rule>,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let optimizer = Optimizer::new(rules(&decoder.trained()?));
        let own = vec![ThreadPlan::new(&decoder, threads)];
        Ok(Self {
            decoder,
            optimizer,
            threads,
            group: Group { own, others: Vec::new() },
            link: None,
            recompute: Recompute::Auto,
            activation_budget: OnceLock::new(),
            model_cache: None,
            checked_bytes: 0,
            dropout: None,
            cancel: CancellationToken::new(),
        })
    }

    /// Trains on these devices. The decoder is on the first, or its layers are spread over them.
    pub fn across(
        decoder: Decoder,
        rules: impl FnOnce(&[Parameter<'_>]) -> Vec<Rule>,
        devices: &DeviceSet,
    ) -> Result<Self, EngineError> {
        let mut trainer = Self::new(decoder, rules, devices.first.threads)?;
        // Copied after the parameters are numbered.
        trainer.group = Group::of(&trainer.decoder, devices)?;
        if Adapter::size(&trainer.decoder).is_none() && !trainer.decoder.by_kernels() {
            // Every thread on a decoder has gradients of its own: of all weights, they would fill the devices.
            trainer.group.own.truncate(1);
        }
        trainer.threads = devices.threads();
        trainer.model_cache.clone_from(&devices.model_cache);
        if devices.split == SplitMode::Batches {
            trainer.link = Link::between(&devices.slots().map(|slot| &slot.device).collect::<Vec<_>>())?;
        }
        Ok(trainer)
    }

    fn ranks(&self) -> Vec<Rank<'_>> {
        self.group.ranks(&self.decoder)
    }

    /// Number of devices that share a step.
    pub fn devices(&self) -> usize {
        self.group.own.len() + self.group.others.len()
    }

    /// Number of copies of the trained parameters.
    fn copies(&self) -> usize {
        1 + self.group.others.len()
    }

    /// Number of microbatches that run at once.
    pub fn workers(&self) -> usize {
        self.ranks().iter().map(|rank| rank.threads.workers()).sum()
    }

    /// Microbatches whose activations are in the same memory at once.
    fn concurrent(&self, batches: &[Microbatch]) -> usize {
        match self.decoder.by_kernels() {
            true => self.workers().min(batches.len()).max(1),
            false => 1,
        }
    }

    /// Whether activations of these microbatches are recomputed.
    pub fn recomputes(&self, batches: &[Microbatch]) -> bool {
        let rows = Microbatch::most_rows(batches) * self.concurrent(batches);
        let trained = Adapter::size(&self.decoder).unwrap_or_else(|| all_weights(&self.decoder.config));
        let budget = self.activation_budget.get_or_init(|| recompute::budget(&self.decoder, trained.values));
        self.recompute.decide(activation_bytes(&self.decoder.config, trained.ranks, rows), *budget)
    }

    pub fn optimizer(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Restores only the optimizer's saved state.
    pub fn resume_optimizer(&mut self, named: &BTreeMap<String, Tensor>) -> Result<Resumed, EngineError> {
        let values = value_counts(&self.decoder.trained()?);
        self.optimizer.resume(named, &values)
    }

    /// Trained parameters and the optimizer's state, as named tensors. They are copies, because steps change
    /// parameters in place.
    pub fn state(&mut self) -> Result<BTreeMap<String, Tensor>, EngineError> {
        let mut named = self.optimizer.state()?;
        for (index, parameter) in self.decoder.trained()?.iter().enumerate() {
            named.insert(format!("parameter.{index:04}"), parameter.tensor().copy()?);
        }
        Ok(named)
    }

    /// Restores a [`Self::state`]. Training continues with the same bits. Returns `false` and changes nothing
    /// if the state does not fit.
    pub fn resume(&mut self, named: &BTreeMap<String, Tensor>) -> Result<bool, EngineError> {
        let mut parameters = self.decoder.trained()?;
        let found: Option<Vec<Tensor>> = (0..parameters.len())
            .map(|index| named.get(&format!("parameter.{index:04}")).cloned())
            .zip(&parameters)
            .map(|(found, parameter)| found.filter(|found| found.dims() == parameter.tensor().dims()))
            .collect();
        let Some(found) = found else { return Ok(false) };
        if self.optimizer.resume(named, &value_counts(&parameters))? != Resumed::Restored {
            return Ok(false);
        }
        for (parameter, tensor) in parameters.iter_mut().zip(found) {
            let tensor = tensor.to_device(parameter.tensor().device())?;
            parameter.set(tensor);
        }
        replicas::broadcast(&parameters, &mut self.group.others, self.link.as_ref())?;
        Ok(true)
    }

    /// The log-probability of every target, without gradients.
    pub fn score(&self, batches: &[Microbatch]) -> Result<Vec<Vec<f32>>, EngineError> {
        replicas::score(&self.ranks(), batches, &self.cancel)
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
        let (more, adapter, moments) = self.additional_memory(batches, workers, recompute)?;
        if more.total() <= self.checked_bytes {
            return Ok(());
        }
        let what = if more.trained > more.total() / 2 { TRAINED } else { "the training step" };
        more.fits(self.model_cache.as_deref(), what, || match recompute {
            _ if what == TRAINED => fewer_trained(adapter, moments),
            false => "set recompute = \"always\"".into(),
            true => format!(
                "lower tokens_per_microbatch: the largest microbatch has {} tokens",
                Microbatch::most_rows(batches)
            ),
        })?;
        self.checked_bytes = more.total();
        Ok(())
    }

    /// Memory that a step takes in addition to what is allocated; the size of the adapter, if one is trained;
    /// and bytes of the moments per parameter.
    fn additional_memory(
        &mut self,
        batches: &[Microbatch],
        workers: usize,
        recompute: bool,
    ) -> Result<(Footprint, Option<AdapterSize>, usize), EngineError> {
        let adapter = Adapter::size(&self.decoder);
        let positions = batches.iter().flat_map(|batch| &batch.tree.positions);
        let load = TrainingLoad {
            rows: Microbatch::most_rows(batches),
            longest: positions.max().map_or(0, |last| *last as usize + 1),
            workers,
            threads: self.threads / self.workers(),
            devices: self.devices(),
            copies: self.copies(),
            recompute,
            adapter,
            moments: 0,
        };
        let planned = Footprint::training(&self.decoder.config, Format::F32, &load);
        let parameters = self.decoder.trained()?;
        let values = value_counts(&parameters);
        let packed: usize = parameters.iter().map(Parameter::packed_bytes).sum();
        let [moments, allocated_moments] = self.optimizer.bytes(&values);
        let values: usize = values.iter().sum();
        let allocated = self.copies() * (values * size_of::<f32>() + packed);
        let moments_left = moments.saturating_sub(allocated_moments);
        let trained = planned.trained.saturating_sub(allocated).saturating_add(moments_left);
        let more = Footprint { weights: 0, trained, process: 0, ..planned };
        Ok((more, adapter, moments / values.max(1)))
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
        let shapes: Vec<Tensor> = self.decoder.trained()?.iter().map(|p| p.tensor().clone()).collect();
        let recompute = self.recomputes(batches);
        self.check_memory(batches, self.concurrent(batches), recompute)?;
        let steps = self.optimizer.steps();
        let dropout = self.dropout.map(|(rate, seed)| (rate, Dropout::seed(seed, steps)));
        self.set_dropout(dropout);
        let result = self.sum(&shapes, batches, |decoder, index, gradients| {
            let dloss_dlogp = |target, p| dloss_dlogp(index, target, p);
            forward_backward(decoder, &batches[index], recompute, &dloss_dlogp, gradients)
        });
        self.set_dropout(None);
        result
    }

    fn set_dropout(&mut self, dropout: Option<(f64, u64)>) {
        Adapter::set_dropout(&mut self.decoder, dropout);
        self.group.others.iter_mut().for_each(|replica| Adapter::set_dropout(&mut replica.decoder, dropout));
    }

    /// Sums the gradients that `work` adds, over all microbatches.
    fn sum(
        &self,
        shapes: &[Tensor],
        batches: &[Microbatch],
        work: impl Fn(&Decoder, usize, &Gradients) -> Result<Vec<f32>, EngineError> + Sync,
    ) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
        let work = |decoder: &Decoder, index: usize, gradients: &Gradients| {
            replicas::go_on(&self.cancel)?;
            work(decoder, index, gradients)
        };
        let ranks = self.ranks();
        if !self.decoder.by_kernels() {
            return replicas::sum_by_rank(&ranks, self.link.as_ref(), shapes, batches, work);
        }
        let worker_ranks = replicas::worker_ranks(&ranks);
        let workers = worker_ranks.len().min(batches.len()).max(1);
        Reduction::new(batches.len(), workers, shapes).run(|worker, index, gradients| {
            let Rank { decoder, threads } = worker_ranks[worker];
            threads.run(|| work(decoder, index, gradients))
        })
    }

    /// Runs one optimizer step over these microbatches. Clips the gradient to this norm; 0 disables clipping.
    ///
    /// # Errors
    /// Fails if a log-probability or the gradient is not finite, or [`Self::cancel`] is cancelled. The parameters are then
    /// unchanged.
    pub fn step(
        &mut self,
        batches: &[Microbatch],
        dloss_dlogp: &(dyn Fn(usize, usize, f32) -> f32 + Sync),
        learning_rate: f64,
        max_norm: f64,
    ) -> Result<StepReport, EngineError> {
        let (gradients, logprobs) = self.gradients(batches, dloss_dlogp)?;
        replicas::check_finite(&logprobs)?;
        let gradient_norm = gradients.norm()?;
        if !gradient_norm.is_finite() {
            return Err(EngineError::Diverged { what: "the gradient norm" });
        }
        let clips = max_norm > 0.0 && gradient_norm > max_norm;
        let scale = if clips { max_norm / (gradient_norm + 1e-6) } else { 1.0 };
        let mut parameters = self.decoder.trained()?;
        self.optimizer.step(
            &mut parameters,
            &gradients.slots,
            learning_rate as f32,
            scale as f32,
            self.threads,
        )?;
        replicas::broadcast(&parameters, &mut self.group.others, self.link.as_ref())?;
        Ok(StepReport { gradient_norm, logprobs })
    }
}

/// The number of values of each parameter.
fn value_counts(parameters: &[Parameter<'_>]) -> Vec<usize> {
    parameters.iter().map(|parameter| parameter.tensor().elem_count()).collect()
}
