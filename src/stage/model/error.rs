use std::path::{Path, PathBuf};

use crate::error::Diagnostic;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "model")]
pub enum ModelStageError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a readable tokenizer: {reason}")]
    Tokenizer { path: PathBuf, reason: String },
    #[error("{folder} has no config.json")]
    #[diagnostic(class = usage)]
    #[hint = "a model's folder holds config.json, weights, tokenizer and chat template, as saved by `save_pretrained`"]
    NoConfig { folder: PathBuf },
    #[error("{folder} contains an adapter instead of a model")]
    #[diagnostic(code = "adapter_folder", class = usage)]
    #[hint = "a stage of kind `adapter` takes it, with `base` for the stage of its model; or merge it into its model first"]
    Adapter { folder: PathBuf },
    #[error("`long_context` is for models with LongRoPE, and {folder} has none")]
    #[diagnostic(class = usage)]
    #[hint = "remove it; such a model has its whole context"]
    NoLongFactors { folder: PathBuf },
    #[error("`revision` is \"{revision}\", but {from}", from = if *id { "the id already has one after its `@`" } else { "a folder has no revisions" })]
    #[diagnostic(class = usage)]
    #[hint = "remove one of them"]
    Revision { revision: String, id: bool },
    #[error(
        "{path} has a token \"{token}\" with id {id}, but the model's vocabulary has {vocabulary} tokens"
    )]
    #[hint = "tokenizer and weights must come from the same model"]
    Vocabulary { path: PathBuf, token: String, id: u32, vocabulary: usize },
    #[error("\"{id}\" is not a model id of the hub")]
    #[diagnostic(code = "hub::id", class = usage)]
    #[hint = "an id is OWNER/NAME, such as `Qwen/Qwen3-4B`; a folder is given by its path"]
    Id { id: String },
    #[error("{endpoint} denies access to {id} {}", if *token { "with this token" } else { "without a token" })]
    #[diagnostic(code = "hub::denied")]
    #[hint("set HF_TOKEN; for a gated model, accept its licence on the hub first. An id that does not exist \
        gets the same answer" if !*token)]
    #[hint = "check HF_TOKEN; for a gated model, accept its licence on the hub first"]
    Denied { endpoint: String, id: String, token: bool },
    #[error("{endpoint} has no model {id} at revision {revision}")]
    #[diagnostic(code = "hub::unknown")]
    #[hint = "check the id and the revision"]
    Unknown { endpoint: String, id: String, revision: String },
    #[error("{id} at revision {revision} is not in {cache}, and HF_HUB_OFFLINE forbids downloading it")]
    #[diagnostic(code = "hub::offline")]
    #[hint = "unset HF_HUB_OFFLINE, or give a folder in `from`"]
    Offline { id: String, revision: String, cache: PathBuf },
    #[error("{endpoint} cannot be reached for {what}: {reason}")]
    #[diagnostic(code = "hub::network", transient)]
    #[hint = "run again: finished downloads are kept. Without a network, give a folder in `from`; set a mirror \
        with HF_ENDPOINT"]
    Network { endpoint: String, what: String, reason: String },
    #[error("the hub's cache {path} cannot be written")]
    #[diagnostic(code = "hub::cache")]
    #[hint = "free some space, or set HF_HOME to another folder"]
    Cache { path: PathBuf, source: std::io::Error },
    #[error("{name} has {found} bytes, but the hub lists {expected}")]
    #[diagnostic(code = "hub::size", transient)]
    #[hint = "run again; it was removed. A proxy may have changed it"]
    Size { name: String, found: u64, expected: u64 },
    #[error("no folder for the hub's cache: neither HF_HOME nor HOME is set")]
    #[diagnostic(code = "hub::no_home")]
    #[hint = "set HF_HOME to a folder for models from the hub"]
    NoHome,
    #[error("{id} has no weights as safetensors")]
    #[diagnostic(code = "hub::no_weights")]
    #[hint = "convert them with Transformers' save_pretrained, and give the folder in `from`"]
    NoWeights { id: String },
    #[error("cannot parse the hub's answer about {id}")]
    #[diagnostic(code = "hub::answer", transient)]
    Answer { id: String },
}

impl ModelStageError {
    pub fn write(path: &Path, source: std::io::Error) -> Self {
        Self::Write { path: path.to_owned(), source }
    }
}
