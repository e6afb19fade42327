//! Changes between two lists of a server's tools.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    data::{self, Tool},
    hash::Digest,
    store::Store,
};

/// Names of tools.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolChanges {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// The schema of the arguments changed.
    #[serde(default)]
    pub schemas: Vec<String>,
    /// The description or another text changed.
    pub changed: Vec<String>,
}

/// `added export; removed search; schema of list; description of read`.
impl fmt::Display for ToolChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { added, removed, schemas, changed } = self;
        let all =
            [("added", added), ("removed", removed), ("schema of", schemas), ("description of", changed)];
        let parts = all.iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = parts.map(|(what, names)| format!("{what} {}", names.join(", "))).collect();
        f.write_str(&parts.join("; "))
    }
}

impl ToolChanges {
    /// Compares two artifacts of type `tools`, if both are in the store.
    pub fn between(store: &Store, old: &Digest, new: &Digest) -> Option<Self> {
        let read = |digest| data::read(&outputs_path(store.artifact(digest))?).ok();
        Some(Self::between_lists(&read(old)?, &read(new)?))
    }

    /// Compares an artifact of type `tools` with a list.
    pub fn since(store: &Store, old: &Digest, new: &[Tool]) -> Option<Self> {
        let old = data::read(&outputs_path(store.artifact(old))?).ok()?;
        Some(Self::between_lists(&old, new))
    }

    pub fn between_lists(old: &[Tool], new: &[Tool]) -> Self {
        fn by_name(tools: &[Tool]) -> BTreeMap<&str, &Tool> {
            tools.iter().map(|tool| (tool.name.as_str(), tool)).collect()
        }
        let (old, new) = (by_name(old), by_name(new));
        let missing = |these: &BTreeMap<&str, &Tool>, those: &BTreeMap<&str, &Tool>| {
            let names = these.keys().filter(|name| !those.contains_key(*name));
            names.map(|name| (*name).to_owned()).collect()
        };
        let changed = new.iter().filter_map(|(name, tool)| {
            let before = old.get(name).filter(|before| *before != tool)?;
            Some(((*name).to_owned(), before.input_schema != tool.input_schema))
        });
        let (schemas, changed): (Vec<_>, Vec<_>) = changed.partition(|(_, is_schema)| *is_schema);
        let names = |all: Vec<(String, bool)>| all.into_iter().map(|(name, _)| name).collect();
        Self {
            added: missing(&new, &old),
            removed: missing(&old, &new),
            schemas: names(schemas),
            changed: names(changed),
        }
    }
}

/// The file of an artifact that has one.
pub fn outputs_path(folder: PathBuf) -> Option<PathBuf> {
    let mut items = std::fs::read_dir(folder).ok()?;
    let path = items.next()?.ok()?.path();
    items.next().is_none().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, description: &str) -> Tool {
        Tool {
            name: name.into(),
            server_name: name.into(),
            description: description.into(),
            input_schema: "{}".into(),
            output_schema: None,
            annotations: None,
            function: "{}".into(),
            synthetic: false,
            listed: None,
        }
    }

    #[test]
    fn tools_that_came_went_and_changed_are_told_apart() {
        let old = [tool("list", "a"), tool("read", "b"), tool("drop", "c"), tool("find", "f")];
        let wider = Tool { input_schema: "{\"type\":\"object\"}".into(), ..tool("find", "f") };
        let new = [tool("write", "d"), tool("read", "other"), tool("list", "a"), wider];
        let changes = ToolChanges::between_lists(&old, &new).to_string();
        assert_eq!(changes, "added write; removed drop; schema of find; description of read");
    }
}
