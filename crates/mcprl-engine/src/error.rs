use mcprl_base::error::{Class, Diagnostic, Interrupted};

use crate::model::ModelError;

/// A prediction of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetIndex {
    pub microbatch: usize,
    pub target: usize,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "engine::", serialize_all = "snake_case")]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("device `{device}` is not available in this build")]
    Device { device: String },
    #[error("device `{device}` does not answer")]
    #[strum(serialize = "absent_device")]
    Absent {
        device: String,
        #[source]
        source: Box<candle_core::Error>,
    },
    #[error("the engine computes on `cpu` devices or on different CUDA devices, not on {devices}")]
    Devices { devices: String },
    #[error("4-bit weights need bf16, which `{device}` is too old for: Ampere has it")]
    Format { device: String },
    #[error("a prompt has no tokens")]
    EmptyPrompt,
    #[error("the conversation has {tokens} tokens, the model's context is {context}")]
    Context { tokens: usize, context: usize },
    #[error(
        "a conversation of {tokens} tokens needs {:.3} MiB for its keys and values, the limit per worker is {:.3} MiB",
        mib(*needs),
        mib(*bound)
    )]
    Cache { tokens: usize, needs: usize, bound: usize },
    #[error("{what} needs {} MiB of memory, {} MiB are available", needs >> 20, available >> 20)]
    Memory { what: &'static str, needs: usize, available: usize, change: String },
    #[error("the training step diverged: {what} is not a finite number")]
    Diverged { what: &'static str },
    #[error("the log-probability of a token is not a finite number")]
    Logprob {
        /// The token as a target of its microbatch.
        target: TargetIndex,
    },
    #[error("the model's logits are not finite numbers")]
    Logits,
    #[error("the reply cannot be kept to its form: {reason}")]
    Guide { reason: String },
    #[error("the engine has computed no token for {minutes} minutes")]
    Stalled { minutes: u64 },
    #[error("an engine worker stopped: {reason}")]
    Worker { reason: String },
    #[error(transparent)]
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

impl Diagnostic for EngineError {
    fn code(&self) -> &'static str {
        match self {
            Self::Model(error) => error.code(),
            Self::Interrupted(interrupted) => interrupted.code(),
            other => other.into(),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Model(error) => return error.hint(),
            Self::Memory { change, .. } => return Some(change.clone()),
            Self::Device { .. } => "set devices = [\"cpu\"] under [engine], or build with `--features cuda`",
            Self::Absent { .. } => "`nvidia-smi` lists the devices and the driver's version",
            Self::Devices { .. } => "name each CUDA device once under [engine], without `cpu`",
            Self::Format { .. } => "set dtype = \"f16\" under [engine]",
            Self::Context { .. } => "lower max_turns, max_episode_tokens or result_chars of [agent]",
            Self::Cache { .. } => {
                "raise kv_cache_mib under [engine], which the workers share, or lower max_episode_tokens of [agent]"
            }
            Self::Diverged { .. } => "lower learning_rate, or max_gradient_norm",
            Self::Logits | Self::Logprob { .. } => {
                "if it was trained here, lower learning_rate; otherwise its files may be damaged, or it does not \
                 work in this dtype"
            }
            Self::Stalled { .. } => {
                "its device may hang: `nvidia-smi` shows its state; `mcprl resume` plays what is missing"
            }
            Self::EmptyPrompt | Self::Guide { .. } | Self::Worker { .. } | Self::Interrupted(_) => {
                return None;
            }
        };
        Some(hint.into())
    }

    fn class(&self) -> Class {
        match self {
            Self::Interrupted(interrupted) => interrupted.class(),
            _ => Class::Work,
        }
    }
}
