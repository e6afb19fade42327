//! Folders of tokenizer and template of each family, from committed fixtures. Tests of the root package include this file, too.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

/// What begins a turn, by family.
const TURNS: [&str; 6] =
    ["<start_of_turn>", "<|end|>", "<|im_sep|>", "<|start_header_id|>", "[INST]", "<|im_start|>"];

fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let of_crate = package.join("../..");
    if of_crate.join("crates").is_dir() { of_crate } else { package.to_owned() }
}

/// The fixtures of a family with a published template.
pub fn path(family: &str) -> PathBuf {
    repository().join("tests/reference/chat").join(family)
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The families with a template of ours.
fn all() -> Vec<Family> {
    #[derive(Deserialize)]
    struct Written {
        families: Vec<Family>,
    }
    read::<Written>(&path("written.json")).families
}

#[derive(Clone, Deserialize)]
pub struct Family {
    pub name: String,
    /// Its template's path in the repository.
    pub template: String,
    pub bos: Option<String>,
    pub eos: String,
    /// Control tokens besides those of the tiny tokenizer.
    pub special: Vec<String>,
}

impl Family {
    pub fn named(name: &str) -> Self {
        all().into_iter().find(|family| family.name == name).unwrap()
    }

    pub fn source(&self) -> String {
        std::fs::read_to_string(repository().join(&self.template)).unwrap()
    }

    /// A folder with the family's tokens and this template.
    pub fn folder(&self, template: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut tokenizer: Value = read(&path("qwen2_5").join("tokenizer.json"));
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        let known: BTreeSet<String> =
            added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
        let first = added.iter().filter_map(|token| token["id"].as_u64()).max().unwrap() + 1;
        let more = self.special.iter().chain(&self.bos).chain([&self.eos]);
        let more: BTreeSet<&String> = more.filter(|token| !known.contains(*token)).collect();
        for (id, content) in (first..).zip(more) {
            added.push(json!({
                "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }));
        }
        let is_chatml = self.eos == "<|im_end|>";
        added.retain(|token| is_chatml || !token["content"].as_str().unwrap().starts_with("<|im_"));
        let config = json!({"bos_token": self.bos, "eos_token": self.eos});
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        folder
    }

    /// Two templates in the family's style: one hides tools, one refuses them.
    pub fn toolless(&self) -> [String; 2] {
        let has = |token: &str| self.special.iter().chain([&self.eos]).any(|known| known == token);
        let turn = TURNS.into_iter().find(|turn| has(turn)).unwrap_or("<|im_start|>");
        let blind = format!(
            "{{% for m in messages %}}{turn}{{{{ m.role }}}}: {{{{ m.content }}}}{{{{ eos_token }}}}{{% endfor %}}"
        );
        let picky = format!("{{% if tools %}}{{{{ raise_exception('no tools here') }}}}{{% endif %}}{blind}");
        [blind, picky]
    }
}
