//! One decoder on several devices: each has a copy of the parameters and computes its own microbatches. Or one decoder whose
//! layers are spread over the devices: as many microbatches as devices are computed at once, each by a thread that takes its rows through
//! all devices, so that no device waits for the others for long.
//!
//! The gradients of a step are reduced once. On the CPU they are added microbatch by microbatch in the step's
//! order ([`super::reduce`]), so the sum has the same bits on any number of devices. Other devices each sum
//! their own gradients. The sums are added on the first device, by NCCL if it is built in. The optimizer
//! steps there, and the parameters are broadcast to the other devices. So moments are stored once and
//! replicas cannot diverge. The traffic equals that of an all-reduce: once to the first device and once from
//! it.

use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::Tensor;
use mcprl_base::error::Interrupted;
use tokio_util::sync::CancellationToken;

use super::{
    DeviceSet, DeviceSlot, EngineError, Microbatch, SplitMode, ThreadPlan, error::TargetIndex, nccl::Link,
    passes::scored, threads::run_workers,
};
use crate::model::{
    Decoder, Gradients, Parameter,
    ops::{self, composed},
};

/// A device's copy of a decoder.
pub struct Replica {
    pub decoder: Decoder,
    pub threads: ThreadPlan,
}

/// A decoder of a group, which may have several ranks, and the threads of this rank.
#[derive(Clone, Copy)]
pub struct Rank<'a> {
    pub decoder: &'a Decoder,
    pub threads: &'a ThreadPlan,
}

impl Replica {
    /// Copies this decoder to a device. A device that already has the same base shares it.
    fn of(decoder: &Decoder, slot: &DeviceSlot) -> Result<Self, EngineError> {
        let decoder = match &slot.base {
            Some(base) => base.replica_of(decoder)?,
            None => decoder.replica(&slot.device.clone().into())?,
        };
        let threads = ThreadPlan::new(&decoder, slot.threads);
        Ok(Self { decoder, threads })
    }
}

/// What computes with a decoder: threads on the decoder itself, and copies of it.
pub struct Group {
    /// One plan, or one per device over which the decoder is spread.
    pub own: Vec<ThreadPlan>,
    pub others: Vec<Replica>,
}

impl Group {
    /// Of a decoder on these devices.
    pub fn of(decoder: &Decoder, devices: &DeviceSet) -> Result<Self, EngineError> {
        let plan = |slot: &DeviceSlot| ThreadPlan::new(decoder, slot.threads);
        match devices.split {
            SplitMode::Layers => Ok(Self { own: devices.slots().map(plan).collect(), others: Vec::new() }),
            SplitMode::Batches => {
                let others = devices.others.iter().map(|slot| Replica::of(decoder, slot));
                Ok(Self { own: vec![plan(&devices.first)], others: others.collect::<Result<_, _>>()? })
            }
        }
    }

    /// The decoder's ranks, then those of its copies.
    pub fn ranks<'a>(&'a self, decoder: &'a Decoder) -> Vec<Rank<'a>> {
        let own = self.own.iter().map(|threads| Rank { decoder, threads });
        let others = self.others.iter().map(|of| Rank { decoder: &of.decoder, threads: &of.threads });
        own.chain(others).collect()
    }
}

/// The device index of each worker, given the workers per device. Neighbours are on different devices where
/// possible.
pub fn round_robin(workers: &[usize]) -> Vec<usize> {
    let rounds = workers.iter().copied().max().unwrap_or(0);
    let round =
        |round| workers.iter().enumerate().filter(move |(_, own)| **own > round).map(|(index, _)| index);
    (0..rounds).flat_map(round).collect()
}

/// The rank that each worker uses.
pub fn worker_ranks<'a>(ranks: &[Rank<'a>]) -> Vec<Rank<'a>> {
    let workers: Vec<usize> = ranks.iter().map(|rank| rank.threads.workers()).collect();
    round_robin(&workers).into_iter().map(|index| ranks[index]).collect()
}

/// The log-probability of every target of every microbatch. The workers of all ranks share the microbatches.
///
/// # Errors
/// Also fails if one is not finite, and between two microbatches if it is cancelled.
pub fn score(
    ranks: &[Rank<'_>],
    batches: &[Microbatch],
    cancel: &CancellationToken,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let workers = worker_ranks(ranks);
    let next = AtomicUsize::new(0);
    let own = |worker: usize| -> Result<Vec<_>, EngineError> {
        let Rank { decoder, threads } = workers[worker];
        let mut own = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(batch) = batches.get(index) else { return Ok(own) };
            go_on(cancel)?;
            own.push((index, threads.run(|| scored(decoder, batch))?));
        }
    };
    let found = run_workers(workers.len().min(batches.len()).max(1), own);
    let logprobs = in_order(found.into_iter().collect::<Result<_, _>>()?);
    check_finite(&logprobs)?;
    Ok(logprobs)
}

/// Fails once it is cancelled.
pub fn go_on(cancel: &CancellationToken) -> Result<(), Interrupted> {
    if cancel.is_cancelled() { Err(Interrupted) } else { Ok(()) }
}

/// Fails at the first log-probability, by microbatch and target, that is not finite.
pub fn check_finite(logprobs: &[Vec<f32>]) -> Result<(), EngineError> {
    for (microbatch, logprobs) in logprobs.iter().enumerate() {
        if let Some(target) = logprobs.iter().position(|logprob| !logprob.is_finite()) {
            return Err(EngineError::Logprob { target: TargetIndex { microbatch, target } });
        }
    }
    Ok(())
}

