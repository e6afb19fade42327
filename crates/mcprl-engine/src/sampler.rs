//! Handles to a policy that samples: the public interface of sampling.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
};

use mcprl_base::guide::Guide;
use mcprl_base::hash::{Digest, Encoder};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::{
    DeviceSet, EngineError, EngineSpec, Sampling, ThreadPlan,
    device_memory::device_memory,
    memory::{cache_bound, check_device_sampling, check_sampling},
    replicas::{Group, Replica, round_robin},
    worker::{Command, DecodeWorker, Sampled, TokenSender, Turn, Usage},
};
use crate::model::Decoder;
#[cfg(test)]
use crate::model::ops::composed;

/// A policy that samples: a cheap handle to worker threads on one or several devices. They end with the last
/// handle.
#[derive(Clone)]
pub struct Sampler {
    workers: Vec<Sender<Command>>,
    /// The worker of each prompt, so that the sequences of a group share a worker.
    prompt_workers: Arc<Mutex<BTreeMap<Digest, usize>>>,
    next: Arc<AtomicU64>,
    usage: Arc<Usage>,
    /// Returns when every worker thread has released its memory.
    ended: Arc<tokio::sync::Mutex<mpsc::Receiver<Infallible>>>,
}

/// One conversation with the policy. Dropping it frees its cache.
pub struct Sequence {
    id: u64,
    worker: Sender<Command>,
    /// Source of ids for all sequences of the policy.
    next: Arc<AtomicU64>,
    sampling: Sampling,
    /// Number of alternatives that a turn has for each token.
    alternatives: usize,
    /// Of the next turn.
    guide: Option<Box<dyn Guide>>,
    seed: u64,
    /// How often it was reopened.
    reopened: u64,
    /// The result of its last turn was not read: the caller dropped the future.
    unread: bool,
}

impl Sampler {
    /// Starts a policy on the devices where it was [loaded](super::ModelCache::load).
    ///
    /// # Errors
    /// Also fails if sampling takes more memory than is available besides the weights.
    pub fn new(decoder: Decoder, devices: &DeviceSet, spec: &EngineSpec) -> Result<Self, EngineError> {
        let bound = spec.kv_cache_mib.map(|mib| mib.saturating_mul(1 << 20));
        if devices.first.device.is_cpu() {
            check_sampling(&decoder.config, devices, bound)?;
        }
        let config = decoder.config.clone();
        let sampler = Self::across(decoder, devices, bound)?;
        // With the decoder on every device.
        for memory in devices.slots().filter_map(|slot| device_memory(&slot.device)) {
            check_device_sampling(&config, memory, bound, devices.of_decoder().len())?;
        }
        Ok(sampler)
    }

    /// Starts a decoder on this many threads of its device.
    #[cfg(test)]
    pub fn on_threads(decoder: Decoder, threads: usize) -> Self {
        let bound = cache_bound(&decoder, None);
        Self::bounded(decoder, threads, bound)
    }

    /// The same, with at most this many bytes of keys and values.
    #[cfg(test)]
    pub fn bounded(decoder: Decoder, threads: usize, bytes: usize) -> Self {
        let threads = ThreadPlan::new(&decoder, threads);
        Self::start(vec![(Arc::new(decoder), threads)], Some(bytes))
    }

    /// Starts a decoder on the first of these devices and copies of it on the others, or a decoder that is spread over
    /// them. Keys and values take at most this many bytes on each device, or on all `cpu` devices together. On the CPU the bound does not
    /// change what is sampled.
    pub fn across(decoder: Decoder, devices: &DeviceSet, bytes: Option<usize>) -> Result<Self, EngineError> {
        let Group { own, others } = Group::of(&decoder, devices)?;
        let decoder = Arc::new(decoder);
        let own = own.into_iter().map(|threads| (decoder.clone(), threads));
        let others = others.into_iter().map(|Replica { decoder, threads }| (Arc::new(decoder), threads));
        Ok(Self::start(own.chain(others).collect(), bytes))
    }

    fn start(ranks: Vec<(Arc<Decoder>, ThreadPlan)>, bytes: Option<usize>) -> Self {
        let usage = Arc::new(Usage::default());
        let workers: Vec<usize> = ranks.iter().map(|(_, threads)| threads.workers()).collect();
        // Those that share a device's memory.
        let sharing = |decoder: &Arc<Decoder>| -> usize {
            let shares = |other: &Arc<Decoder>| other.device().is_cpu() || Arc::ptr_eq(other, decoder);
            ranks.iter().zip(&workers).filter(|((other, _), _)| shares(other)).map(|(_, own)| own).sum()
        };
        let bound = |decoder: &Arc<Decoder>| cache_bound(decoder, bytes) / sharing(decoder);
        let bounds: Vec<usize> = ranks.iter().map(|(decoder, _)| bound(decoder)).collect();
        let (end, ended) = mpsc::channel(1);
        let start = |(index, rank): (usize, usize)| {
            let (sender, receiver) = channel();
            let end = end.clone();
            let (decoder, threads) = ranks[rank].clone();
            let worker = DecodeWorker::new(decoder, usage.clone(), bounds[rank]);
            #[cfg(test)]
            let forced = composed::forced();
            std::thread::Builder::new()
                .name(format!("sampler-{index}"))
                .spawn(move || {
                    #[cfg(test)]
                    let _forced = forced.then(composed::force);
                    threads.run(|| worker.run(receiver));
                    drop((threads, end));
                })
                .expect("the system can start a thread");
            sender
        };
        // Prompts go round-robin to the workers, and so to the devices.
        let workers = round_robin(&workers).into_iter().enumerate().map(start).collect();
        let ended = Arc::new(ended.into());
        Self { workers, prompt_workers: Arc::default(), next: Arc::default(), usage, ended }
    }

