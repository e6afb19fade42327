use crate::{error::Diagnostic, model::ModelError};

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("device `{device}` is not available in this build")]
    Device { device: String },
    #[error("a prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    #[error("the conversation already holds {tokens} tokens, the model's context is {context}")]
    Context { tokens: usize, context: usize },
    #[error("the training step diverged: {what} is not a finite number")]
    Diverged { what: &'static str },
    #[error("an engine worker stopped: {reason}")]
    Worker { reason: String },
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
            Self::EmptyPrompt => "engine::empty_prompt",
            Self::Context { .. } => "engine::context",
            Self::Diverged { .. } => "engine::diverged",
            Self::Worker { .. } => "engine::worker",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Model(error) => error.hint(),
            Self::Device { .. } => {
                Some("this build computes on `cpu`; set devices = [\"cpu\"] under [engine]".into())
            }
            Self::Context { .. } => Some("lower max_turns, max_tokens or result_tokens of the stage".into()),
            Self::Diverged { .. } => Some("lower learning_rate, or max_gradient_norm".into()),
            _ => None,
        }
    }
}
