//! The section `[track]`: experiment trackers that a run reports to. None of it is part of a key.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::{
    layers::{Entry, EntryPart},
    reader::Reader,
};
use crate::{error::suggest, json::json_type};

/// Experiment trackers that the run reports to.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "describes the schema")]
pub struct Track {
    /// Writes an event file for TensorBoard, into the run's folder in the cache or into `path`.
    tensorboard: Option<Choice<TensorBoardTable>>,
    /// Writes an offline run of Weights & Biases into the run's folder in the cache, and uploads it with `mode =
    /// "online"`.
    wandb: Option<Choice<WandbTable>>,
    /// Writes the run into trackio's database on this machine.
    trackio: Option<Choice<TrackioTable>>,
    /// Whether trackers get conversations of episodes, which have texts of the server and of the tasks.
    #[schemars(extend("default" = true))]
    examples: Option<bool>,
}

const TRACKERS: [&str; 4] = ["tensorboard", "wandb", "trackio", "examples"];

/// True, false or settings.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "describes the schema")]
enum Choice<T> {
    Is(bool),
    With(T),
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TensorBoardTable {
    /// The folder for event files, relative to the run file's folder. Each run gets a folder of its own in it.
    path: Option<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WandbTable {
    #[schemars(extend("default" = PROJECT))]
    project: Option<String>,
    /// The user or team. By default that of the login.
    entity: Option<String>,
    /// Name of the run; by default the run's id.
    name: Option<String>,
    /// Name of the group of runs.
    group: Option<String>,
    tags: Option<Vec<String>>,
    /// `online` uploads while the run goes on, with the program `wandb`; `offline` leaves that to `wandb sync`.
    #[schemars(extend("enum" = MODES, "default" = MODES[0]))]
    mode: Option<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TrackioTable {
    #[schemars(extend("default" = PROJECT))]
    project: Option<String>,
}

/// Name of the project where none is given.
const PROJECT: &str = "mcprl";
const MODES: [&str; 2] = ["offline", "online"];

/// The trackers of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackSpec {
    pub tensorboard: Option<TensorBoardSpec>,
    pub wandb: Option<WandbSpec>,
    pub trackio: Option<TrackioSpec>,
    /// Whether trackers get conversations of episodes.
    pub examples: bool,
}

impl Default for TrackSpec {
    fn default() -> Self {
        Self { tensorboard: None, wandb: None, trackio: None, examples: true }
    }
}

/// An event file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TensorBoardSpec {
    /// The folder with a folder for each run; none for the run's folder in the cache.
    pub path: Option<PathBuf>,
}

/// A run of Weights & Biases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WandbSpec {
    pub project: String,
    pub entity: Option<String>,
    pub name: Option<String>,
    pub group: Option<String>,
    pub tags: Vec<String>,
    /// Whether it is uploaded.
    pub online: bool,
}

impl Default for WandbSpec {
    fn default() -> Self {
        let project = PROJECT.to_owned();
        Self { project, entity: None, name: None, group: None, tags: Vec::new(), online: false }
    }
}

/// A run in trackio's database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackioSpec {
    pub project: String,
}

impl Default for TrackioSpec {
    fn default() -> Self {
        Self { project: PROJECT.to_owned() }
    }
}

/// Parses `[track]`.
pub fn track(reader: &Reader, entry: &Entry<'_>) -> TrackSpec {
    reader.only(entry, &TRACKERS);
    let examples = entry.field("examples").and_then(|examples| reader.read::<bool>(&examples));
    let tensorboard =
        |table: TensorBoardTable| TensorBoardSpec { path: table.path.map(|path| entry.absolute(&path)) };
    let wandb = |table: WandbTable| {
        let default = WandbSpec::default();
        WandbSpec {
            project: table.project.unwrap_or(default.project),
            entity: table.entity,
            name: table.name,
            group: table.group,
            tags: table.tags.unwrap_or_default(),
            online: table.mode.as_deref() == Some(MODES[1]),
        }
    };
    let trackio = |table: TrackioTable| {
        table.project.map_or_else(TrackioSpec::default, |project| TrackioSpec { project })
    };
    if let Some(mode) = entry.field("wandb").and_then(|wandb| wandb.field("mode")) {
        check_mode(reader, &mode);
    }
    TrackSpec {
        tensorboard: choice(reader, entry, "tensorboard", "{ path = \"logs\" }").map(tensorboard),
        wandb: choice(reader, entry, "wandb", "{ project = \"mcprl\" }").map(wandb),
        trackio: choice(reader, entry, "trackio", "{ project = \"mcprl\" }").map(trackio),
        examples: examples.unwrap_or(true),
    }
}

/// A tracker that needs no settings. `false` is none, so that an override can turn it off.
fn choice<T: Default + JsonSchema + serde::de::DeserializeOwned>(
    reader: &Reader,
    track: &Entry<'_>,
    name: &str,
    settings: &str,
) -> Option<T> {
    let entry = track.field(name)?;
    match entry.json() {
        Value::Bool(is_on) => is_on.then(T::default),
        Value::Object(_) => reader.read(&entry),
        other => {
            let found = json_type(&other);
            let message = format!("`{}` should be true, false or a table, found {found}", entry.path);
            reader.wrong(
                &entry,
                EntryPart::Value,
                message,
                Some(format!("for example `{name} = {settings}`")),
            )
        }
    }
}

fn check_mode(reader: &Reader, entry: &Entry<'_>) {
    let Some(mode) = entry.text().filter(|mode| !MODES.contains(mode)) else { return };
    let message = format!("`{}` should be \"offline\" or \"online\", found \"{mode}\"", entry.path);
    reader.wrong::<()>(entry, EntryPart::Value, message, suggest(mode, MODES));
}
