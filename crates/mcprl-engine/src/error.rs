use mcprl_base::error::{Diagnostic, Interrupted};

use crate::model::ModelError;

/// A prediction of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetIndex {
    pub microbatch: usize,
    pub target: usize,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "engine")]
pub enum EngineError {
    #[error(transparent)]
    #[diagnostic(transparent)]
    Model(#[from] ModelError),
    #[error("device `{device}` is not available in this build")]
    #[hint = "set devices = [\"cpu\"] under [engine], or build with `--features cuda`"]
    Device { device: String },
    #[error("device `{device}` does not answer")]
    #[diagnostic(code = "absent_device")]
    #[hint = "`nvidia-smi` lists the devices and the driver's version"]
    Absent { device: String, source: Box<candle_core::Error> },
    #[error("the engine computes on `cpu` devices or on different CUDA devices, not on {devices}")]
    #[hint = "name each CUDA device once under [engine], without `cpu`"]
    Devices { devices: String },
    #[error("4-bit weights need bf16, which `{device}` is too old for: Ampere has it")]
    #[hint = "set dtype = \"f16\" under [engine]"]
    Format { device: String },
    #[error("a prompt has no tokens")]
    EmptyPrompt,
    #[error("the conversation has {tokens} tokens, the model's context is {context}")]
    #[hint = "lower max_turns, max_episode_tokens or result_chars of [agent]"]
    Context { tokens: usize, context: usize },
    #[error(
        "a conversation of {tokens} tokens needs {:.3} MiB for its keys and values, the limit per worker is {:.3} MiB",
        mib(*needs),
        mib(*bound)
    )]
    #[hint = "raise kv_cache_mib under [engine], which the workers share, or lower max_episode_tokens of [agent]"]
    Cache { tokens: usize, needs: usize, bound: usize },
    #[error("{what} needs {} MiB of memory, {} MiB are available", needs >> 20, available >> 20)]
    #[hint(change.clone())]
    Memory { what: &'static str, needs: usize, available: usize, change: String },
    #[error("the training step diverged: {what} is not a finite number")]
    #[hint = "lower learning_rate, or max_gradient_norm"]
    Diverged { what: &'static str },
    #[error("the log-probability of a token is not a finite number")]
    #[hint = "if it was trained here, lower learning_rate; otherwise its files may be damaged, or it does not \
        work in this dtype"]
    Logprob {
        /// The token as a target of its microbatch.
        target: TargetIndex,
    },
    #[error("the model's logits are not finite numbers")]
    #[hint = "if it was trained here, lower learning_rate; otherwise its files may be damaged, or it does not \
        work in this dtype"]
    Logits,
    #[error("the reply cannot be kept to its form: {reason}")]
    Guide { reason: String },
    #[error("the engine has computed no token for {minutes} minutes")]
    #[hint = "its device may hang: `nvidia-smi` shows its state; `mcprl resume` plays what is missing"]
    Stalled { minutes: u64 },
    #[error("an engine worker stopped: {reason}")]
    Worker { reason: String },
    #[error(transparent)]
    #[diagnostic(transparent)]
    Interrupted(#[from] Interrupted),
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl From<candle_core::Error> for EngineError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}
