//! Changes between two lists of a server's tools.

use std::{collections::BTreeMap, path::PathBuf};

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
    /// The description changed.
    pub changed: Vec<String>,
}

impl ToolChanges {
    /// Compares two artifacts of type `tools`, if both are in the store.
    pub fn between(store: &Store, old: &Digest, new: &Digest) -> Option<Self> {
        let read = |digest| data::read(&only_file(store.artifact(digest))?).ok();
        Some(Self::between_lists(&read(old)?, &read(new)?))
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
        let changed = new.iter().filter(|(name, tool)| old.get(*name).is_some_and(|before| before != *tool));
        Self {
            added: missing(&new, &old),
            removed: missing(&old, &new),
            changed: changed.map(|(name, _)| (*name).to_owned()).collect(),
        }
    }
}

fn only_file(folder: PathBuf) -> Option<PathBuf> {
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
        let old = [tool("list", "a"), tool("read", "b"), tool("drop", "c")];
        let new = [tool("write", "d"), tool("read", "other"), tool("list", "a")];
        let changes = ToolChanges::between_lists(&old, &new);
        let (added, removed, changed) = (["write".to_owned()], ["drop".to_owned()], ["read".to_owned()]);
        assert_eq!(
            (changes.added, changes.removed, changes.changed),
            (added.into(), removed.into(), changed.into())
        );
    }
}
