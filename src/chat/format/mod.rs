//! The ways model families write tool calls: one file per format.

mod hermes;

use super::{ToolCall, Turn};

#[cfg(test)]
pub(super) use hermes::tests::tool_call;

/// A tool-call format: how calls are written by the model, and read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// JSON between `<tool_call>` tags: Hermes, Qwen2.5, Qwen3.
    Hermes,
}

impl Format {
    const ALL: [Self; 1] = [Self::Hermes];

    /// The format in which a template wrote this call.
    pub fn detect(written: &str, call: &ToolCall) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.parse(written).calls == [Ok(call.clone())])
    }

    /// The token a turn ends with.
    pub fn end_of_turn(self) -> &'static str {
        match self {
            Self::Hermes => hermes::END_OF_TURN,
        }
    }

    /// A turn as the model writes it, without its end.
    pub fn assistant(self, text: &str, calls: &[ToolCall]) -> String {
        match self {
            Self::Hermes => hermes::assistant(text, calls),
        }
    }

    /// Reads a turn. Total: any text gives a turn.
    pub fn parse(self, text: &str) -> Turn {
        match self {
            Self::Hermes => hermes::parse(text),
        }
    }
}
