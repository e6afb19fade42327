use std::path::{Path, PathBuf};

use crate::error::{Class, Diagnostic};

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelStageError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a readable tokenizer: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("{folder} has no config.json")]
    NoConfig { folder: PathBuf },
    #[error("{folder} contains an adapter instead of a model")]
    Adapter { folder: PathBuf },
    #[error("`long_context` is for models with LongRoPE, and {folder} has none")]
    NoLongFactors { folder: PathBuf },
    #[error("`revision` is \"{revision}\", but {from}", from = if *id { "the id already has one after its `@`" } else { "a folder has no revisions" })]
    Revision { revision: String, id: bool },
    #[error(
        "{path} has a token \"{token}\" with id {id}, but the model's vocabulary has {vocabulary} tokens"
    )]
    Vocabulary { path: PathBuf, token: String, id: u32, vocabulary: usize },
    #[error("\"{id}\" is not a model id of the hub")]
    Id { id: String },
    #[error("{endpoint} denies access to {id} {}", if *token { "with this token" } else { "without a token" })]
    Denied { endpoint: String, id: String, token: bool },
    #[error("{endpoint} has no model {id} at revision {revision}")]
    Unknown { endpoint: String, id: String, revision: String },
    #[error("{id} at revision {revision} is not in {cache}, and HF_HUB_OFFLINE forbids downloading it")]
    Offline { id: String, revision: String, cache: PathBuf },
    #[error("{endpoint} cannot be reached for {what}: {reason}")]
    Network { endpoint: String, what: String, reason: String },
    #[error("the hub's cache {path} cannot be written")]
    Cache { path: PathBuf, source: std::io::Error },
    #[error("{name} has {found} bytes, but the hub lists {expected}")]
    Size { name: String, found: u64, expected: u64 },
    #[error("no folder for the hub's cache: neither HF_HOME nor HOME is set")]
    NoHome,
    #[error("{id} has no weights as safetensors")]
    NoWeights { id: String },
    #[error("cannot parse the hub's answer about {id}")]
    Answer { id: String },
}

impl ModelStageError {
    pub fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }
}

impl Diagnostic for ModelStageError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "model::read",
            Self::Write { .. } => "model::write",
            Self::Tokenizer { .. } => "model::tokenizer",
            Self::NoConfig { .. } => "model::no_config",
            Self::Adapter { .. } => "model::adapter_folder",
            Self::NoLongFactors { .. } => "model::no_long_factors",
            Self::Revision { .. } => "model::revision",
            Self::Vocabulary { .. } => "model::vocabulary",
            Self::Id { .. } => "hub::id",
            Self::Denied { .. } => "hub::denied",
            Self::Unknown { .. } => "hub::unknown",
            Self::Offline { .. } => "hub::offline",
            Self::Network { .. } => "hub::network",
            Self::Cache { .. } => "hub::cache",
            Self::Size { .. } => "hub::size",
            Self::NoHome => "hub::no_home",
            Self::NoWeights { .. } => "hub::no_weights",
            Self::Answer { .. } => "hub::answer",
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoConfig { .. } => {
                "a model's folder holds config.json, weights, tokenizer and chat template, as saved by `save_pretrained`"
            }
            Self::Adapter { .. } => {
                "a stage of kind `adapter` takes it, with `base` for the stage of its model; or merge it into its model first"
            }
            Self::NoLongFactors { .. } => "remove it; such a model has its whole context",
            Self::Revision { .. } => "remove one of them",
            Self::Vocabulary { .. } => "tokenizer and weights must come from the same model",
            Self::Id { .. } => "an id is OWNER/NAME, such as `Qwen/Qwen3-4B`; a folder is given by its path",
            Self::Denied { token: false, .. } => {
                "set HF_TOKEN; for a gated model, accept its licence on the hub first. An id that does not exist \
                 gets the same answer"
            }
            Self::Denied { .. } => "check HF_TOKEN; for a gated model, accept its licence on the hub first",
            Self::Unknown { .. } => "check the id and the revision",
            Self::Offline { .. } => "unset HF_HUB_OFFLINE, or give a folder in `from`",
            Self::Network { .. } => {
                "run again: finished downloads are kept. Without a network, give a folder in `from`; set a mirror \
                 with HF_ENDPOINT"
            }
            Self::Cache { .. } => "free some space, or set HF_HOME to another folder",
            Self::Size { .. } => "run again; it was removed. A proxy may have changed it",
            Self::NoHome => "set HF_HOME to a folder for models from the hub",
            Self::NoWeights { .. } => {
                "convert them with Transformers' save_pretrained, and give the folder in `from`"
            }
            _ => return None,
        };
        Some(hint.into())
    }

    fn is_transient(&self) -> bool {
        matches!(self, Self::Network { .. } | Self::Answer { .. } | Self::Size { .. })
    }

    fn class(&self) -> Class {
        match self {
            Self::Id { .. }
            | Self::NoConfig { .. }
            | Self::Adapter { .. }
            | Self::NoLongFactors { .. }
            | Self::Revision { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}
