//! MLflow, over its REST API (version 2.0).
//!
//! A run of mcprl is one run there, found again by the tag `mcprl.run`. What was sent is remembered in the run's
//! folder, so an update sends only what is new. MLflow ignores a metric that it has already, so what was sent and not
//! remembered does no harm.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use reqwest::{RequestBuilder, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Log, Sink, TrackError, file,
    http::{self, Http},
    log::{Content, Entry},
};
use crate::{exec::RunState, hash::Digest, plan::MlflowSpec, report::escape, view::Run};

/// Limits of the API: metrics and parameters of a request, and characters of their values and of tags.
const METRICS: usize = 1000;
const PARAMS: usize = 100;
const PARAM: usize = 6000;
const NOTE: usize = 5000;
/// Longest name of a metric or parameter.
const NAME: usize = 250;

/// Sends a run to a server.
pub struct Mlflow {
    spec: MlflowSpec,
    /// File with what was sent, to this and other servers.
    memory: PathBuf,
    /// Kept between updates, with its connections.
    api: Option<Api>,
    run: Option<String>,
}

/// What a server has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sent {
    run: String,
    /// Whether it has the parameters, which cannot change.
    params: bool,
    /// Number and digest of the entries that it has.
    entries: usize,
    digest: String,
    /// State and end that it was told.
    state: String,
    note: String,
}

/// By server and experiment.
type Memory = BTreeMap<String, Sent>;

impl Mlflow {
    /// `run_folder`: the run's folder in the cache.
    pub fn new(spec: &MlflowSpec, run_folder: &Path) -> Self {
        Self { spec: spec.clone(), memory: run_folder.join("mlflow.json"), api: None, run: None }
    }

    fn key(&self) -> String {
        format!("{} {}", self.spec.uri, self.spec.experiment)
    }

    fn remembered(&self) -> Memory {
        let bytes = std::fs::read(&self.memory).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn remember(&self, sent: &Sent) -> Result<(), TrackError> {
        let mut memory = self.remembered();
        memory.insert(self.key(), sent.clone());
        let text = serde_json::to_string_pretty(&memory).unwrap_or_default() + "\n";
        file::write(&self.memory, text.as_bytes()).map(|_| ())
    }
}

impl Sink for Mlflow {
    fn name(&self) -> &'static str {
        "mlflow"
    }

    fn location(&self) -> String {
        match &self.run {
            Some(run) => format!("{} run {run}", self.spec.uri),
            None => self.spec.uri.clone(),
        }
    }

    fn check(&mut self) -> Result<(), TrackError> {
        let api = Api::new(&self.spec)?;
        api.get("experiments/get-by-name", ("experiment_name", &api.spec.experiment)).map(drop)
    }

