//! A GGUF file as a base model: its weights, dequantized to bf16, its tokenizer and its chat template become the folder
//! that Transformers would have saved.
//!
//! A tensor is converted at a time; the file is never a whole model in memory. [`mod@write`] goes the other way.

mod decoder;
mod error;
mod file;
mod metadata;
mod supported;
mod tensors;
mod tokenizer;
mod vocabulary;
pub mod write;

#[cfg(test)]
mod tests;

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use serde_json::json;

pub use self::error::{Feature, GgufError};
use self::{
    file::{Content, GgufFile},
    tensors::{TensorSource, sources},
    tokenizer::GgufTokenizer,
};
use crate::{
    error::{Failure, Interrupted, Result},
    model::{Bytes, Entry, ModelConfig, ModelError, kernels::Format, write_entries},
    progress::Observer,
};

/// The type that weights are converted to. A few small vectors are wider.
pub const FORMAT: Format = Format::Bf16;

/// Whether a path names a GGUF file, or is one: other programs store them under names of their own.
pub fn is_gguf(path: &Path) -> bool {
    let is_named = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    let begins_so = || {
        let mut start = [0; 4];
        let read =
            std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
        read.is_ok() && start == *b"GGUF"
    };
    !path.is_dir() && (is_named || path.is_file() && begins_so())
}

/// Checks everything but the tensors' values, and returns the configuration.
pub fn preflight(path: &Path, calls_tools: bool) -> Result<ModelConfig> {
    let file = GgufFile::open(path)?;
    let content = file.content()?;
    let config = decoder::config(&content)?;
    sources(&content, &config)?;
    let tokenizer = GgufTokenizer::of(&content, config.vocabulary)?;
    if calls_tools {
        tokenizer.check_template()?;
    }
    Ok(config)
}

/// Writes configuration, tokenizer and chat template into a folder.
pub fn write_small_files(path: &Path, folder: &Path) -> Result<()> {
    let file = GgufFile::open(path)?;
    let content = file.content()?;
    Ok(small_files(&content, &decoder::config(&content)?, folder)?)
}

fn small_files(content: &Content<'_>, config: &ModelConfig, folder: &Path) -> Result<(), GgufError> {
    let tokenizer = GgufTokenizer::of(content, config.vocabulary)?;
    let mut json = config.to_json();
    json["torch_dtype"] = json!("bfloat16");
    for (key, id) in tokenizer.ids() {
        json[key] = json!(id);
    }
    let mut files = tokenizer.files(content, config.context)?;
    files.push(("config.json", format!("{json:#}\n")));
    for (name, text) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, text));
        written.map_err(|source| GgufError::Write { path: path.clone(), source })?;
    }
    Ok(())
}

/// Bytes of the weights in a converted folder.
pub fn converted_bytes(path: &Path) -> Result<u64> {
    let file = GgufFile::open(path)?;
    let content = file.content()?;
    let sources = sources(&content, &decoder::config(&content)?)?;
    let bytes = |(source, shape): &(TensorSource, Vec<usize>)| {
        shape.iter().product::<usize>() * source.dtype.size_in_bytes()
    };
    Ok(sources.values().map(|tensor| bytes(tensor) as u64).sum())
}

/// Input and output embedding, or the one that is both.
pub fn embeddings(path: &Path) -> Result<Vec<Tensor>> {
    let file = GgufFile::open(path)?;
    let content = file.content()?;
    let config = decoder::config(&content)?;
    let sources = sources(&content, &config)?;
    let names = ["model.embed_tokens.weight", "lm_head.weight"].into_iter();
    let matrix = |(source, shape): &(TensorSource, Vec<usize>)| -> Result<Tensor> {
        let bytes = source.read(&content, shape)?;
        Ok(Tensor::from_raw_buffer(&bytes, source.dtype, shape, &Device::Cpu).map_err(ModelError::from)?)
    };
    names.filter_map(|name| sources.get(name)).map(matrix).collect()
}

/// Writes the model as a folder.
///
/// # Errors
/// If the file is damaged, or the decoder does not support what it asks for.
pub fn convert(
    path: &Path,
    folder: &Path,
    observer: &dyn Observer,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<()> {
    let file = GgufFile::open(path)?;
    let content = file.content()?;
    let config = decoder::config(&content)?;
    let sources = sources(&content, &config)?;
    small_files(&content, &config, folder)?;
    let count = sources.len();
    let entries = sources.into_iter().enumerate().map(|(index, (name, (source, shape)))| {
        let content = &content;
        let dtype = if source.dtype == DType::F32 { Dtype::F32 } else { Dtype::BF16 };
        let of_values = shape.clone();
        let bytes = move || {
            if is_cancelled() {
                return Err(Interrupted.into());
            }
            observer.status(&format!("dequantizing tensor {} of {count}", index + 1));
            Ok(Box::new(source.read(content, &of_values)?) as Bytes)
        };
        (name, Entry::<Failure> { dtype, shape, bytes: Box::new(bytes) })
    });
    write_entries(&folder.join("model.safetensors"), entries.collect())
}
