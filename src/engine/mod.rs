//! The model at work: sampling and training over shared prefixes.

use std::{path::Path, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::error::Diagnostic;

/// Where and how the model computes, as the run file resolved it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// `cpu` or `cuda:N`.
    pub devices: Vec<String>,
    /// Worker threads of a `cpu` device; all cores where absent.
    pub threads: Option<usize>,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("to be written")]
    Todo,
}

impl Diagnostic for EngineError {
    fn code(&self) -> &'static str {
        "engine::todo"
    }
}

/// How a token is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f32,
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: usize,
    pub min_p: f32,
}

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

/// A policy at work: a cheap handle to worker threads that hold the weights.
#[derive(Clone)]
pub struct Sampler {}

/// One conversation with the policy; its cache is freed when dropped.
pub struct Sequence {}

impl Sampler {
    /// Loads a policy folder (a Hugging Face model folder, or an adapter folder with `policy.json`).
    pub fn load(_policy: &Path, _base: Option<&Path>, _spec: &EngineSpec) -> Result<Self, EngineError> {
        todo!()
    }
    /// Starts a conversation. `prompt` is cut where sharing ends: equal leading pieces are computed once for all sequences.
    /// What is sampled depends on the prompt, `seed` and `sampling` alone, not on what else is running.
    pub fn open(&self, _prompt: Vec<Arc<[u32]>>, _sampling: Sampling, _seed: u64) -> Sequence {
        todo!()
    }
    /// Tokens sampled so far, by all sequences of this policy.
    pub fn sampled_tokens(&self) -> u64 {
        todo!()
    }
}

impl Sequence {
    /// Appends given tokens, then samples until a token of `stop` or `max_new` tokens.
    pub async fn turn(
        &mut self,
        _append: &[u32],
        _stop: &[u32],
        _max_new: usize,
    ) -> Result<Sampled, EngineError> {
        todo!()
    }
}
