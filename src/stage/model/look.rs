//! Checks of a model before it is read completely.

use std::path::Path;

use super::{
    ModelStageError, Params,
    hub::{Hub, check_id},
};
use crate::{
    chat::Chat,
    model::{ModelConfig, Weights},
    stage::{
        memory::Policy,
        prospect::{Foreseen, Outlook, Prospect},
    },
};

const CONFIG: &str = "config.json";

/// For a folder, checks the configuration, the weight headers and the chat format. For a hub id, checks its
/// syntax, and the configuration if the hub's cache has it.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    if let Some(folder) = (prospect.finished)("policy") {
        return match ModelConfig::load(&folder) {
            Ok(config) => outlook.with("policy", foreseen(config, &folder)),
            Err(_) => outlook,
        };
    }
    let Some(Params { from, revision }) = prospect.params(&mut outlook) else { return outlook };
    let folder = Path::new(&from);
    let (id, behind) = match from.split_once('@') {
        Some((id, behind)) => (id, Some(behind)),
        None => (from.as_str(), None),
    };
    if let Some(revision) = revision.clone().filter(|_| folder.is_absolute() || behind.is_some()) {
        outlook.object("revision", ModelStageError::Revision { revision, id: !folder.is_absolute() });
        return outlook;
    }
    if folder.is_absolute() {
        let config = look_into(folder, &mut outlook);
        return match config {
            Some(config) => outlook.with("policy", foreseen(config, folder)),
            None => outlook,
        };
    }
    let revision = behind.or(revision.as_deref()).unwrap_or("main");
    if outlook.take("from", check_id(id, revision)).is_some() {
        match Hub::from_env() {
            Ok(hub) => match hub.cached(id, revision) {
                Ok(files) => {
                    let file = files.iter().find(|(name, _)| name == CONFIG).map(|(_, path)| path);
                    let folder = file.and_then(|path| path.parent());
                    let config = folder.and_then(|folder| Some((ModelConfig::load(folder).ok()?, folder)));
                    if let Some((config, folder)) = config {
                        return outlook.with("policy", foreseen(config, folder));
                    }
                }
                Err(cause) if hub.offline => outlook.lack("from", cause),
                Err(_) => {}
            },
            Err(cause) => outlook.lack("from", cause),
        }
    }
    outlook
}

fn foreseen(config: ModelConfig, folder: &Path) -> Foreseen {
    Policy { config, adapter: None, folder: Some(folder.to_owned()) }.into()
}

/// Reports everything wrong with the folder that small files and the headers of large files show.
fn look_into(folder: &Path, outlook: &mut Outlook) -> Option<ModelConfig> {
    if !folder.join(CONFIG).is_file() {
        let folder = folder.to_owned();
        outlook.object(
            "from",
            match folder.join("adapter_config.json").is_file() {
                true => ModelStageError::Adapter { folder },
                false => ModelStageError::NoConfig { folder },
            },
        );
        return None;
    }
    let config = outlook.take("from", ModelConfig::load(folder))?;
    let fits = outlook.take("from", Weights::open(folder).and_then(|weights| weights.check(&config)));
    outlook.take("from", Chat::preflight(folder));
    // Weights that do not fit may claim any size, so make no estimate.
    fits.map(|()| config)
}