/// The values of all workers, by index.
fn in_order<T>(found: Vec<Vec<(usize, T)>>) -> Vec<T> {
    let mut found: Vec<_> = found.into_iter().flatten().collect();
    found.sort_unstable_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, value)| value).collect()
}

/// Like [`score`], by a decoder on these devices.
pub fn score_across(
    decoder: &Decoder,
    devices: &DeviceSet,
    batches: &[Microbatch],
    cancel: &CancellationToken,
) -> Result<Vec<Vec<f32>>, EngineError> {
    score(&Group::of(decoder, devices)?.ranks(decoder), batches, cancel)
}

/// Assigns microbatches to ranks, ascending per rank: the largest first, each to the rank with the
/// fewest rows. The assignment depends only on the microbatches, so a sum does not depend on device speed.
fn shares(batches: &[Microbatch], ranks: usize) -> Vec<Vec<usize>> {
    let rows = |index: &usize| batches[*index].tree.tokens.len();
    let mut order: Vec<usize> = (0..batches.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(rows(index)));
    let mut shares = vec![(0, Vec::new()); ranks];
    for index in order {
        if let Some((load, share)) = shares.iter_mut().min_by_key(|(load, _)| *load) {
            *load += rows(&index);
            share.push(index);
        }
    }
    let ascending = |(_, mut share): (usize, Vec<usize>)| {
        share.sort_unstable();
        share
    };
    shares.into_iter().map(ascending).collect()
}

type Summed = (Gradients, Vec<(usize, Vec<f32>)>);

/// Sums the gradients of all microbatches on the devices of `parameters`, which are those of the first rank's decoder. Also
/// returns the results of `work`, in order.
///
/// `work` adds a microbatch's gradients to those it receives.
pub fn sum_by_rank(
    ranks: &[Rank<'_>],
    link: Option<&Link>,
    parameters: &[Tensor],
    batches: &[Microbatch],
    work: impl Fn(&Decoder, usize, &Gradients) -> Result<Vec<f32>, EngineError> + Sync,
) -> Result<(Gradients, Vec<Vec<f32>>), EngineError> {
    let shares = shares(batches, ranks.len());
    let own = |worker: usize| -> Result<Summed, EngineError> {
        let decoder = ranks[worker].decoder;
        let is_first = std::ptr::eq(decoder, ranks[0].decoder);
        let zeros = |like: &Tensor| {
            let device = if is_first { like.device() } else { decoder.device() };
            Tensor::zeros(like.shape(), like.dtype(), device)
        };
        let sum = Gradients { slots: parameters.iter().map(zeros).collect::<candle_core::Result<_>>()? };
        let each = shares[worker].iter().map(|index| Ok((*index, work(decoder, *index, &sum)?)));
        let each = each.collect::<Result<_, EngineError>>()?;
        if !is_first {
            // The first device reads what this one computed, and then overwrites the parameters that this one has copied.
            decoder.device().synchronize()?;
        }
        Ok((sum, each))
    };
    let done = run_workers(ranks.len(), own).into_iter().collect::<Result<Vec<Summed>, _>>()?;
    let (sums, found): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    Ok((add_to_first(sums, link)?, in_order(found)))
}

fn add_to_first(mut sums: Vec<Gradients>, link: Option<&Link>) -> Result<Gradients, EngineError> {
    if let Some(link) = link {
        link.sum(sums.iter().map(|sum| sum.slots.clone()).collect())?;
        return Ok(sums.swap_remove(0));
    }
    let total = sums.remove(0);
    for sum in sums {
        for (into, from) in total.slots.iter().zip(&sum.slots) {
            composed::add(into, &ops::move_to(from, into.device())?)?;
        }
    }
    Ok(total)
}

/// Copies the first decoder's parameters to the replicas.
pub fn broadcast(
    from: &[Parameter<'_>],
    others: &mut [Replica],
    link: Option<&Link>,
) -> Result<(), EngineError> {
    if let Some(link) = link {
        let own = |parameters: &[Parameter<'_>]| parameters.iter().map(|p| p.tensor().clone()).collect();
        let mut all: Vec<Vec<Tensor>> = vec![own(from)];
        for replica in others {
            all.push(own(&replica.decoder.trained()?));
        }
        return link.broadcast(all);
    }
    for replica in others {
        for (into, from) in replica.decoder.trained()?.iter_mut().zip(from) {
            let (tensor, from) = (into.tensor().clone(), from.tensor());
            if ops::by_kernels(&tensor) {
                let from = ops::values(from)?;
                ops::update(&tensor, |into| into.copy_from_slice(&from))?;
            } else {
                composed::assign(&tensor, &ops::move_to(from, tensor.device())?)?;
            }
            // Drops the packed copy of the old values.
            into.set(tensor);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_alternate_between_the_devices() {
        assert_eq!(round_robin(&[3, 1, 2]), [0, 1, 2, 0, 2, 0]);
        assert_eq!(round_robin(&[]), [0; 0]);
    }

    #[test]
    fn microbatches_are_assigned_by_their_rows() {
        let of = |rows: usize| Microbatch::new(&[((0..rows as u32).collect::<Vec<_>>(), vec![true; rows])]).0;
        let batches: Vec<_> = [5, 30, 8, 9, 10].map(of).into_iter().collect();
        assert_eq!(shares(&batches, 2), [vec![1], vec![0, 2, 3, 4]]);
        assert_eq!(shares(&batches[..1], 3), [vec![0], vec![], vec![]]);
    }
}
