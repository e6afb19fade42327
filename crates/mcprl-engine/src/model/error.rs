use std::path::PathBuf;

use mcprl_base::error::Diagnostic;

use super::Family;

/// Errors in a model, its files or its inputs.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "model::", serialize_all = "snake_case")]
pub enum ModelError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is not a readable safetensors file: {reason}")]
    Safetensors { path: PathBuf, reason: String },
    #[error("{path}: {reason}")]
    Config { path: PathBuf, reason: String },
    #[error("{path}: architecture `{found}` is not supported")]
    Architecture { path: PathBuf, found: String },
    #[error("{path}: weights quantised by `{method}` are not supported")]
    Quantised { path: PathBuf, method: String },
    #[error("{path}: tensor `{name}` is stored as {found}, which is not supported")]
    Stored { path: PathBuf, name: String, found: String },
    #[error("{path} lists `{shard}`, which is not in the folder")]
    MissingShard { path: PathBuf, shard: String },
    #[error("{path}: the model does not have the tensor `{name}`")]
    UnknownTensor { path: PathBuf, name: String },
    #[error("{folder} has no weights: neither model.safetensors nor model.safetensors.index.json")]
    NoWeights { folder: PathBuf },
    #[error("{path} has no tensor `{name}`")]
    MissingTensor { path: PathBuf, name: String },
    #[error("{path}: tensor `{name}` has shape {found:?}, the configuration says {expected:?}")]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{path}: tensor `{name}` has values that are not finite")]
    NotFinite { path: PathBuf, name: String },
    #[error("{path}: the adapter does not fit the model: {reason}")]
    Adapter { path: PathBuf, reason: String },
    #[error("the adapter cannot be created: {reason}")]
    Targets { reason: String },
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
    #[error("position {position} is beyond the model's context of {context} tokens")]
    Context { position: usize, context: usize },
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl Diagnostic for ModelError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Architecture { .. } => {
                let family = |family: &Family| format!("{} ({})", family.model_type(), family.known_as());
                let families: Vec<String> = Family::ALL.iter().map(family).collect();
                return Some(format!("supported: {}", families.join(", ")));
            }
            Self::Quantised { .. } | Self::Stored { .. } => {
                "use an unquantised checkpoint, in F32, F16 or BF16"
            }
            Self::MissingShard { .. } => "the download is incomplete; download the missing files",
            Self::NoWeights { .. } => {
                "only safetensors are read; convert older formats with Transformers' save_pretrained"
            }
            Self::Safetensors { .. } => {
                "the file is truncated or not safetensors; download or create it again"
            }
            Self::MissingTensor { .. } | Self::UnknownTensor { .. } | Self::Shape { .. } => {
                "config.json and the weights must come from the same model"
            }
            Self::Adapter { .. } => "load it with the base model it was trained on",
            Self::Targets { .. } => {
                "targets are names of linear layers (`q_proj`), `all-linear`, or `regex:` followed by a pattern"
            }
            Self::Context { .. } => "lower max_turns, max_turn_tokens or result_chars of the stage",
            _ => return None,
        };
        Some(hint.into())
    }
}
