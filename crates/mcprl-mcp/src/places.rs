//! What takes the place of `{session}` and `{dir}`: the name and the folder of one session, and what the agent sees of them.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::snapshot::{self, PLACEHOLDER, SHOWN};

/// What stands for the session's name in settings.
pub const SESSION: &str = "{session}";

/// The name as the agent sees it.
pub const SHOWN_NAME: &str = "mcprl_session";

/// What takes the place of [`PLACEHOLDER`] and [`SESSION`].
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) folder: Option<PathBuf>,
    pub(super) name: String,
}

impl Places {
    /// A setting with both in place.
    pub(super) fn fill(&self, text: &str) -> String {
        let text = text.replace(SESSION, &self.name);
        match &self.folder {
            Some(folder) => text.replace(PLACEHOLDER, &folder.to_string_lossy()),
            None => text,
        }
    }

    /// Real values and what the agent sees of them.
    pub(super) fn shown(&self) -> impl Iterator<Item = (String, &'static str)> {
        let folder = self.folder.iter().map(|folder| (folder.to_string_lossy().into_owned(), SHOWN));
        folder.chain([(self.name.clone(), SHOWN_NAME)])
    }

    /// Arguments with the real values in place of the shown ones.
    pub(super) fn real_arguments(&self, arguments: Map<String, Value>) -> Map<String, Value> {
        arguments.into_iter().map(|(name, value)| (name, self.real(value))).collect()
    }

    fn real(&self, value: Value) -> Value {
        match value {
            Value::String(text) => {
                let text = text.replace(SHOWN_NAME, &self.name);
                match &self.folder {
                    Some(folder) => snapshot::replace_path(&text, &folder.to_string_lossy()).into(),
                    None => text.into(),
                }
            }
            Value::Array(items) => items.into_iter().map(|item| self.real(item)).collect(),
            Value::Object(fields) => self.real_arguments(fields).into(),
            other => other,
        }
    }
}
