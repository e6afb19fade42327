//! The section `[track]`: experiment trackers that a run reports to. None of it is part of a key.

use std::{collections::BTreeMap, path::PathBuf};

use reqwest::Url;
use schemars::JsonSchema;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use super::{
    layers::{Entry, Part},
    reader::Reader,
    server::check_values,
};
use crate::{error::suggest, json::json_type, secret};

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
    /// Sends the run to an MLflow server.
    mlflow: Option<MlflowTable>,
    /// Writes the run into trackio's database on this machine.
    trackio: Option<Choice<TrackioTable>>,
    /// Sends episodes as traces to an OpenTelemetry endpoint (OTLP over HTTP): its URL, or settings.
    otlp: Option<Address<OtlpTable>>,
    /// Whether trackers get conversations of episodes, which have texts of the server and of the tasks.
    #[schemars(extend("default" = true))]
    examples: Option<bool>,
}

const TRACKERS: [&str; 6] = ["tensorboard", "wandb", "mlflow", "trackio", "otlp", "examples"];

/// True, false or settings.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "describes the schema")]
enum Choice<T> {
    Is(bool),
    With(T),
}

/// A URL or settings.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "describes the schema")]
enum Address<T> {
    Url(String),
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

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MlflowTable {
    /// URL of the server.
    #[schemars(regex(pattern = "^https?://"))]
    uri: String,
    /// Name of the experiment; it is created if the server has none of this name.
    #[schemars(extend("default" = PROJECT))]
    experiment: Option<String>,
    /// Environment variable that holds the bearer token. Without it, MLflow's own variables count:
    /// `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`.
    bearer_env: Option<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TrackioTable {
    #[schemars(extend("default" = PROJECT))]
    project: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OtlpTable {
    /// URL of the endpoint, without `/v1/traces`.
    #[schemars(regex(pattern = "^https?://"))]
    url: String,
    /// Headers of every request. `${NAME}` in a value is the environment variable NAME. A literal secret is rejected.
    headers: Option<BTreeMap<String, String>>,
    /// Episodes that are sent besides those of comparisons of policies: as many of each stage, `all`, or with `exam` none.
    #[serde(rename = "episodes", default)]
    #[schemars(with = "Option<EpisodesValue>", extend("default" = EPISODES))]
    _episodes: IgnoredAny,
    /// Whether texts of tasks, policies and servers are sent. Without them, traces have names, numbers and errors.
    #[schemars(extend("default" = true))]
    content: Option<bool>,
}

/// A number or a name.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "describes the schema")]
enum EpisodesValue {
    PerStage(u32),
    Named(#[schemars(extend("enum" = ["exam", "all"]))] String),
}

/// Episodes of a stage that are sent if the run file does not say how many.
const EPISODES: u32 = 32;

/// Name of the project or experiment where none is given.
const PROJECT: &str = "mcprl";
const MODES: [&str; 2] = ["offline", "online"];

/// The trackers of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackSpec {
    pub tensorboard: Option<TensorBoardSpec>,
    pub wandb: Option<WandbSpec>,
    pub mlflow: Option<MlflowSpec>,
    pub trackio: Option<TrackioSpec>,
    pub otlp: Option<OtlpSpec>,
    /// Whether trackers get conversations of episodes.
    pub examples: bool,
}

impl Default for TrackSpec {
    fn default() -> Self {
        Self { tensorboard: None, wandb: None, mlflow: None, trackio: None, otlp: None, examples: true }
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

/// A run on an MLflow server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlflowSpec {
    /// Without a slash at the end.
    pub uri: String,
    pub experiment: String,
    pub bearer_env: Option<String>,
}

impl MlflowSpec {
    pub fn new(uri: &str) -> Self {
        let uri = uri.trim_end_matches('/').to_owned();
        Self { uri, experiment: PROJECT.to_owned(), bearer_env: None }
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

/// An endpoint for traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpSpec {
    /// Without a slash at the end.
    pub url: String,
    /// Values may refer to environment variables.
    pub headers: BTreeMap<String, String>,
    pub episodes: OtlpEpisodes,
    /// Whether texts of tasks, policies and servers are sent.
    pub content: bool,
}

/// Which episodes become traces. Those of comparisons always do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpEpisodes {
    Exam,
    PerStage(u32),
    All,
}

impl OtlpSpec {
    pub fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            headers: BTreeMap::new(),
            episodes: OtlpEpisodes::PerStage(EPISODES),
            content: true,
        }
    }
}

/// What a tracker's URL should be, if it is not.
pub fn url_mistake(text: &str) -> Option<&'static str> {
    match Url::parse(text) {
        Ok(url) if !["http", "https"].contains(&url.scheme()) || url.host_str().is_none() => Some(HTTP),
        Ok(url) if url.password().is_some() || !url.username().is_empty() => Some("has no name or password"),
        Ok(url) if url.query().is_some() => Some("has no query"),
        Ok(_) => None,
        Err(_) => Some(HTTP),
    }
}

const HTTP: &str = "starts with http:// or https://";

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
        mlflow: entry.field("mlflow").and_then(|entry| mlflow(reader, &entry)),
        trackio: choice(reader, entry, "trackio", "{ project = \"mcprl\" }").map(trackio),
        otlp: entry.field("otlp").and_then(|entry| otlp(reader, &entry)),
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
        _ => mistyped(reader, &entry, "true, false or a table", &format!("{name} = {settings}")),
    }
}
fn mistyped<T>(reader: &Reader, entry: &Entry<'_>, expected: &str, example: &str) -> Option<T> {
    let message = format!("`{}` should be {expected}, found {}", entry.path, json_type(&entry.json()));
    reader.wrong(entry, Part::Value, message, Some(format!("for example `{example}`")))
}

