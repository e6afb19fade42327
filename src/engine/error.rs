use crate::{error::Diagnostic, model::ModelError};

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("device `{device}` is not available in this build")]
    Device { device: String },
    #[error("device `{device}` does not answer")]
    Absent {
        device: String,
        #[source]
        source: Box<candle_core::Error>,
    },
    #[error("the engine computes on `cpu` devices or on different CUDA devices, not on {devices}")]
    Devices { devices: String },
    #[error("weights of 4 bits are held on the CPU alone, not on `{device}`")]
    Format { device: String },
    #[error("a prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    #[error("the conversation already holds {tokens} tokens, the model's context is {context}")]
    Context { tokens: usize, context: usize },
    #[error(
        "a conversation of {tokens} tokens needs {:.3} MiB for its keys and values, a worker may hold {:.3} MiB",
        mib(*needs),
        mib(*bound)
    )]
    Cache { tokens: usize, needs: usize, bound: usize },
    #[error("{what} needs {} MiB of memory, {} MiB are left", needs >> 20, available >> 20)]
    Memory { what: &'static str, needs: usize, available: usize, change: String },
    #[error("the training step diverged: {what} is not a finite number")]
    Diverged { what: &'static str },
    #[error("the model computes logits that are not finite numbers")]
    Logits,
    #[error("an engine worker stopped: {reason}")]
    Worker { reason: String },
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
            Self::Device { .. } => "engine::device",
            Self::Absent { .. } => "engine::absent_device",
            Self::Devices { .. } => "engine::devices",
            Self::Format { .. } => "engine::format",
            Self::EmptyPrompt => "engine::empty_prompt",
            Self::Context { .. } => "engine::context",
            Self::Cache { .. } => "engine::cache",
            Self::Memory { .. } => "engine::memory",
            Self::Diverged { .. } => "engine::diverged",
            Self::Logits => "engine::logits",
            Self::Worker { .. } => "engine::worker",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Model(error) => error.hint(),
            Self::Device { .. } => {
                Some("set devices = [\"cpu\"] under [engine], or build with `--features cuda`".into())
            }
            Self::Absent { .. } => Some("`nvidia-smi` lists the devices and the driver's version".into()),
            Self::Devices { .. } => {
                Some("name each CUDA device once under [engine], and `cpu` not beside them".into())
            }
            Self::Format { .. } => Some("set dtype = \"bf16\" under [engine]".into()),
            Self::Context { .. } => Some("lower max_turns, max_tokens or result_tokens of the stage".into()),
            Self::Cache { .. } => Some(
                "raise kv_cache_mib under [engine], which the workers share, or lower max_tokens of the stage".into(),
            ),
            Self::Memory { change, .. } => Some(change.clone()),
            Self::Diverged { .. } => Some("lower learning_rate, or max_gradient_norm".into()),
            Self::Logits => Some(
                "if it was trained here, lower learning_rate; if not, its files may be damaged, or not made for this dtype".into(),
            ),
            _ => None,
        }
    }
}
