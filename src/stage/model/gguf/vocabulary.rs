//! The tokenizer of a model's folder, with its chat template, as metadata of a GGUF file.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Feature, GgufError,
    metadata::{Meta, Metadata},
    supported::{PRE_TOKENIZERS, Pre},
};
use crate::{
    chat::{PlainChat, plain_template_source, template_source},
    error::Result,
    model::{ModelError, read_json},
};

#[derive(Deserialize)]
struct Tokenizer {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
    vocab: BTreeMap<String, usize>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair([String; 2]),
    Text(String),
}

#[derive(Deserialize)]
struct Added {
    id: usize,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The metadata of a tokenizer for an embedding of this many rows.
///
/// # Errors
/// If a file is missing or broken, or llama.cpp has no name for the kind of tokenizer.
pub fn metadata(folder: &Path, rows: usize) -> Result<Metadata> {
    let path = folder.join("tokenizer.json");
    let tokenizer: Tokenizer = read_json(&path)?;
    let config: Map<String, Value> = read_json(&folder.join("tokenizer_config.json"))?;
    let unwritable = |what, found: &str| GgufError::Unwritable { what, found: found.into() };
    let Tokenizer { model, added_tokens, pre_tokenizer, post_processor } = tokenizer;
    if model.kind != "BPE" || model.byte_fallback {
        let found = if model.byte_fallback { "SentencePiece" } else { &model.kind };
        return Err(unwritable(Feature::Tokenizer, found).into());
    }
    let shown = pre_tokenizer.as_ref().map(kinds).unwrap_or_default().join(", ");
    let pre = pre_tokenizer.as_ref().and_then(pre_name);
    let pre = pre.ok_or_else(|| unwritable(Feature::PreTokenizer, &shown))?;

    let mut tokens: Vec<(String, i32)> = (0..rows).map(|id| (format!("[PAD{id}]"), UNUSED)).collect();
    let normal = model.vocab.into_iter().map(|(token, id)| (id, token, NORMAL));
    let added = added_tokens
        .into_iter()
        .map(|Added { id, content, special }| (id, content, if special { CONTROL } else { USER_DEFINED }));
    for (id, token, kind) in normal.chain(added) {
        let Some(place) = tokens.get_mut(id) else {
            let reason = format!("the token {id} is beyond the {rows} rows of the embedding");
            return Err(ModelError::Config { path, reason }.into());
        };
        *place = (token, kind);
    }
    let merge = |merge: Merge| match merge {
        Merge::Pair([left, right]) => format!("{left} {right}"),
        Merge::Text(text) => text,
    };
    let merges = model.merges.into_iter().map(merge).collect();
    let id = |text: &str| tokens.iter().position(|(token, kind)| token == text && *kind != UNUSED);
    let named = |name: &str| {
        let token = config.get(name)?;
        id(token.as_str().or_else(|| token.get("content")?.as_str())?)
    };
    let stops = PlainChat::load(folder)?.stop().to_vec();
    let eos = named("eos_token").or_else(|| stops.first().map(|stop| *stop as usize));
    let eot = stops.first().map(|stop| *stop as usize).filter(|stop| Some(*stop) != eos);
    let ids = [
        ("bos", named("bos_token")),
        ("eos", eos),
        ("eot", eot),
        ("unknown", named("unk_token")),
        ("padding", named("pad_token")),
    ];
    let ids: Vec<(String, Meta)> = ids
        .into_iter()
        .filter_map(|(name, id)| Some((key(&format!("{name}_token_id")), Meta::from(id?))))
        .collect();
    let adds_bos = config.get("add_bos_token").and_then(Value::as_bool);
    let adds_bos = adds_bos.unwrap_or_else(|| {
        post_processor.is_some_and(|processor| processor.to_string().contains("TemplateProcessing"))
    });
    let (texts, types) = tokens.into_iter().unzip();
    let mut metadata: Metadata = vec![
        (key("model"), "gpt2".into()),
        (key("pre"), pre.into()),
        (key("tokens"), Meta::Texts(texts)),
        (key("token_type"), Meta::Integers(types)),
        (key("merges"), Meta::Texts(merges)),
        (key("add_bos_token"), Meta::Flag(adds_bos)),
    ];
    metadata.extend(ids);
    let (plain, for_tools) = (plain_template_source(folder, &config)?, template_source(folder, &config)?);
    if for_tools != plain {
        metadata.push(("tokenizer.chat_templates".into(), Meta::Texts(vec!["tool_use".into()])));
        metadata.push(("tokenizer.chat_template.tool_use".into(), Meta::Text(for_tools)));
    }
    metadata.push(("tokenizer.chat_template".into(), Meta::Text(plain)));
    Ok(metadata)
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

/// The steps of a pre-tokenizer.
fn parts(pre_tokenizer: &Value) -> Vec<&Value> {
    match pre_tokenizer["pretokenizers"].as_array() {
        Some(parts) => parts.iter().collect(),
        None => vec![pre_tokenizer],
    }
}

fn kinds(pre_tokenizer: &Value) -> Vec<&str> {
    parts(pre_tokenizer).into_iter().filter_map(|part| part["type"].as_str()).collect()
}

/// llama.cpp's name of a pre-tokenizer. It has the pattern in its code, so what splits differently has no name.
fn pre_name(pre_tokenizer: &Value) -> Option<&'static str> {
    let (parts, kinds) = (parts(pre_tokenizer), kinds(pre_tokenizer));
    let is_same = |pre: &Pre| match (kinds.as_slice(), pre.pattern()) {
        (["ByteLevel"], None) => parts[0]["use_regex"] != false && *pre != Pre::SmolLm,
        (["Digits", "ByteLevel"], None) => parts[0]["individual_digits"] == true && *pre == Pre::SmolLm,
        (["Split", "ByteLevel"], Some(pattern)) => parts[0]["pattern"]["Regex"] == pattern,
        _ => false,
    };
    PRE_TOKENIZERS.iter().find(|(_, pre)| is_same(pre)).map(|(name, _)| *name)
}
