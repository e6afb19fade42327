//! Stage cards: what a stage kind does, reads, writes and accepts. Each is `stages/<kind>/card.toml`, next to
//! its prompts.
//!
//! Cards are embedded in the binary; a file of the same name in a `stages/` folder on disk overrides one. The
//! [`Card::digest`] covers everything that can change a result: roles and types, outputs, prompts, command.
//! It covers neither prose (`about`, `unit`) nor defaults, which enter the key as parameters. It is made of the words of
//! the card.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::{Arc, LazyLock},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    embedded::{AGENT_PARAMS, EMBEDDED, SYSTEM_PROMPT, embedded},
    error::StageError,
    model_files::wanted_in,
};
use crate::{
    hash::{Digest, Encoder},
    json::json_type,
    recorded,
    usage::Prices,
};

/// What determines a stage's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Determinism {
    /// The inputs. The stage gets no seed.
    Pure,
    /// The inputs and the seed.
    Seeded,
    /// Chance: the stored result is one sample. `--resample` draws another.
    Sampled,
    /// The outside world, at the time of the run. The stage gets no seed.
    External,
}

impl Determinism {
    /// Whether the stage gets a seed, which is then part of its key.
    pub fn draws(self) -> bool {
        matches!(self, Self::Seeded | Self::Sampled)
    }

    /// Its name in cards, and in their digests.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A section of the run file that a stage receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Section {
    Server,
    Engine,
}

impl Section {
    /// Its name in cards, and in their digests.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Artifacts of one type that a stage reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// Type of the artifact, e.g. `trajectories`.
    #[serde(rename = "type")]
    pub artifact: String,
    #[serde(default)]
    pub about: String,
    /// The run file gives a table of named artifacts.
    #[serde(default)]
    pub many: bool,
    #[serde(default)]
    pub optional: bool,
    /// In a loop, an input that the run file leaves out is the stage's own output of this type in the iteration before.
    #[serde(default)]
    pub previous: bool,
    /// Which output is meant where a stage writes several of the type and the run file does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefers: Option<String>,
    /// Decides which rows there are, or how they are combined, but never the content of a row: see
    /// `KeyFields::family`.
    #[serde(default)]
    pub rows: bool,
    /// Sections of the run file that the stage receives if this input is given, in addition to the card's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<Section>,
    /// Keys of `[agent]` that the stage takes as parameters if this input is given, in addition to the card's; `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParamType {
    Integer,
    Number,
    Boolean,
    String,
    /// A path relative to the run file; keyed by content.
    File,
    /// A model folder or GGUF file relative to the run file, keyed by content, or a hub id.
    Model,
    Strings,
    /// Words of a command. Those that are files relative to the run file are made absolute and keyed by content.
    Command,
    /// Files and folders relative to the run file, keyed by content.
    Paths,
    Table,
    /// Names with lists of values, or with text files relative to the run file that have a value a line. The values are in
    /// the key.
    Values,
    /// Names with tables, of which `system` is the name of an input, or a path relative to the run file; keyed by content.
    Prompts,
    /// True for all, or a list of names.
    Names,
}

impl ParamType {
    /// With its article, for messages.
    pub fn named(self) -> &'static str {
        match self {
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::Boolean => "true or false",
            Self::String => "a string",
            Self::File => "a path",
            Self::Model => "a folder, a GGUF file or a hub id",
            Self::Strings | Self::Command => "a list of strings",
            Self::Paths => "a list of paths",
            Self::Table | Self::Values | Self::Prompts => "a table",
            Self::Names => "true, false or a list of names",
        }
    }

    /// Which files of a folder count in the key of a parameter of this type.
    pub fn wanted_in(self, folder: &Path) -> fn(&str) -> bool {
        match self {
            Self::Paths => recorded::is_wanted,
            _ => wanted_in(folder),
        }
    }

    fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::String | Self::File | Self::Model => value.is_string(),
            Self::Strings | Self::Command | Self::Paths => {
                value.as_array().is_some_and(|items| items.iter().all(Value::is_string))
            }
            Self::Table | Self::Values | Self::Prompts => value.is_object(),
            Self::Names => value.is_boolean() || Self::Strings.accepts(value),
        }
    }
}