    fn update(&mut self, _: &Run, log: &Log) -> Result<(), TrackError> {
        let api = self.api.take().map_or_else(|| Api::new(&self.spec), Ok)?;
        let known = self.remembered().remove(&self.key());
        let mut sent = match known {
            Some(sent) if api.exists(&sent.run)? => sent,
            _ => api.find_or_create(log)?,
        };
        self.run = Some(sent.run.clone());
        if !sent.params {
            let params: Vec<Value> = log.config.iter().map(|(name, value)| param(name, value)).collect();
            for params in params.chunks(PARAMS) {
                api.post("runs/log-batch", json!({ "run_id": sent.run, "params": params }))?;
            }
            sent.params = true;
            self.remember(&sent)?;
        }
        // Entries that differ from those of before are sent anew.
        let before = log.entries.get(..sent.entries);
        let begin = before.filter(|entries| digest(entries) == sent.digest).map_or(0, <[Entry]>::len);
        let mut batch: Vec<Value> = Vec::new();
        for (place, entry) in log.entries.iter().enumerate().skip(begin) {
            let metrics = metrics(entry);
            if !batch.is_empty() && batch.len() + metrics.len() > METRICS {
                api.post("runs/log-batch", json!({ "run_id": sent.run, "metrics": batch }))?;
                (sent.entries, sent.digest) = (place, digest(&log.entries[..place]));
                self.remember(&sent)?;
                batch = Vec::new();
            }
            batch.extend(metrics);
        }
        for metrics in batch.chunks(METRICS) {
            api.post("runs/log-batch", json!({ "run_id": sent.run, "metrics": metrics }))?;
        }
        (sent.entries, sent.digest) = (log.entries.len(), digest(&log.entries));
        let note = note(log);
        if note != sent.note {
            let tag = json!({ "run_id": sent.run, "key": "mlflow.note.content", "value": note });
            api.post("runs/set-tag", tag)?;
            sent.note = note;
        }
        let state = match log.state {
            RunState::Running => "RUNNING",
            RunState::Finished => "FINISHED",
            RunState::Failed => "FAILED",
            RunState::Interrupted | RunState::Killed => "KILLED",
        };
        let end = if log.is_over() { json!(log.ended_ms) } else { Value::Null };
        let sent_state = format!("{state} {end}");
        if sent_state != sent.state {
            let mut update = json!({ "run_id": sent.run, "status": state });
            if log.is_over() {
                update["end_time"] = end;
            }
            api.post("runs/update", update)?;
            sent.state = sent_state;
        }
        self.api = Some(api);
        self.remember(&sent)
    }
}

fn digest(entries: &[Entry]) -> String {
    Digest::of(format!("{entries:?}").as_bytes()).to_string()
}

/// Names have letters, digits and some marks.
fn name(name: &str) -> String {
    let allowed = |letter: char| {
        if letter.is_ascii_alphanumeric() || "_-./".contains(letter) { letter } else { '_' }
    };
    name.chars().take(NAME).map(allowed).collect()
}

fn param(param: &str, value: &Value) -> Value {
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    json!({ "key": name(param), "value": value.chars().take(PARAM).collect::<String>() })
}

fn metrics(entry: &Entry) -> Vec<Value> {
    let Content::Scalars(values) = &entry.content else { return Vec::new() };
    let metric = |(tag, value): &(String, f64)| json!({ "key": name(tag), "value": value, "timestamp": entry.at_ms, "step": entry.step });
    values.iter().map(metric).collect()
}

/// The last verdict, as the run's description.
fn note(log: &Log) -> String {
    let verdict = log.entries.iter().rev().find_map(|entry| match &entry.content {
        Content::Text { tag, markdown, .. } if tag.starts_with("verdict/") => Some(markdown.as_str()),
        _ => None,
    });
    escape::shortened(verdict.unwrap_or_default(), NOTE - 100).into_owned()
}

/// The server.
struct Api {
    http: Http,
    spec: MlflowSpec,
}

impl Api {
    fn new(spec: &MlflowSpec) -> Result<Self, TrackError> {
        Ok(Self { http: Http::new(&spec.uri)?, spec: spec.clone() })
    }

