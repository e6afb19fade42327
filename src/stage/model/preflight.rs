//! Checks of a model before it is read completely.

use std::path::Path;

use serde_json::Value;

use super::{
    ModelStageError, Params, gguf,
    gguf::is_gguf,
    hub::{Hub, check_id},
};
use crate::{
    chat::{Chat, PlainChat},
    model::{ModelConfig, Weights, kernels::Format},
    stage::preflight::{ExpectedOutput, ExpectedPolicy, Preflight, PreflightContext},
};

const CONFIG: &str = "config.json";

/// For a GGUF file, checks everything but the tensors' values. For a folder, checks the configuration, the weight headers and the chat format. For a hub id, checks its
/// syntax, and the configuration if the hub's cache has it.
pub fn preflight(params: &Params, context: &PreflightContext<'_>) -> Preflight {
    let mut preflight = Preflight::default();
    if let Some(folder) = (context.finished)("policy") {
        return match expected(&folder) {
            Some(expected) => preflight.with("policy", expected),
            None => preflight,
        };
    }
    let Params { from, revision, calls_tools } = params;
    let folder = Path::new(from);
    let (id, behind) = match from.split_once('@') {
        Some((id, behind)) => (id, Some(behind)),
        None => (from.as_str(), None),
    };
    if let Some(revision) = revision.clone().filter(|_| folder.is_absolute() || behind.is_some()) {
        preflight.error("revision", ModelStageError::Revision { revision, id: !folder.is_absolute() });
        return preflight;
    }
    if is_gguf(folder) {
        let config = preflight.check("from", gguf::preflight(folder, *calls_tools));
        return match config {
            // Tokenizer and template have no folder before the stage has run.
            Some(config) => {
                let stored = gguf::FORMAT;
                preflight.with("policy", ExpectedPolicy { config, stored, adapter: None, folder: None })
            }
            None => preflight,
        };
    }
    if folder.is_absolute() {
        let expected =
            look_into(folder, context, *calls_tools, &mut preflight).and_then(|()| expected(folder));
        return match expected {
            Some(expected) => preflight.with("policy", expected),
            None => preflight,
        };
    }
    let revision = behind.or(revision.as_deref()).unwrap_or("main");
    if preflight.check("from", check_id(id, revision)).is_some() {
        match Hub::from_env() {
            Ok(hub) => match hub.cached(id, revision) {
                Ok(files) => {
                    let file = files.iter().find(|(name, _)| name == CONFIG).map(|(_, path)| path);
                    let folder = file.and_then(|path| path.parent());
                    if let Some(config) = folder.and_then(|folder| ModelConfig::load(folder).ok()) {
                        preflight.check("from", context.engine.check_model(&config));
                    }
                    if let Some(expected) = folder.and_then(expected) {
                        return preflight.with("policy", expected);
                    }
                }
                Err(cause) if hub.offline => preflight.unavailable("from", cause),
                Err(_) => {}
            },
            Err(cause) => preflight.unavailable("from", cause),
        }
    }
    preflight
}

/// The model in a folder, whose weights may not be there yet.
fn expected(folder: &Path) -> Option<ExpectedOutput> {
    let config = ModelConfig::load(folder).ok()?;
    let stored = Weights::open(folder).map_or_else(|_| declared_format(folder), |weights| weights.format());
    Some(ExpectedPolicy { config, stored, adapter: None, folder: Some(folder.to_owned()) }.into())
}

/// The type of the weights according to `config.json`.
fn declared_format(folder: &Path) -> Format {
    let text = std::fs::read(folder.join(CONFIG)).unwrap_or_default();
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    match ["dtype", "torch_dtype"].into_iter().find_map(|key| config.get(key)?.as_str()) {
        Some("bfloat16") => Format::Bf16,
        Some("float16") => Format::F16,
        _ => Format::F32,
    }
}

/// Reports everything wrong with the folder that small files and the headers of large files show.
fn look_into(
    folder: &Path,
    context: &PreflightContext<'_>,
    calls_tools: bool,
    preflight: &mut Preflight,
) -> Option<()> {
    if !folder.join(CONFIG).is_file() {
        let folder = folder.to_owned();
        preflight.error(
            "from",
            match folder.join("adapter_config.json").is_file() {
                true => ModelStageError::Adapter { folder },
                false => ModelStageError::NoConfig { folder },
            },
        );
        return None;
    }
    let config = preflight.check("from", ModelConfig::load(folder))?;
    preflight.check("from", context.engine.check_model(&config));
    let fits = preflight.check("from", Weights::open(folder).and_then(|weights| weights.check(&config)));
    match calls_tools {
        true => _ = preflight.check("from", Chat::preflight(folder)),
        false => _ = preflight.check("from", PlainChat::load(folder)),
    }
    // Weights that do not fit may claim any size, so make no estimate.
    fits
}