/// A parameter of a stage. Without a default and not optional, the run file must give it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Param {
    #[serde(rename = "type")]
    pub kind: ParamType,
    #[serde(default)]
    pub about: String,
    #[serde(default)]
    pub unit: Option<String>,
    #[serde(default)]
    pub default: Option<Value>,
    #[serde(default)]
    pub optional: bool,
    #[serde(default)]
    pub min: Option<f64>,
    #[serde(default)]
    pub max: Option<f64>,
    #[serde(default)]
    pub choices: Vec<String>,
    /// Parameters that are required if this one is neither 0 nor false nor its default. `"a or b"` requires one of several parameters or
    /// inputs.
    #[serde(default)]
    pub needs: Vec<String>,
    /// False for parameters that change the speed but not the result, such as concurrency: not part of the
    /// key.
    #[serde(default = "yes")]
    pub keyed: bool,
    /// As in [`Role`].
    #[serde(default)]
    pub rows: bool,
    /// As in [`Role`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent: Vec<String>,
}

fn yes() -> bool {
    true
}

impl Param {
    /// Why the parameter cannot have this value.
    pub fn objection(&self, value: &Value) -> Option<String> {
        if !self.kind.accepts(value) {
            return Some(format!("should be {}, found {}", self.kind.named(), json_type(value)));
        }
        if let Some(number) = value.as_f64() {
            if let Some(min) = self.min.filter(|min| number < *min) {
                return Some(format!("should be at least {min}, found {number}"));
            }
            if let Some(max) = self.max.filter(|max| number > *max) {
                return Some(format!("should be at most {max}, found {number}"));
            }
        }
        let text = value.as_str()?;
        if !self.choices.is_empty() && !self.choices.iter().any(|choice| choice == text) {
            return Some(format!("should be one of {}, found \"{text}\"", self.choices.join(", ")));
        }
        None
    }
}

/// An artifact that a stage writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    #[serde(rename = "type")]
    pub artifact: String,
    /// File or folder, relative to the stage's output folder.
    pub path: String,
    #[serde(default)]
    pub about: String,
    /// Holds the stage's rows as recorded.
    #[serde(default)]
    pub rows: bool,
}

/// A stage kind, as described by its card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    pub kind: String,
    /// Incremented when the code's behaviour changes.
    pub revision: u32,
    pub about: String,
    pub determinism: Determinism,
    #[serde(default)]
    pub uses: Vec<Section>,
    /// Keys of `[agent]` that the stage takes as parameters, as the card names them; `*` for all.
    #[serde(rename = "agent", default, skip_serializing)]
    agent_keys: Vec<String>,
    #[serde(default)]
    pub inputs: BTreeMap<String, Role>,
    /// Those that come from `[agent]` included.
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// What parameters are for: a name, and theirs. Others are without one.
    #[serde(default)]
    pub groups: Vec<Vec<String>>,
    /// Parameters whose default is the value in `[agent]`, each with the inputs and parameters of which the stage needs one to have
    /// it; none if it always has it.
    #[serde(skip_deserializing)]
    pub agent: BTreeMap<String, Vec<String>>,
    pub outputs: BTreeMap<String, Port>,
    /// Name to meaning. A word in capitals stands for any single word: `SPLIT.gain`.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
    /// Name to file name, relative to the card.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// The program of a user's own stage; empty for a built-in kind.
    #[serde(default)]
    pub command: Vec<String>,
    /// Retries after a failure of the outside world, for `external` kinds. Set once the card is read.
    pub retries: Option<u32>,
    /// Prices of judge tokens, if the run file sets none.
    pub prices: Option<Prices>,
    /// The card's folder on disk, if it has one.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
    /// Contents of `files`.
    #[serde(skip)]
    pub texts: BTreeMap<String, String>,
    /// Files of the card's folder that the command names, by digest.
    #[serde(skip_deserializing)]
    pub code: BTreeMap<String, Digest>,
}

/// The key of `[agent]` with the system prompt, and the name of the built-in one among a card's texts.
pub const SYSTEM: &str = "system";

/// For `external` kinds whose card does not set it.
const RETRIES: u32 = 2;

/// Keys with a fixed meaning in a run file's stage table.
pub const RESERVED: [&str; 7] = ["kind", "seed", "cache", "executor", "shards", "yields", "prices"];