    /// The answer, or else its error code and the error.
    fn call(&self, request: RequestBuilder) -> Result<Result<Value, (String, TrackError)>, TrackError> {
        let url = &self.spec.uri;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let request = if let Some(name) = &self.spec.bearer_env {
            request.bearer_auth(http::token(name, url)?)
        } else if variable(TOKEN).is_some() {
            request.bearer_auth(http::token(TOKEN, url)?)
        } else if let Some(user) = variable(USER) {
            http::confidential(PASSWORD, url)?;
            request.basic_auth(user, variable(PASSWORD))
        } else {
            request
        };
        let answer = self.http.send(url, request)?;
        let read: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        if (200..300).contains(&answer.status) {
            return match read {
                Value::Object(_) => Ok(Ok(read)),
                _ => Err(TrackError::Reply { url: url.clone() }),
            };
        }
        let code = read["error_code"].as_str().unwrap_or_default().to_owned();
        Ok(Err((code, answer.refused(url, read["message"].as_str().unwrap_or_default()))))
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.spec.uri)
    }

    /// None if the server does not have it.
    fn get(&self, path: &str, field: (&str, &str)) -> Result<Option<Value>, TrackError> {
        let url = Url::parse_with_params(&self.url(path), [field]);
        let url = url.map_err(|_| TrackError::Reply { url: self.spec.uri.clone() })?;
        match self.call(self.http.client.get(url))? {
            Ok(found) => Ok(Some(found)),
            Err((code, _)) if code == "RESOURCE_DOES_NOT_EXIST" => Ok(None),
            Err((_, error)) => Err(error),
        }
    }

    fn post(&self, path: &str, body: Value) -> Result<Value, TrackError> {
        self.call(self.http.client.post(self.url(path)).json(&body))?.map_err(|(_, error)| error)
    }

    /// Whether the server still has this run.
    fn exists(&self, run: &str) -> Result<bool, TrackError> {
        let found = self.get("runs/get", ("run_id", run))?;
        Ok(found.is_some_and(|found| found["run"]["info"]["lifecycle_stage"] != "deleted"))
    }

    /// Id of the experiment, which is created if there is none.
    fn experiment(&self) -> Result<String, TrackError> {
        let name = &self.spec.experiment;
        match self.get("experiments/get-by-name", ("experiment_name", name))? {
            Some(found) => self.text(&found["experiment"]["experiment_id"]),
            None => self.text(&self.post("experiments/create", json!({ "name": name }))?["experiment_id"]),
        }
    }

    fn text(&self, value: &Value) -> Result<String, TrackError> {
        value.as_str().map(str::to_owned).ok_or_else(|| TrackError::Reply { url: self.spec.uri.clone() })
    }

    /// The run with this log's tag, or a new one.
    fn find_or_create(&self, log: &Log) -> Result<Sent, TrackError> {
        let experiment = self.experiment()?;
        // In another cache, another run may have the same id.
        let tag = format!("{} {}", log.run, log.began_ms);
        let filter = format!("tags.`mcprl.run` = '{}'", tag.replace('\'', ""));
        let search = json!({ "experiment_ids": [experiment], "filter": filter, "max_results": 1 });
        let found = self.post("runs/search", search)?;
        if let Some(run) = found["runs"].get(0) {
            let params = run["data"]["params"].as_array().is_some_and(|params| !params.is_empty());
            return Ok(Sent { run: self.text(&run["info"]["run_id"])?, params, ..Sent::default() });
        }
        let tags =
            [("mcprl.run", tag.as_str()), ("mcprl.file", log.name.as_str()), ("mlflow.source.name", "mcprl")];
        let tags: Vec<Value> =
            tags.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let created = self.post(
            "runs/create",
            json!({ "experiment_id": experiment, "run_name": log.run, "start_time": log.began_ms, "tags": tags }),
        )?;
        Ok(Sent { run: self.text(&created["run"]["info"]["run_id"])?, ..Sent::default() })
    }
}

/// MLflow's own environment variables.
const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
const USER: &str = "MLFLOW_TRACKING_USERNAME";
const PASSWORD: &str = "MLFLOW_TRACKING_PASSWORD";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::log::Axis;

    #[test]
    fn names_and_values_keep_to_the_limits_of_the_server() {
        assert_eq!(name("train/without gradient (zero)"), "train/without_gradient__zero_");
        assert_eq!(name(&"x".repeat(999)).len(), NAME);
        assert_eq!(param("a.b", &json!(1e-3)), json!({ "key": "a.b", "value": "0.001" }));
        assert_eq!(param("a", &json!("é".repeat(9000)))["value"].as_str().unwrap().chars().count(), PARAM);
    }

    #[test]
    fn each_value_is_a_metric_at_its_step_and_time() {
        let content = Content::Scalars(vec![("train/loss".into(), 0.5)]);
        let entry = Entry { at_ms: 7, axis: Axis::Iterations("train".into()), step: 3, content };
        assert_eq!(
            metrics(&entry),
            [json!({ "key": "train/loss", "value": 0.5, "timestamp": 7, "step": 3 })]
        );
    }
}
