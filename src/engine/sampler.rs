//! Handles to a policy that samples: the public interface of sampling.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
};

use candle_core::Device;
use tokio::sync::{mpsc, oneshot};

use super::{
    DeviceSet, EngineError, EngineSpec, Sampling, ThreadPlan,
    memory::{cache_bound, check_sampling},
    replicas::{Replica, in_turn},
    worker::{Command, Worker},
};
#[cfg(test)]
use crate::model::ops::composed;
use crate::{
    hash::{Digest, Encoder},
    model::Decoder,
};

/// Why a turn's sampling ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// A stop token, the last of `tokens`.
    Token,
    /// `max_new` tokens were sampled.
    Length,
    /// The context is full.
    Context,
}

/// One sampled turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub tokens: Vec<u32>,
    /// Natural log-probabilities at temperature 1, one per token.
    pub logprobs: Vec<f32>,
    pub stop: Stop,
}

/// Counters of a policy's work.
#[derive(Debug, Default)]
pub struct Usage {
    /// Tokens sampled.
    pub sampled: AtomicU64,
    /// Tokens that went through the decoder, sampled or given. A shared token counts once.
    pub computed: AtomicU64,
    /// Tokens that were recomputed because their keys and values were evicted.
    pub recomputed: AtomicU64,
    /// Bytes reserved for keys and values, now and at the peak.
    cached: AtomicU64,
    most_cached: AtomicU64,
}

impl Usage {
    pub(super) fn count(&self, computed: usize, recomputed: usize) {
        self.computed.fetch_add(computed as u64, Ordering::Relaxed);
        self.recomputed.fetch_add(recomputed as u64, Ordering::Relaxed);
    }

    /// Records that one worker's keys and values now take this many bytes.
    pub(super) fn note_cache(&self, before: u64, now: u64) {
        if now != before {
            let cached = self.cached.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            self.most_cached.fetch_max(cached.wrapping_add(now.wrapping_sub(before)), Ordering::Relaxed);
        }
    }

    /// Peak of the bytes reserved for keys and values.
    pub fn most_cached(&self) -> u64 {
        self.most_cached.load(Ordering::Relaxed)
    }
}

/// A policy that samples: a cheap handle to worker threads on one or several devices. They end with the last
/// handle.
#[derive(Clone)]
pub struct Sampler {
    workers: Vec<Sender<Command>>,
    /// Which worker has a prompt, so that the sequences of a group share a worker.
    homes: Arc<Mutex<BTreeMap<Digest, usize>>>,
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
    seed: u64,
    /// How often it was reopened.
    reopened: u64,
    /// The result of its last turn was not read: the caller dropped the future.
    unread: bool,
}

impl Sampler {
    /// Starts a policy on the devices where it was [attached](super::ModelCache::load).
    ///
    /// # Errors
    /// Also fails if sampling takes more memory besides the weights than is available.
    pub fn attached(decoder: Decoder, places: &DeviceSet, spec: &EngineSpec) -> Result<Self, EngineError> {
        let set = spec.kv_cache_mib.map(|mib| mib.saturating_mul(1 << 20));
        if places.first.device.is_cpu() {
            check_sampling(&decoder.config, places, set)?;
        }
        Self::across(decoder, places, set)
    }

    /// Starts a decoder on this many threads.
    pub fn new(decoder: Decoder, threads: usize) -> Self {
        let bound = cache_bound(decoder.device());
        Self::bounded(decoder, threads, bound)
    }

    /// Starts a decoder on this many threads, with at most this many bytes of keys and values. The bound does
    /// not change what is sampled.
    pub fn bounded(decoder: Decoder, threads: usize, bytes: usize) -> Self {
        let crew = ThreadPlan::new(&decoder, threads);
        Self::start(vec![Replica { decoder, crew }], Some(bytes))
    }

