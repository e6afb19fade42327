use std::path::PathBuf;

use super::supported::{ARCHITECTURES, PRE_TOKENIZERS, TENSOR_TYPES};
use crate::error::{Class, Diagnostic};

/// Why a GGUF file cannot be the base model, or a model cannot become one.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "gguf::", serialize_all = "snake_case")]
pub enum GgufError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    /// The file is not what the format says.
    #[error("{path} is not a readable GGUF file: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error("{path}: {what} `{found}` is not supported")]
    Unsupported { path: PathBuf, what: Feature, found: String },
    #[error("a GGUF file with the {what} `{found}` cannot be written")]
    Unwritable { what: Feature, found: String },
    #[error("{path}: tensor `{name}` is stored as {found}, which is not supported")]
    Stored { path: PathBuf, name: String, found: String },
    #[error("{path} has no metadata `{key}`")]
    Missing { path: PathBuf, key: String },
    #[error("{path}: metadata `{key}`: {reason}")]
    Metadata { path: PathBuf, key: String, reason: String },
    #[error("{path} has no tensor `{name}`")]
    MissingTensor { path: PathBuf, name: String },
    #[error("{path}: the decoder has no place for the tensor `{name}`")]
    UnknownTensor { path: PathBuf, name: String },
    #[error("{path}: tensor `{name}` has shape {found:?}, the metadata says {expected:?}")]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{path} has no chat template")]
    NoTemplate { path: PathBuf },
    #[error("{path}: tensor `{name}` cannot be converted: {reason}")]
    Convert { path: PathBuf, name: String, reason: String },
}

/// Something that a file asks for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub enum Feature {
    Version,
    Architecture,
    Tokenizer,
    PreTokenizer,
    #[strum(to_string = "scaling of the rotary embedding")]
    Rope,
    Setting,
    #[strum(to_string = "adapter of the module")]
    Module,
}

impl Diagnostic for GgufError {
    fn code(&self) -> &'static str {
        self.into()
    }

    fn hint(&self) -> Option<String> {
        let supported = |names: &[&str]| Some(format!("supported: {}", names.join(", ")));
        let hint = match self {
            Self::Malformed { .. } => {
                "the file is truncated, damaged or not GGUF; download or create it again"
            }
            Self::Unsupported { what: Feature::Version, .. } => "convert it again with a current llama.cpp",
            Self::Unsupported { what: Feature::Architecture, .. } => {
                return supported(&ARCHITECTURES.map(|(name, _)| name));
            }
            Self::Unsupported { what: Feature::Tokenizer, .. } => {
                "supported: gpt2 (byte-level BPE), llama (SentencePiece)"
            }
            Self::Unsupported { what: Feature::PreTokenizer, .. } => {
                return supported(&PRE_TOKENIZERS.map(|(name, _)| name));
            }
            Self::Unsupported { what: Feature::Rope, .. } => {
                "supported: none, linear, yarn, and the factors of Llama 3"
            }
            Self::Unsupported { what: Feature::Setting, .. } | Self::UnknownTensor { .. } => {
                "use the model's Hugging Face folder, if its family is supported"
            }
            Self::Unwritable { what: Feature::Module, .. } => "merge the adapter: `--merge`",
            Self::Unwritable { what: Feature::PreTokenizer, .. } => {
                "llama.cpp has the patterns of published tokenizers alone; the demo's is not one of them"
            }
            Self::Unwritable { .. } => {
                "write the merged model (`--merge` without `--gguf`) and convert it with llama.cpp's convert_hf_to_gguf.py"
            }
            Self::Stored { .. } => return supported(&TENSOR_TYPES.map(|(_, name, _)| name)),
            Self::Missing { .. } | Self::MissingTensor { .. } => {
                "one file must contain the whole model: weights, tokenizer and chat template"
            }
            Self::Shape { .. } => "metadata and tensors must come from the same model",
            Self::NoTemplate { .. } => {
                "convert the model again from a folder whose tokenizer has a chat template"
            }
            _ => return None,
        };
        Some(hint.into())
    }

    fn class(&self) -> Class {
        match self {
            Self::Read { .. } | Self::Write { .. } => Class::Work,
            _ => Class::Usage,
        }
    }
}