    /// Starts a conversation. `prompt` is split where sharing ends: equal leading pieces are computed once
    /// for all sequences.
    pub fn open(&self, prompt: Vec<Arc<[u32]>>, sampling: Sampling, seed: u64) -> Sequence {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let worker = self.workers[self.worker_of(&prompt)].clone();
        // A stopped worker reports an error at the first turn.
        _ = worker.send(Command::Open { id, prompt, sampling, seed });
        let next = self.next.clone();
        Sequence {
            id,
            worker,
            next,
            sampling,
            alternatives: 0,
            guide: None,
            seed,
            reopened: 0,
            unread: false,
        }
    }

    /// The worker that has this prompt. New prompts are assigned round-robin.
    pub(super) fn worker_of(&self, prompt: &[Arc<[u32]>]) -> usize {
        let mut encoder = Encoder::new("mcprl prompt v1");
        for piece in prompt {
            encoder.number(piece.len() as u64);
            piece.iter().for_each(|token| _ = encoder.number(u64::from(*token)));
        }
        /// A server is asked without end.
        const REMEMBERED: usize = 1 << 16;
        let mut known = self.prompt_workers.lock();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let next = known.len() % self.workers.len();
        *known.entry(encoder.finish()).or_insert(next)
    }

    /// Ends sampling and frees its memory. Waits for remaining conversations and other handles.
    pub async fn close(self) {
        let Self { workers, ended, .. } = self;
        drop(workers);
        ended.lock().await.recv().await;
    }

    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Tokens sampled so far by all sequences of this policy.
    pub fn sampled_tokens(&self) -> u64 {
        self.usage.sampled.load(Ordering::Relaxed)
    }
}

impl Sequence {
    /// Each sampled token comes with this many of the most likely tokens in its place.
    pub fn with_alternatives(mut self, alternatives: usize) -> Self {
        self.alternatives = alternatives;
        self
    }

    /// Limits the tokens of the next turn.
    pub fn guided(mut self, guide: Option<Box<dyn Guide>>) -> Self {
        self.guide = guide;
        self
    }

    /// Continues from another prompt. Leading pieces shared with earlier prompts are not recomputed. Draws
    /// use a new seed.
    pub fn reopen(&mut self, prompt: Vec<Arc<[u32]>>) {
        self.reopened += 1;
        let mut encoder = Encoder::new("mcprl reopened sequence v1");
        let seed = encoder.number(self.seed).number(self.reopened).finish().seed();
        let (old, sampling) = (self.id, self.sampling);
        self.id = self.next.fetch_add(1, Ordering::Relaxed);
        self.unread = false;
        // Opened before the old one is closed, so that shared segments stay in use.
        _ = self.worker.send(Command::Open { id: self.id, prompt, sampling, seed });
        _ = self.worker.send(Command::Close { id: old });
    }

    /// Appends given tokens, then samples until a token of `stop` or `max_new` tokens. If the future is dropped, sampling
    /// ends with the next token.
    ///
    /// # Errors
    /// Fails if a token is outside the vocabulary, the context is already full, the keys and values of this
    /// conversation alone exceed the bound, or the worker has stopped. The conversation is then unchanged. It
    /// is also unchanged if the future is dropped.
    pub async fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
    ) -> Result<Sampled, EngineError> {
        self.streamed_turn(append, stop, max_new, None).await
    }

    /// The same, and sends each token when it is sampled.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub async fn streamed_turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
        tokens: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        let stopped = || EngineError::Worker { reason: "its thread has ended".into() };
        let (reply, result) = oneshot::channel();
        let turn = Turn {
            stop: stop.to_vec(),
            max_new,
            alternatives: self.alternatives,
            guide: self.guide.take(),
            sampled: Sampled::default(),
            tokens,
            reply,
        };
        let undo_previous = std::mem::replace(&mut self.unread, true);
        let command = Command::Turn { id: self.id, append: append.to_vec(), undo_previous, turn };
        self.worker.send(command).map_err(|_| stopped())?;
        let result = result.await;
        self.unread = false;
        result.map_err(|_| stopped())?
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        _ = self.worker.send(Command::Close { id: self.id });
    }
}