    /// Starts a decoder on the first of these devices, and copies of it on the others. Keys and values take
    /// at most this many bytes on each device, or on all `cpu` devices together.
    pub fn across(decoder: Decoder, places: &DeviceSet, bytes: Option<usize>) -> Result<Self, EngineError> {
        let others = Replica::of(&decoder, &places.others)?;
        let crew = ThreadPlan::new(&decoder, places.first.threads);
        Ok(Self::start(std::iter::once(Replica { decoder, crew }).chain(others).collect(), bytes))
    }

    fn start(replicas: Vec<Replica>, bytes: Option<usize>) -> Self {
        let usage = Arc::new(Usage::default());
        let workers: Vec<usize> = replicas.iter().map(|replica| replica.crew.workers()).collect();
        let on_cpu = |replica: &&Replica| replica.decoder.device().is_cpu();
        let cpu_workers: usize = replicas.iter().filter(on_cpu).map(|replica| replica.crew.workers()).sum();
        let cpu_bytes = bytes.unwrap_or_else(|| cache_bound(&Device::Cpu));
        let shared = |replica: Replica| {
            let bound = match replica.decoder.device() {
                Device::Cpu => cpu_bytes / cpu_workers,
                device => bytes.unwrap_or_else(|| cache_bound(device)) / replica.crew.workers(),
            };
            (Arc::new(replica.decoder), replica.crew, bound)
        };
        let replicas: Vec<_> = replicas.into_iter().map(shared).collect();
        let (end, ended) = mpsc::channel(1);
        let start = |(index, replica): (usize, usize)| {
            let (sender, receiver) = channel();
            let end = end.clone();
            let (decoder, crew, bound) = replicas[replica].clone();
            let worker = Worker::new(decoder, usage.clone(), bound);
            #[cfg(test)]
            let forced = composed::forced();
            std::thread::Builder::new()
                .name(format!("sampler-{index}"))
                .spawn(move || {
                    #[cfg(test)]
                    let _forced = forced.then(composed::force);
                    crew.run(|| worker.run(receiver));
                    drop((crew, end));
                })
                .expect("the system can start a thread");
            sender
        };
        // Prompts go round-robin to the workers, and so to the devices.
        let workers = in_turn(&workers).into_iter().enumerate().map(start).collect();
        let ended = Arc::new(ended.into());
        Self { workers, homes: Arc::default(), next: Arc::default(), usage, ended }
    }

    /// Starts a conversation. `prompt` is split where sharing ends: equal leading pieces are computed once
    /// for all sequences.
    pub fn open(&self, prompt: Vec<Arc<[u32]>>, sampling: Sampling, seed: u64) -> Sequence {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let worker = self.workers[self.home(&prompt)].clone();
        // A stopped worker reports an error at the first turn.
        _ = worker.send(Command::Open { id, prompt, sampling, seed });
        Sequence { id, worker, next: self.next.clone(), sampling, seed, reopened: 0, unread: false }
    }

    /// The worker that has this prompt. New prompts are assigned round-robin.
    pub(super) fn home(&self, prompt: &[Arc<[u32]>]) -> usize {
        let mut encoder = Encoder::new("mcprl prompt v1");
        for piece in prompt {
            encoder.number(piece.len() as u64);
            piece.iter().for_each(|token| _ = encoder.number(u64::from(*token)));
        }
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        let next = homes.len() % self.workers.len();
        *homes.entry(encoder.finish()).or_insert(next)
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

    /// Appends given tokens, then samples until a token of `stop` or `max_new` tokens.
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
        let stopped = || EngineError::Worker { reason: "its thread has ended".into() };
        let (reply, result) = oneshot::channel();
        let given_up = std::mem::replace(&mut self.unread, true);
        let (id, append, stop) = (self.id, append.to_vec(), stop.to_vec());
        let turn = Command::Turn { id, append, stop, max_new, given_up, reply };
        self.worker.send(turn).map_err(|_| stopped())?;
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
