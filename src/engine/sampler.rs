//! Handles to a policy at work: what the rest of the house sees of sampling.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
};

use tokio::sync::oneshot;

use super::{
    Crew, EngineError, EngineSpec, Places, Sampling, load_frozen,
    replicas::{Replica, in_turn},
    worker::{Command, Worker},
};
#[cfg(test)]
use crate::model::ops::composed;
use crate::{
    hash::{Digest, Encoder},
    model::{Adapter, Decoder},
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

/// What a policy has computed so far.
#[derive(Debug, Default)]
pub struct Usage {
    /// Tokens sampled.
    pub sampled: AtomicU64,
    /// Tokens that went through the decoder, sampled or given, each shared one once.
    pub computed: AtomicU64,
}

/// A policy at work: a cheap handle to worker threads, on one device or several, that end with the last handle.
#[derive(Clone)]
pub struct Sampler {
    workers: Vec<Sender<Command>>,
    /// Which worker holds a prompt, so that a group's sequences meet there.
    homes: Arc<Mutex<BTreeMap<Digest, usize>>>,
    next: Arc<AtomicU64>,
    usage: Arc<Usage>,
}

/// One conversation with the policy; its cache is freed when dropped.
pub struct Sequence {
    id: u64,
    worker: Sender<Command>,
    /// Ids of all sequences of the policy.
    next: Arc<AtomicU64>,
    sampling: Sampling,
    seed: u64,
    /// How often it was opened anew.
    reopened: u64,
}

impl Sampler {
    /// Loads a policy: a Hugging Face model folder, or with `base` an adapter folder and the model it sits on.
    pub fn load(policy: &Path, base: Option<&Path>, spec: &EngineSpec) -> Result<Self, EngineError> {
        let places = spec.places()?;
        let mut decoder = load_frozen(base.unwrap_or(policy), spec.dtype, &places.first.device)?;
        if base.is_some() {
            Adapter::load(&mut decoder, policy)?;
        }
        Self::across(decoder, &places)
    }

    /// Puts a decoder to work on this many threads.
    pub fn new(decoder: Decoder, threads: usize) -> Self {
        let crew = Crew::new(&decoder, threads);
        Self::start(vec![Replica { decoder, crew }])
    }

    /// Puts a decoder to work on the first of these places, and copies of it on the others.
    pub fn across(decoder: Decoder, places: &Places) -> Result<Self, EngineError> {
        let others = Replica::of(&decoder, &places.others)?;
        let crew = Crew::new(&decoder, places.first.threads);
        Ok(Self::start(std::iter::once(Replica { decoder, crew }).chain(others).collect()))
    }

    fn start(replicas: Vec<Replica>) -> Self {
        let usage = Arc::new(Usage::default());
        let workers: Vec<usize> = replicas.iter().map(|replica| replica.crew.workers()).collect();
        let shared = |Replica { decoder, crew }| (Arc::new(decoder), crew);
        let replicas: Vec<_> = replicas.into_iter().map(shared).collect();
        let start = |(index, replica): (usize, usize)| {
            let (sender, receiver) = channel();
            let (decoder, crew) = replicas[replica].clone();
            let worker = Worker::new(decoder, usage.clone());
            #[cfg(test)]
            let forced = composed::forced();
            std::thread::Builder::new()
                .name(format!("sampler-{index}"))
                .spawn(move || {
                    #[cfg(test)]
                    let _forced = forced.then(composed::force);
                    crew.run(|| worker.run(receiver));
                })
                .expect("the system can start a thread");
            sender
        };
        // Prompts go to the workers in turn, and so to the devices.
        let workers = in_turn(&workers).into_iter().enumerate().map(start).collect();
        Self { workers, homes: Arc::default(), next: Arc::default(), usage }
    }

    /// Starts a conversation. `prompt` is cut where sharing ends: equal leading pieces are computed once for all sequences.
    pub fn open(&self, prompt: Vec<Arc<[u32]>>, sampling: Sampling, seed: u64) -> Sequence {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let worker = self.workers[self.home(&prompt)].clone();
        // A worker that has stopped says so at the first turn.
        _ = worker.send(Command::Open { id, prompt, sampling, seed });
        Sequence { id, worker, next: self.next.clone(), sampling, seed, reopened: 0 }
    }

    /// The worker that holds this prompt; a new one goes to each in turn.
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

    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Tokens sampled so far, by all sequences of this policy.
    pub fn sampled_tokens(&self) -> u64 {
        self.usage.sampled.load(Ordering::Relaxed)
    }
}

impl Sequence {
    /// Goes on from another prompt: leading pieces it has in common with earlier ones are not computed again. Draws come
    /// from a seed of their own.
    pub fn reopen(&mut self, prompt: Vec<Arc<[u32]>>) {
        self.reopened += 1;
        let mut encoder = Encoder::new("mcprl reopened sequence v1");
        let seed = encoder.number(self.seed).number(self.reopened).finish().seed();
        let (old, sampling) = (self.id, self.sampling);
        self.id = self.next.fetch_add(1, Ordering::Relaxed);
        // Opened first, closed then: what both stand on is in use throughout.
        _ = self.worker.send(Command::Open { id: self.id, prompt, sampling, seed });
        _ = self.worker.send(Command::Close { id: old });
    }

    /// Appends given tokens, then samples until a token of `stop` or `max_new` tokens.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, the context is already full, or the worker has stopped.
    pub async fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
    ) -> Result<Sampled, EngineError> {
        let stopped = || EngineError::Worker { reason: "its thread has ended".into() };
        let (reply, result) = oneshot::channel();
        let turn =
            Command::Turn { id: self.id, append: append.to_vec(), stop: stop.to_vec(), max_new, reply };
        self.worker.send(turn).map_err(|_| stopped())?;
        result.await.map_err(|_| stopped())?
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        _ = self.worker.send(Command::Close { id: self.id });
    }
}
