use std::path::PathBuf;

use mcprl_base::error::Diagnostic;

/// Errors of a model's tokenizer or chat template.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "chat")]
pub enum ChatError {
    #[error("cannot read {path}")]
    #[hint = "a policy folder needs tokenizer.json, tokenizer_config.json and a chat template, as \
        `save_pretrained` writes them"]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not valid JSON")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{path} is not a valid tokenizer: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("{folder} has no chat template")]
    #[hint = "put a chat_template.jinja into the folder, or use the instruction-tuned variant of the model"]
    NoTemplate { folder: PathBuf },
    #[error("the chat template cannot be rendered: {}", described(.0))]
    #[hint = "render it with Transformers: if that fails too, put a working chat_template.jinja into a copy of the \
        folder; otherwise the template uses a feature that mcprl does not support"]
    Template(#[source] minijinja::Error),
    #[error("the chat template refuses a conversation with tools: {reason}")]
    #[diagnostic(code = "template_refuses")]
    #[hint = "the template must render `tools`, `tool_calls` and messages with role `tool`; use a model that was \
        trained to call tools, or set `calls_tools = false` if it only judges or writes tasks"]
    Refused { reason: String },
    #[error("the chat template hides from the model: {}", .missing.join(", "))]
    #[diagnostic(code = "template_without_tools")]
    #[hint = "the template must render `tools`, `tool_calls` and messages with role `tool`; use a model that was \
        trained to call tools, or set `calls_tools = false` if it only judges or writes tasks"]
    HidesTools { missing: Vec<&'static str> },
    #[error("the chat template writes tool calls in a format that mcprl does not support: {shown:?}")]
    #[hint = "supported formats: Hermes, Qwen, Llama 3 (JSON and Python lists), Mistral, Phi-4-mini"]
    UnknownFormat { shown: String },
    #[error("the chat template ends a turn with `{token}`, which the tokenizer does not have")]
    NoEndOfTurn { token: String },
    #[error("the chat template does not show how an earlier turn is written without its reasoning")]
    #[hint = "keep the reasoning: `history_thinking = \"keep\"`"]
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