fn check_mode(reader: &Reader, entry: &Entry<'_>) {
    let Some(mode) = entry.text().filter(|mode| !MODES.contains(mode)) else { return };
    let message = format!("`{}` should be \"offline\" or \"online\", found \"{mode}\"", entry.path);
    reader.wrong::<()>(entry, Part::Value, message, suggest(mode, MODES));
}

fn mlflow(reader: &Reader, entry: &Entry<'_>) -> Option<MlflowSpec> {
    match entry.json() {
        Value::Bool(false) => return None,
        Value::Object(_) => {}
        _ => {
            let example = "mlflow = { uri = \"http://127.0.0.1:5000\" }";
            return mistyped(reader, entry, "false or a table with `uri`", example);
        }
    }
    let table = reader.read::<MlflowTable>(entry)?;
    let by = "`MLFLOW_TRACKING_USERNAME` and `MLFLOW_TRACKING_PASSWORD`";
    check_url(reader, &entry.field("uri")?, &table.uri, by)?;
    let spec = MlflowSpec::new(&table.uri);
    Some(MlflowSpec {
        experiment: table.experiment.unwrap_or(spec.experiment),
        bearer_env: table.bearer_env,
        ..spec
    })
}

fn otlp(reader: &Reader, entry: &Entry<'_>) -> Option<OtlpSpec> {
    let by = "`headers = { Authorization = \"Basic ${NAME}\" }`";
    match entry.json() {
        Value::Bool(false) => None,
        Value::String(url) => {
            check_url(reader, entry, &url, by)?;
            Some(OtlpSpec::new(&url))
        }
        Value::Object(_) => {
            check_values(reader, entry.field("headers").as_ref())?;
            let table = reader.read::<OtlpTable>(entry)?;
            check_url(reader, &entry.field("url")?, &table.url, by)?;
            let spec = OtlpSpec::new(&table.url);
            let episodes = match entry.field("episodes") {
                Some(episodes) => self::episodes(reader, &episodes)?,
                None => spec.episodes,
            };
            let headers = table.headers.unwrap_or_default();
            Some(OtlpSpec { headers, episodes, content: table.content.unwrap_or(spec.content), ..spec })
        }
        _ => mistyped(reader, entry, "a URL or a table with `url`", "otlp = \"http://127.0.0.1:4318\""),
    }
}

fn episodes(reader: &Reader, entry: &Entry<'_>) -> Option<OtlpEpisodes> {
    match entry.json() {
        Value::String(name) if name == "exam" => Some(OtlpEpisodes::Exam),
        Value::String(name) if name == "all" => Some(OtlpEpisodes::All),
        Value::Number(number) if number.as_u64().is_some_and(|most| most <= u32::MAX.into()) => {
            number.as_u64().map(|most| OtlpEpisodes::PerStage(most as u32))
        }
        other => {
            let message = format!("`{}` should be a number, \"exam\" or \"all\", found {other}", entry.path);
            reader.wrong(entry, Part::Value, message, None)
        }
    }
}

/// `credentials`: where a name and password, or a secret, belong.
fn check_url(reader: &Reader, entry: &Entry<'_>, url: &str, credentials: &str) -> Option<()> {
    let has_secret = Url::parse(url).is_ok_and(|url| url.password().is_some() || !url.username().is_empty())
        || secret::query(url).any(|(name, value)| secret::is_secret(name, value));
    if has_secret {
        let hint = format!("use {credentials}: every run keeps a copy of its run file");
        return reader.wrong_secret(entry, format!("`{}` holds a secret", entry.path), hint);
    }
    match url_mistake(url) {
        None => Some(()),
        Some(should) => {
            let message = format!("`{}` should be a URL that {should}, found \"{url}\"", entry.path);
            reader.wrong(entry, Part::Value, message, None)
        }
    }
}
