use std::path::PathBuf;

use mcprl_base::error::Diagnostic;

/// Errors of a model's tokenizer or chat template.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "chat::", serialize_all = "snake_case")]
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
    #[error("{path} is not a valid tokenizer: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("{folder} has no chat template")]
    NoTemplate { folder: PathBuf },
    #[error("the chat template cannot be rendered: {}", described(.0))]
    Template(#[source] minijinja::Error),
    #[error("the chat template refuses a conversation with tools: {reason}")]
    #[strum(serialize = "template_refuses")]
    Refused { reason: String },
    #[error("the chat template hides from the model: {}", .missing.join(", "))]
    #[strum(serialize = "template_without_tools")]
    HidesTools { missing: Vec<&'static str> },
    #[error("the chat template writes tool calls in a format that mcprl does not support: {shown:?}")]
    UnknownFormat { shown: String },
    #[error("the chat template ends a turn with `{token}`, which the tokenizer does not have")]
    NoEndOfTurn { token: String },
    #[error("the chat template does not show how an earlier turn is written without its reasoning")]
    NoHistory,
}

/// The error with its detail; minijinja's own text may contain only the kind.
fn described(error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(" (line {line})")).unwrap_or_default();
    match error.detail() {
        Some(detail) => format!("{}: {detail}{line}", error.kind()),
        None => format!("{}{line}", error.kind()),
    }
}

impl Diagnostic for ChatError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Read { .. } => {
                "a policy folder needs tokenizer.json, tokenizer_config.json and a chat template, as \
                 `save_pretrained` writes them"
            }
            Self::NoTemplate { .. } => {
                "put a chat_template.jinja into the folder, or use the instruction-tuned variant of the model"
            }
            Self::Template(_) => {
                "render it with Transformers: if that fails too, put a working chat_template.jinja into a copy of the \
                 folder; otherwise the template uses a feature that mcprl does not support"
            }
            Self::Refused { .. } | Self::HidesTools { .. } => {
                "the template must render `tools`, `tool_calls` and messages with role `tool`; use a model that was \
                 trained to call tools, or set `calls_tools = false` if it only judges or writes tasks"
            }
            Self::UnknownFormat { .. } => {
                "supported formats: Hermes, Qwen, Llama 3 (JSON and Python lists), Mistral, Phi-4-mini"
            }
            Self::NoHistory => "keep the reasoning: `history_thinking = \"keep\"`",
            Self::Json { .. } | Self::Tokenizer { .. } | Self::NoEndOfTurn { .. } => return None,
        };
        Some(hint.into())
    }
}

/// Why a turn cannot be limited.
#[derive(Debug, thiserror::Error)]
pub enum GuideError {
    #[error("the tokens of this tokenizer are not known as bytes")]
    Tokenizer,
    #[error("calls are not JSON in this chat template")]
    Calls,
    #[error("{reason}")]
    Schema { reason: String },
}