impl Card {
    /// The card in this text of a `card.toml`. `place`: where it is, for messages.
    fn parse(place: &str, text: &str) -> Result<Self, StageError> {
        let mut card: Self = toml::from_str(text).map_err(|cause| StageError::CardSyntax {
            place: place.to_owned(),
            problem: cause.to_string().trim_end().to_owned(),
        })?;
        card.retries.get_or_insert(if card.determinism == Determinism::External { RETRIES } else { 0 });
        match card.take_agent_params().err().or_else(|| card.objection()) {
            Some(problem) => Err(StageError::Card { place: place.to_owned(), problem }),
            None => Ok(card),
        }
    }

    /// Adds the parameters that come from `[agent]`.
    fn take_agent_params(&mut self) -> Result<(), String> {
        let of_params = self.params.iter().map(|(name, param)| (Some(name), &param.agent));
        let of_roles = self.inputs.iter().map(|(name, role)| (Some(name), &role.agent));
        let mut always = BTreeSet::new();
        for (role, keys) in std::iter::once((None, &self.agent_keys)).chain(of_roles).chain(of_params) {
            if let Some(unknown) = keys.iter().find(|key| *key != "*" && !agent_params().contains_key(*key)) {
                return Err(format!("`agent` names `{unknown}`, which [agent] does not have"));
            }
            let is_taken = |name: &&String| keys.iter().any(|key| key == "*" || key == *name);
            for name in agent_params().keys().filter(is_taken) {
                let roles = self.agent.entry(name.clone()).or_default();
                match role {
                    Some(role) => roles.push(role.clone()),
                    None => _ = always.insert(name),
                }
            }
        }
        self.agent.iter_mut().filter(|(name, _)| always.contains(name)).for_each(|(_, roles)| roles.clear());
        for name in self.agent.keys() {
            if self.params.insert(name.clone(), agent_params()[name].clone()).is_some() {
                return Err(format!("params.{name} is a key of [agent]: remove it from the card"));
            }
        }
        Ok(())
    }

    fn objection(&self) -> Option<String> {
        if self.retries > Some(0) && self.determinism != Determinism::External {
            return Some("`retries` has a meaning for an `external` kind alone".into());
        }
        for (name, port) in &self.outputs {
            let mut parts = Path::new(&port.path).components().peekable();
            if parts.peek().is_none() || !parts.all(|part| matches!(part, Component::Normal(_))) {
                return Some(format!(
                    "outputs.{name}.path should be a relative path, found \"{}\"",
                    port.path
                ));
            }
        }
        let paths = || self.outputs.iter().map(|(name, port)| (name, Path::new(&port.path)));
        for (name, path) in paths() {
            if let Some((other, _)) = paths().find(|(other, outer)| *other != name && path.starts_with(outer))
            {
                return Some(format!(
                    "outputs.{name}.path \"{}\" is, or lies within, outputs.{other}.path: each output needs its own",
                    path.display()
                ));
            }
        }
        for (name, param) in &self.params {
            if RESERVED.contains(&name.as_str()) || self.inputs.contains_key(name) {
                return Some(format!("params.{name} has the name of another key of a stage"));
            }
            if let Some(problem) = param.default.as_ref().and_then(|value| param.objection(value)) {
                return Some(format!("params.{name}.default {problem}"));
            }
        }
        let mut grouped = BTreeSet::new();
        for name in self.groups.iter().flat_map(|group| group.iter().skip(1)) {
            if !self.params.contains_key(name) || self.agent.contains_key(name) || !grouped.insert(name) {
                return Some(format!("`groups` should have each parameter of the card once, found `{name}`"));
            }
        }
        let reserved = self.inputs.keys().find(|role| RESERVED.contains(&role.as_str()))?;
        Some(format!("inputs.{reserved} has the name of another key of a stage"))
    }

    /// Digest of everything that can change a result; see the module docs.
    pub fn digest(&self) -> Digest {
        fn sections(encoder: &mut Encoder, sections: &[Section]) {
            encoder.number(sections.len() as u64);
            sections.iter().for_each(|section| _ = encoder.text(section.name()));
        }
        let mut encoder = Encoder::new("mcprl stage card v2");
        encoder.text(&self.kind).number(u64::from(self.revision)).text(self.determinism.name());
        sections(&mut encoder, &self.uses);
        encoder.number(self.inputs.len() as u64);
        for (name, role) in &self.inputs {
            encoder.text(name).text(&role.artifact).number(u64::from(role.many));
            sections(&mut encoder, &role.uses);
        }
        encoder.number(self.outputs.len() as u64);
        for (name, port) in &self.outputs {
            encoder.text(name).text(&port.artifact).text(&port.path);
        }
        encoder.number(self.texts.len() as u64);
        for (name, text) in &self.texts {
            encoder.text(name).text(text);
        }
        encoder.number(self.command.len() as u64);
        for word in &self.command {
            encoder.text(word);
        }
        encoder.number(self.code.len() as u64);
        for (name, digest) in &self.code {
            encoder.text(name).digest(digest);
        }
        encoder.finish()
    }

