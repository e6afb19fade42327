//! The parts of a card's digest, so that a rerun can name the edited file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Card;
use crate::hash::{Digest, Encoder};

/// Digests of a card's files by name. Stored with a key, not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardParts {
    pub prompts: BTreeMap<String, Digest>,
    pub code: BTreeMap<String, Digest>,
}

/// A file of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CardFile {
    Prompt,
    Code,
}

impl Card {
    pub fn parts(&self) -> CardParts {
        let prompt = |(name, text): (&String, &String)| {
            let file = self.files.get(name).unwrap_or(name);
            (file.clone(), Encoder::new("mcprl prompt v1").text(text).finish())
        };
        CardParts { prompts: self.texts.iter().map(prompt).collect(), code: self.code.clone() }
    }
}

impl CardParts {
    /// Names of files that were added, removed or changed.
    pub fn changes(&self, new: &Self) -> Vec<(CardFile, String)> {
        let both = [(CardFile::Prompt, &self.prompts, &new.prompts), (CardFile::Code, &self.code, &new.code)];
        let mut changed = Vec::new();
        for (what, old, new) in both {
            let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            let differ = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
            changed.extend(differ.map(|name| (what, name.clone())));
        }
        changed
    }
}
