//! The tokenizer and chat template files of a model folder.

use std::path::Path;

use serde_json::{Map, Value};

use super::ChatError;

pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ChatError> {
    let text = std::fs::read(path).map_err(|source| ChatError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

/// Checks that the file exists and starts like a JSON object, without reading the rest, which may be long.
pub(super) fn begins_as_json(path: &Path) -> Result<(), ChatError> {
    let mut first = [0; 64];
    let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read(&mut file, &mut first));
    let read = read.map_err(|source| ChatError::Read { path: path.to_owned(), source })?;
    match first[..read].trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        _ => {
            let reason = "it does not contain a JSON object".to_owned();
            Err(ChatError::Tokenizer { path: path.to_owned(), reason })
        }
    }
}

/// `bos_token`, `eos_token`, …: each a string or an object with `content`.
pub(super) fn named_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
    let content = |name: &str| {
        let token = config.get(name)?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(Value::from)
    };
    names.into_iter().filter_map(|name| Some((name.to_owned(), content(name)?))).collect()
}

/// Path of a separate template for tools, which some models have besides `chat_template.jinja`.
pub const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
const MAIN_TEMPLATE: &str = "chat_template.jinja";

/// The template from its own file, or from `tokenizer_config.json`. If there are several, the one for tools, as in
/// Transformers.
pub fn template_source(folder: &Path, config: &Map<String, Value>) -> Result<String, ChatError> {
    first_template(folder, config, [TOOL_TEMPLATE, MAIN_TEMPLATE], ["tool_use", "default"])
}

/// The same for conversations without tools: if there are several, the default.
pub fn plain_template_source(folder: &Path, config: &Map<String, Value>) -> Result<String, ChatError> {
    first_template(folder, config, [MAIN_TEMPLATE, TOOL_TEMPLATE], ["default", "tool_use"])
}

fn first_template(
    folder: &Path,
    config: &Map<String, Value>,
    files: [&str; 2],
    names: [&str; 2],
) -> Result<String, ChatError> {
    for name in files {
        let path = folder.join(name);
        match std::fs::read_to_string(&path) {
            Ok(source) => return Ok(source),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(ChatError::Read { path, source }),
        }
    }
    let named = |name: &str| {
        let templates = config.get("chat_template")?.as_array()?;
        let template = templates.iter().find(|template| template.get("name").is_some_and(|n| n == name))?;
        template.get("template")?.as_str()
    };
    let single = config.get("chat_template").and_then(Value::as_str);
    single
        .or_else(|| names.into_iter().find_map(named))
        .map(str::to_owned)
        .ok_or_else(|| ChatError::NoTemplate { folder: folder.to_owned() })
}

/// `eos_token_id` of `generation_config.json`: a number, a list, or nothing.
pub(super) fn generation_stops(folder: &Path) -> Result<Vec<u32>, ChatError> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let config: Map<String, Value> = read_json(&path)?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    })
}