    /// Path of a card file relative to the project folder, for messages: `stages/judge/relative.jinja`.
    pub fn shown(&self, file: &str) -> String {
        let stages = self.folder.as_deref().and_then(Path::parent).and_then(Path::file_name);
        let stages = stages.map_or("stages".into(), |name| name.to_string_lossy());
        format!("{stages}/{}/{}", self.kind, file.trim_start_matches("./"))
    }

    /// The sections that a stage with these inputs receives.
    pub fn sections(&self, is_given: impl Fn(&str) -> bool) -> Vec<Section> {
        let given = |section: &Section| {
            self.inputs.iter().any(|(name, role)| role.uses.contains(section) && is_given(name))
        };
        let all = [Section::Server, Section::Engine].into_iter();
        all.filter(|section| self.uses.contains(section) || given(section)).collect()
    }

    /// Whether the stage may report this metric.
    pub fn reports(&self, metric: &str) -> bool {
        let any = |word: &str| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        let fits = |declared: &String| {
            declared.split('.').count() == metric.split('.').count()
                && declared.split('.').zip(metric.split('.')).all(|(word, found)| word == found || any(word))
        };
        self.metrics.keys().any(fits)
    }

    /// The output of this type, if there is exactly one.
    pub fn output_of_type(&self, artifact: &str) -> Option<&str> {
        let mut fitting = self.outputs.iter().filter(|(_, port)| port.artifact == artifact);
        match (fitting.next(), fitting.next()) {
            (Some((name, _)), None) => Some(name),
            _ => None,
        }
    }
}

/// The keys of `[agent]`, as `stages/agent/params.toml` declares them.
pub fn agent_params() -> &'static BTreeMap<String, Param> {
    static PARAMS: LazyLock<BTreeMap<String, Param>> =
        LazyLock::new(|| toml::from_str(AGENT_PARAMS).unwrap_or_default());
    &PARAMS
}

/// Finds cards: on disk first, then among the built-in ones.
#[derive(Debug, Clone, Default)]
pub struct Cards {
    folder: Option<PathBuf>,
}

impl Cards {
    /// `folder` is the `stages/` folder, if there is one.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The names of all kinds, sorted.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> = EMBEDDED.iter().map(|card| card.kind.to_owned()).collect();
        let items = self.folder.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        for item in items.into_iter().flatten().flatten() {
            if item.path().join("card.toml").is_file()
                && let Ok(name) = item.file_name().into_string()
            {
                kinds.push(name);
            }
        }
        kinds.sort();
        kinds.dedup();
        kinds
    }

    /// The card of this kind; `None` if there is no such kind.
    pub fn get(&self, kind: &str) -> Result<Option<Arc<Card>>, StageError> {
        let folder = self.folder.as_ref().map(|folder| folder.join(kind)).filter(|folder| folder.is_dir());
        let built_in = embedded(kind);
        let on_disk =
            |name: &str| folder.as_ref().map(|folder| folder.join(name)).filter(|path| path.is_file());

        let place = on_disk("card.toml");
        let text = match (&place, built_in) {
            (Some(path), _) => read(path)?,
            (None, Some(built_in)) => built_in.card.to_owned(),
            (None, None) => return Ok(None),
        };
        let place = place.map_or_else(|| format!("built-in card {kind}"), |path| path.display().to_string());
        let wrong = |problem: String| StageError::Card { place: place.clone(), problem };
        let mut card = Card::parse(&place, &text)?;
        if card.kind != kind {
            return Err(wrong(format!(
                "kind should be \"{kind}\", the folder's name, found \"{}\"",
                card.kind
            )));
        }
        if card.command.is_empty() && built_in.is_none() {
            return Err(wrong("a kind that is not built in needs a `command`".into()));
        }
        for (name, file) in &card.files {
            let embedded = built_in.and_then(|built_in| built_in.file(file));
            let text = match (on_disk(file), embedded) {
                (Some(path), _) => read(&path)?,
                (None, Some(text)) => text.to_owned(),
                (None, None) => {
                    return Err(wrong(format!("files.{name} names \"{file}\", which is not there")));
                }
            };
            card.texts.insert(name.clone(), text);
        }
        if built_in.is_some() && card.agent.contains_key(SYSTEM) {
            if card.texts.contains_key(SYSTEM) || on_disk("system.jinja").is_some() {
                return Err(StageError::SystemPrompt { place });
            }
            card.texts.insert(SYSTEM.into(), SYSTEM_PROMPT.to_owned());
        }
        for word in &card.command {
            if let Some(path) = on_disk(word) {
                let bytes = std::fs::read(&path).map_err(|source| StageError::Read { path, source })?;
                card.code.insert(word.clone(), Digest::of(&bytes));
            }
        }
        card.folder = folder;
        Ok(Some(Arc::new(card)))
    }
}

