//! What a card's digest covers, part by part: so that a rerun can name the file that was edited.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Card;
use crate::hash::{Digest, Encoder};

/// Digests of the files of a card, by file name. Stored beside a key, not in it.
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
    /// Files that came, went or are others, by name.
    pub fn changes(&self, new: &Self) -> Vec<(CardFile, String)> {
        let both = [(CardFile::Prompt, &self.prompts, &new.prompts), (CardFile::Code, &self.code, &new.code)];
        let mut changed = Vec::new();
        for (what, old, new) in both {
            let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
            names.sort();
            names.dedup();
            names.retain(|name| old.get(*name) != new.get(*name));
            changed.extend(names.into_iter().map(|name| (what, name.clone())));
        }
        changed
    }
}
