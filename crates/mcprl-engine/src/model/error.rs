use std::path::PathBuf;

use mcprl_base::error::Diagnostic;

use super::Family;

/// Errors in a model, its files or its inputs.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "model")]
pub enum ModelError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a readable safetensors file: {reason}")]
    #[hint = "the file is truncated or not safetensors; download or create it again"]
    Safetensors { path: PathBuf, reason: String },
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path}: architecture `{found}` is not supported")]
    #[hint(format!("supported: {}", families()))]
    Architecture { path: PathBuf, found: String },
    #[error("{path}: weights quantised by `{method}` are not supported")]
    #[hint = "use an unquantised checkpoint, in F32, F16 or BF16"]
    Quantised { path: PathBuf, method: String },
    #[error("{path}: tensor `{name}` is stored as {found}, which is not supported")]
    #[hint = "use an unquantised checkpoint, in F32, F16 or BF16"]
    Stored { path: PathBuf, name: String, found: String },
    #[error("{path} lists `{shard}`, which is not in the folder")]
    #[hint = "the download is incomplete; download the missing files"]
    MissingShard { path: PathBuf, shard: String },
    #[error("{path}: the model does not have the tensor `{name}`")]
    #[hint = "config.json and the weights must come from the same model"]
    UnknownTensor { path: PathBuf, name: String },
    #[error(
        "{path}: `lm_head.weight` is not the embedding, though config.json has `tie_word_embeddings`: true"
    )]
    #[hint = "Transformers does not tie them then; write \"tie_word_embeddings\": false into config.json if the head is meant"]
    OtherHead { path: PathBuf },
    #[error("{folder} has no weights: neither model.safetensors nor model.safetensors.index.json")]
    #[hint = "only safetensors are read; convert older formats with Transformers' save_pretrained"]
    NoWeights { folder: PathBuf },
    #[error("{path} has no tensor `{name}`")]
    #[hint = "config.json and the weights must come from the same model"]
    MissingTensor { path: PathBuf, name: String },
    #[error("{path}: tensor `{name}` has shape {found:?}, the configuration says {expected:?}")]
    #[hint = "config.json and the weights must come from the same model"]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{path}: tensor `{name}` has values that are not finite")]
    NotFinite { path: PathBuf, name: String },
    #[error("{path}: the adapter does not fit the model: {reason}")]
    #[hint = "load it with the base model it was trained on"]
    Adapter { path: PathBuf, reason: String },
    #[error("the adapter cannot be created: {reason}")]
    #[hint = "targets are names of linear layers (`q_proj`), `all-linear`, or `regex:` followed by a pattern"]
    Targets { reason: String },
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("position {position} is beyond the model's context of {context} tokens")]
    #[hint = "lower max_turns, max_turn_tokens or result_chars of the stage"]
    Context { position: usize, context: usize },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// Types of models, each with the names of its members.
fn families() -> String {
    let family = |family: &Family| format!("{} ({})", family.model_type(), family.known_as());
    Family::ALL.iter().map(family).collect::<Vec<_>>().join(", ")
}
