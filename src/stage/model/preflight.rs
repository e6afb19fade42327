//! Checks of a model before it is read completely.

use std::path::Path;

use serde_json::Value;

use super::{
    ModelStage, ModelStageError, folder_of, gguf,
    gguf::is_gguf,
    hub::{self, Hub},
    long_context,
};
use crate::{
    chat::{Chat, PlainChat},
    model::{ModelConfig, Weights, kernels::Format},
    stage::preflight::{ExpectedPolicy, Preflight, PreflightContext},
};

const CONFIG: &str = "config.json";

/// For a GGUF file, checks everything but the tensors' values. For a folder, checks the configuration, the weight headers and the chat format. For a hub id, checks its
/// syntax, and the configuration if the hub's cache has it.
pub fn preflight(stage: &ModelStage, context: &PreflightContext<'_>) -> Preflight {
    let mut preflight = Preflight::default();
    match policy(stage, context, &mut preflight) {
        Some(policy) => preflight.with("policy", policy),
        None => preflight,
    }
}

/// The model as far as it is known. Reports what is wrong with it.
fn policy(
    ModelStage { from, revision, calls_tools, long_context }: &ModelStage,
    context: &PreflightContext<'_>,
    preflight: &mut Preflight,
) -> Option<ExpectedPolicy> {
    if let Some(folder) = (context.finished)("policy") {
        return expected(&folder);
    }
    let folder = Path::new(from);
    let (id, behind) = hub::split(from);
    if let Some(revision) = revision.clone().filter(|_| folder.is_absolute() || behind.is_some()) {
        preflight.error("revision", ModelStageError::Revision { revision, id: !folder.is_absolute() });
        return None;
    }
    let lengthened = |mut expected: ExpectedPolicy, preflight: &mut Preflight| {
        if let Some(folder) = expected.folder.as_deref().filter(|_| *long_context) {
            expected.config = preflight.check("long_context", long_context::expected(folder))?;
        }
        Some(expected)
    };
    if is_gguf(folder) {
        let config = preflight.check("from", gguf::preflight(folder, *calls_tools))?;
        if *long_context {
            preflight.error("long_context", ModelStageError::NoLongFactors { folder: folder.to_owned() });
            return None;
        }
        // Tokenizer and template have no folder before the stage has run.
        return Some(ExpectedPolicy { config, stored: gguf::FORMAT, adapter: None, folder: None });
    }
    if folder.is_absolute() {
        look_into(folder, *calls_tools, preflight)?;
        return lengthened(expected(folder)?, preflight);
    }
    let revision = behind.or(revision.as_deref()).unwrap_or("main");
    preflight.check("from", hub::check_id(id, revision))?;
    let hub = Hub::from_env().map_err(|cause| preflight.unavailable("from", cause)).ok()?;
    match hub.cached(id, revision) {
        Ok(files) => lengthened(expected(folder_of(&files)?)?, preflight),
        Err(cause) => {
            if hub.offline {
                preflight.unavailable("from", cause);
            }
            None
        }
    }
}

/// The model in a folder, whose weights may not be there yet.
fn expected(folder: &Path) -> Option<ExpectedPolicy> {
    let config = ModelConfig::load(folder).ok()?;
    let stored = Weights::open(folder).map_or_else(|_| declared_format(folder), |weights| weights.format());
    Some(ExpectedPolicy { config, stored, adapter: None, folder: Some(folder.to_owned()) })
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
fn look_into(folder: &Path, calls_tools: bool, preflight: &mut Preflight) -> Option<()> {
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
    let fits = preflight.check("from", Weights::open(folder).and_then(|weights| weights.check(&config)));
    match calls_tools {
        true => _ = preflight.check("from", Chat::preflight(folder)),
        false => _ = preflight.check("from", PlainChat::load(folder)),
    }
    // Weights that do not fit may claim any size, so make no estimate.
    fits
}
