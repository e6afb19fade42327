//! Checks of a model before it is read completely.

use std::path::Path;

use super::{
    ModelStageError, Params, gguf,
    gguf::is_gguf,
    hub::{Hub, check_id},
};
use crate::{
    chat::{Chat, PlainChat},
    model::{ModelConfig, Weights},
    stage::preflight::{ExpectedOutput, ExpectedPolicy, Preflight, PreflightContext},
};

const CONFIG: &str = "config.json";

/// For a GGUF file, checks everything but the tensors' values. For a folder, checks the configuration, the weight headers and the chat format. For a hub id, checks its
/// syntax, and the configuration if the hub's cache has it.
pub fn preflight(params: &Params, context: &PreflightContext<'_>) -> Preflight {
    let mut preflight = Preflight::default();
    if let Some(folder) = (context.finished)("policy") {
        return match ModelConfig::load(&folder) {
            Ok(config) => preflight.with("policy", expected(config, &folder)),
            Err(_) => preflight,
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
            Some(config) => preflight.with("policy", ExpectedPolicy { config, adapter: None, folder: None }),
            None => preflight,
        };
    }
    if folder.is_absolute() {
        let config = look_into(folder, *calls_tools, &mut preflight);
        return match config {
            Some(config) => preflight.with("policy", expected(config, folder)),
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
                    let config = folder.and_then(|folder| Some((ModelConfig::load(folder).ok()?, folder)));
                    if let Some((config, folder)) = config {
                        return preflight.with("policy", expected(config, folder));
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

fn expected(config: ModelConfig, folder: &Path) -> ExpectedOutput {
    ExpectedPolicy { config, adapter: None, folder: Some(folder.to_owned()) }.into()
}

/// Reports everything wrong with the folder that small files and the headers of large files show.
fn look_into(folder: &Path, calls_tools: bool, preflight: &mut Preflight) -> Option<ModelConfig> {
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
    fits.map(|()| config)
}
