use std::path::PathBuf;

use crate::error::Diagnostic;

/// What can be wrong with a model's way of writing conversations.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not valid JSON")]
    Json {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path} is not a tokenizer: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("{folder} has no chat template")]
    NoTemplate { folder: PathBuf },
    #[error("the chat template cannot be rendered: {}", described(.0))]
    Template(#[source] minijinja::Error),
    #[error("the chat template refuses a conversation with tools: {said}")]
    Refused { said: String },
    #[error("the chat template does not show the model {}", .missing.join(", "))]
    Blind { missing: Vec<&'static str> },
    #[error("the chat template writes tool calls in a format mcprl does not know: {shown:?}")]
    UnknownFormat { shown: String },
    #[error("the tokenizer lacks `{token}`, which the chat template ends a turn with")]
    NoEndOfTurn { token: String },
    #[error("the chat template does not show how an earlier turn is written without its reasoning")]
    NoHistory,
}

/// minijinja's own text names the kind alone where the detail holds the cause.
fn described(error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

impl Diagnostic for ChatError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "chat::read",
            Self::Json { .. } => "chat::json",
            Self::Tokenizer { .. } => "chat::tokenizer",
            Self::NoTemplate { .. } => "chat::no_template",
            Self::Template(_) => "chat::template",
            Self::Refused { .. } => "chat::template_refuses",
            Self::Blind { .. } => "chat::template_without_tools",
            Self::UnknownFormat { .. } => "chat::unknown_format",
            Self::NoEndOfTurn { .. } => "chat::no_end_of_turn",
            Self::NoHistory => "chat::no_history",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some(
                "a policy folder needs tokenizer.json, tokenizer_config.json and a chat template, as saved by \
                 `save_pretrained`"
                    .into(),
            ),
            Self::NoTemplate { .. } => Some(
                "put a chat_template.jinja into the folder, or use the instruction-tuned model in place of its base"
                    .into(),
            ),
            Self::Template(_) => Some(
                "render it with Transformers: if that fails too, put a chat_template.jinja that renders into a copy of \
                 the folder; if not, the template needs what mcprl lacks"
                    .into(),
            ),
            Self::Refused { .. } | Self::Blind { .. } => Some(
                "an agent's template must render `tools`, `tool_calls` and messages with role `tool`; use a model \
                 that was trained to call tools"
                    .into(),
            ),
            Self::UnknownFormat { .. } => {
                Some(
                    "the formats known are those of Hermes, Qwen, Llama 3 (JSON and Python lists), Mistral and Phi-4-mini"
                        .into(),
                )
            }
            Self::NoHistory => Some("let it stay: `history_thinking = \"keep\"`".into()),
            Self::Json { .. } | Self::Tokenizer { .. } | Self::NoEndOfTurn { .. } => None,
        }
    }
}
