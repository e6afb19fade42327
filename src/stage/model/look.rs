//! What can be said of a model before it is read whole.

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

/// Of a folder the configuration, the headers of the weights and the way it writes conversations; of a hub id how it
/// reads, and the configuration where the hub's cache on disk has it.
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

/// Everything wrong with the folder, as far as its small files and the headers of its large ones show it.
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
    let fits = outlook.take("from", Weights::open(folder).and_then(|weights| weights.fit(&config)));
    outlook.take("from", Chat::glance(folder));
    // Of one that has no such weights, and may claim any size, nothing is foretold.
    fits.map(|()| config)
}
