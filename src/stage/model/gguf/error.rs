use std::path::PathBuf;

use super::supported::{ARCHITECTURES, PRE_TOKENIZERS, TENSOR_TYPES};
use crate::error::Diagnostic;

/// Why a GGUF file cannot be the base model, or a model cannot become one.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "gguf", class = usage)]
pub enum GgufError {
    #[error("cannot read {path}")]
    #[diagnostic(class = work)]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {path}")]
    #[diagnostic(class = work)]
    Write { path: PathBuf, source: std::io::Error },
    /// The file is not what the format says.
    #[error("{path} is not a readable GGUF file: {reason}")]
    #[hint = "the file is truncated, damaged or not GGUF; download or create it again"]
    Malformed { path: PathBuf, reason: String },
    #[error("{path}: {what} `{found}` is not supported")]
    #[hint("convert it again with a current llama.cpp" if *what == Feature::Version)]
    #[hint(supported(&ARCHITECTURES.map(|(name, _)| name)) if *what == Feature::Architecture)]
    #[hint("supported: gpt2 (byte-level BPE), llama (SentencePiece)" if *what == Feature::Tokenizer)]
    #[hint(supported(&PRE_TOKENIZERS.map(|(name, _)| name)) if *what == Feature::PreTokenizer)]
    #[hint("supported: none, linear, yarn, and the factors of Llama 3" if *what == Feature::Rope)]
    #[hint("use the model's Hugging Face folder, if its family is supported" if *what == Feature::Setting)]
    Unsupported { path: PathBuf, what: Feature, found: String },
    #[error("a GGUF file with the {what} `{found}` cannot be written")]
    #[hint("merge the adapter: `--merge`" if *what == Feature::Module)]
    #[hint("llama.cpp has the patterns of published tokenizers alone; the demo's is not one of them" if *what == Feature::PreTokenizer)]
    #[hint = "write the merged model (`--merge` without `--gguf`) and convert it with llama.cpp's convert_hf_to_gguf.py"]
    Unwritable { what: Feature, found: String },
    #[error("{path}: tensor `{name}` is stored as {found}, which is not supported")]
    #[hint(supported(&TENSOR_TYPES.map(|(_, name, _)| name)))]
    Stored { path: PathBuf, name: String, found: String },
    #[error("{path} has no metadata `{key}`")]
    #[hint = "one file must contain the whole model: weights, tokenizer and chat template"]
    Missing { path: PathBuf, key: String },
    #[error("{path}: metadata `{key}`: {reason}")]
    Metadata { path: PathBuf, key: String, reason: String },
    #[error("{path} has no tensor `{name}`")]
    #[hint = "one file must contain the whole model: weights, tokenizer and chat template"]
    MissingTensor { path: PathBuf, name: String },
    #[error("{path}: the decoder has no place for the tensor `{name}`")]
    #[hint = "use the model's Hugging Face folder, if its family is supported"]
    UnknownTensor { path: PathBuf, name: String },
    #[error("{path}: tensor `{name}` has shape {found:?}, the metadata says {expected:?}")]
    #[hint = "metadata and tensors must come from the same model"]
    Shape { path: PathBuf, name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{path} has no chat template")]
    #[hint = "convert the model again from a folder whose tokenizer has a chat template"]
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

fn supported(names: &[&str]) -> String {
    format!("supported: {}", names.join(", "))
}
