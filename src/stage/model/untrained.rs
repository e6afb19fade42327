//! Tokens that a model's chat template writes and its training never saw.
//!
//! Tags, such as `<tool_call>`, become ordinary text: their entries are removed from the tokenizer, so the template's text
//! is made of tokens that the model knows. Control tokens structure a conversation and cannot be text, so they are only
//! reported.

use std::{collections::BTreeSet, path::Path};

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use super::ModelStageError;
use crate::{
    chat::{Chat, TemplateToken},
    error::Result,
    model::{ModelConfig, ModelError, Weights, untrained},
    stage::model_files::RECORD,
};

/// The content of [`RECORD`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Tokens of the chat template whose entries were removed from the tokenizer, because the model was not trained on
    /// them.
    pub demoted_tokens: Vec<String>,
}

impl Record {
    /// The record of a model's folder; an empty one if there is none.
    pub fn load(folder: &Path) -> Self {
        let text = std::fs::read(folder.join(RECORD)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

/// Tokens of a template that are untrained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Untrained {
    pub tags: Vec<String>,
    pub controls: Vec<String>,
}

impl Untrained {
    /// Input and output embedding are read from the weights in this folder.
    pub fn of(folder: &Path, config: &ModelConfig, chat: &Chat) -> Result<Self, ModelError> {
        let mut weights = Weights::open(folder)?;
        let names = ["model.embed_tokens.weight", "lm_head.weight"];
        let taken = names.into_iter().take(if config.tied { 1 } else { 2 });
        let matrices = taken.map(|name| weights.take(name, &[config.vocabulary, config.hidden]));
        Self::among(&matrices.collect::<Result<Vec<_>, _>>()?, config, chat)
    }

    /// The same, with the embeddings given.
    pub fn among(matrices: &[Tensor], config: &ModelConfig, chat: &Chat) -> Result<Self, ModelError> {
        let tokens = chat.template_tokens();
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let found = untrained(matrices, &ids, &chat.unused_ids(config.vocabulary))?;
        let texts = |is_tag: bool| {
            let tokens = tokens.iter().filter(|token| token.is_tag == is_tag && found.contains(&token.id));
            tokens.map(|TemplateToken { text, .. }| text.clone()).collect()
        };
        Ok(Self { tags: texts(true), controls: texts(false) })
    }
}

/// Tags of the chat template in a model's folder that its tokenizer has and its training never saw. None if it has no
/// tokenizer or template.
pub fn untrained_tags(folder: &Path) -> Result<Vec<String>, ModelError> {
    let Ok(chat) = Chat::load(folder) else { return Ok(Vec::new()) };
    Ok(Untrained::of(folder, &ModelConfig::load(folder)?, &chat)?.tags)
}

/// `…` and `…` are in the template but untrained.
pub fn sentence(tokens: &[String]) -> String {
    let quoted: Vec<String> = tokens.iter().map(|token| format!("`{token}`")).collect();
    let (verb, names) = match quoted.split_last() {
        Some((last, [])) => ("is", last.clone()),
        Some((last, others)) => ("are", format!("{} and {last}", others.join(", "))),
        None => return String::new(),
    };
    format!(
        "{names} {verb} in the chat template, but the model was not trained on {}",
        if verb == "is" { "it" } else { "them" }
    )
}

/// Removes these tokens' entries from the tokenizer of a folder, so that they are ordinary text, and records that.
/// Returns whether it was possible: without the entries, text must become the same tokens as before and back.
pub fn demote(folder: &Path, tokens: &[String]) -> Result<bool, ModelStageError> {
    let path = folder.join("tokenizer.json");
    let unreadable = |reason: String| ModelStageError::Tokenizer { path: path.clone(), reason };
    let text = std::fs::read(&path).map_err(|source| ModelStageError::Read { path: path.clone(), source })?;
    let before = Tokenizer::from_bytes(&text).map_err(|error| unreadable(error.to_string()))?;
    let mut file: Value = serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
    if !remove_entries(&mut file, tokens) {
        return Ok(false);
    }
    let text = file.to_string();
    let Ok(after) = Tokenizer::from_bytes(text.as_bytes()) else { return Ok(false) };
    let mut expected = before.get_vocab(true);
    expected.retain(|token, _| !tokens.contains(token));
    let is_text = |token: &String| {
        let ids = after.encode_fast(token.as_str(), false).map(|encoding| encoding.get_ids().to_vec());
        ids.is_ok_and(|ids| after.decode(&ids, false).is_ok_and(|text| text == *token))
    };
    if after.get_vocab(true) != expected || !tokens.iter().all(is_text) {
        return Ok(false);
    }
    replace(&path, &text)?;
    for name in ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"] {
        let path = folder.join(name);
        let Ok(text) = std::fs::read(&path) else { continue };
        let Ok(mut file) = serde_json::from_slice::<Map<String, Value>>(&text) else { continue };
        forget(&mut file, tokens);
        replace(&path, &format!("{:#}\n", Value::Object(file)))?;
    }
    let record = Record { demoted_tokens: tokens.to_vec() };
    replace(&folder.join(RECORD), &format!("{:#}\n", json!(record)))?;
    Ok(true)
}

/// Removes the entries from `tokenizer.json`. Other added tokens get an entry in the vocabulary, because an id that only
/// their position gives would change. False if the vocabulary cannot have entries at any id.
fn remove_entries(file: &mut Value, tokens: &[String]) -> bool {
    let is_removed =
        |token: &Value| token.as_str().is_some_and(|text| tokens.iter().any(|token| token == text));
    let Some(Value::Array(added)) = file.get_mut("added_tokens") else { return false };
    added.retain(|token| !is_removed(&token["content"]));
    let others = added.clone();
    let Some(Value::Object(vocab)) = file.get_mut("model").and_then(|model| model.get_mut("vocab")) else {
        return false;
    };
    vocab.retain(|token, _| !tokens.contains(token));
    for token in others {
        if let (Some(content), Some(id)) = (token["content"].as_str(), token["id"].as_u64()) {
            vocab.entry(content).or_insert(id.into());
        }
    }
    true
}

/// Removes tokens from the other files of a tokenizer. Transformers adds what these list to `tokenizer.json`.
fn forget(file: &mut Map<String, Value>, tokens: &[String]) {
    let removed: BTreeSet<&str> = tokens.iter().map(String::as_str).collect();
    let is_removed = |value: &Value| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str());
        text.is_some_and(|text| removed.contains(text))
    };
    file.retain(|token, id| !(removed.contains(token.as_str()) && id.is_u64()));
    for key in ["added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"] {
        match file.get_mut(key) {
            Some(Value::Array(list)) => list.retain(|token| !is_removed(token)),
            Some(Value::Object(fields)) => fields.retain(|_, token| !is_removed(token)),
            _ => {}
        }
    }
}

/// Writes a file anew: the one there may be a link to the hub's cache.
pub fn replace(path: &Path, text: &str) -> Result<(), ModelStageError> {
    let writing = |source| ModelStageError::write(path, source);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(writing(error)),
        _ => {}
    }
    std::fs::write(path, text).map_err(writing)
}