fn read(path: &Path) -> Result<String, StageError> {
    std::fs::read_to_string(path).map_err(|source| StageError::Read { path: path.to_owned(), source })
}

/// The type of the outputs of this name that built-in kinds have: of one name, all have one type.
pub fn built_in_type(output: &str) -> Option<&'static str> {
    static TYPES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        let cards = EMBEDDED.iter().filter_map(|card| Cards::new(None).get(card.kind).ok().flatten());
        let ports = cards.flat_map(|card| card.outputs.clone());
        ports.map(|(name, port)| (name, port.artifact)).collect()
    });
    TYPES.get(output).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: &str = r#"
kind = "pinned"
revision = 3
about = "prose"
determinism = "sampled"
uses = ["server"]
command = ["sh", "run.sh"]

[inputs.policies]
type = "policy"
many = true
uses = ["engine"]

[inputs.tools]
type = "tools"

[outputs.table]
type = "trajectories"
path = "table.parquet"
"#;

    fn card(text: &str) -> Card {
        Card::parse("test", text).unwrap()
    }

    #[test]
    fn outputs_of_one_name_have_one_type_in_all_built_in_kinds() {
        for kind in Cards::new(None).kinds() {
            for (name, port) in &Cards::new(None).get(&kind).unwrap().unwrap().outputs {
                assert_eq!(built_in_type(name), Some(&*port.artifact), "{kind}.{name}");
            }
        }
        assert_eq!(built_in_type("heldout"), Some("scenarios"));
        assert_eq!(built_in_type("nothing"), None);
    }

    #[test]
    fn the_digest_of_a_card_stays_as_it_is_in_every_version() {
        let digest = card(CARD).digest().to_string();
        assert_eq!(
            digest, "0209c63d32b0f53bb5c172a48d281e47f9bc941f20a4f0c3b77e147b35218da9",
            "every cached result is lost"
        );
    }

    #[test]
    fn what_can_change_a_result_changes_the_digest_and_prose_does_not() {
        let digest = |from: &str, to: &str| {
            assert!(CARD.contains(from), "{from}");
            card(&CARD.replace(from, to)).digest()
        };
        let original = card(CARD).digest();
        for (from, to) in [
            ("revision = 3", "revision = 4"),
            ("\"sampled\"", "\"seeded\""),
            ("uses = [\"server\"]", "uses = [\"engine\"]"),
            ("uses = [\"server\"]\n", ""),
            ("uses = [\"engine\"]", "uses = [\"server\"]"),
            ("uses = [\"engine\"]\n", ""),
            ("many = true", "many = false"),
            ("table.parquet", "other.parquet"),
            ("\"run.sh\"", "\"other.sh\""),
        ] {
            assert_ne!(digest(from, to), original, "{from} → {to}");
        }
        assert_eq!(digest("\"prose\"", "\"other prose\""), original);
    }

    #[test]
    fn names_in_digests_are_the_words_of_cards() {
        for determinism in
            [Determinism::Pure, Determinism::Seeded, Determinism::Sampled, Determinism::External]
        {
            assert_eq!(serde_json::to_value(determinism).unwrap(), determinism.name());
        }
        for section in [Section::Server, Section::Engine] {
            assert_eq!(serde_json::to_value(section).unwrap(), section.name());
        }
    }
}
