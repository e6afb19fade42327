//! The header of a log: what was evaluated, and the results.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{
    Common, Log, id,
    sample::{Sample, add_usage, usage_json},
    time,
};
use crate::{
    data::TurnTokens,
    eval::{Clusters, Mode},
};

/// Sums over the samples of a log.
#[derive(Default)]
pub struct Totals {
    samples: usize,
    epochs: BTreeSet<u32>,
    usage: TurnTokens,
    /// Ids of the scenarios in the order of the samples.
    scenarios: Vec<String>,
    /// Of each score: by scenario, the sum and the number of its values.
    scores: BTreeMap<String, BTreeMap<String, (f64, usize)>>,
}

impl Totals {
    pub fn add(&mut self, scenario: &str, sample: &Sample) {
        self.samples += 1;
        self.epochs.insert(sample.epoch);
        add_usage(&mut self.usage, sample.usage);
        if self.scenarios.last().is_none_or(|last| last != scenario) {
            self.scenarios.push(scenario.to_owned());
        }
        for (name, value) in &sample.scores {
            let of_score = self.scores.entry(name.clone()).or_default();
            let (sum, count) = of_score.entry(scenario.to_owned()).or_default();
            *sum += value;
            *count += 1;
        }
    }
}

/// The mean of a score over the scenarios, and its standard error between clusters.
fn mean(common: &Common, of_score: &BTreeMap<String, (f64, usize)>) -> (f64, f64) {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut values, mut members) = (Vec::new(), Vec::new());
    for (scenario, (sum, count)) in of_score {
        let cluster = common.clusters.get(scenario).unwrap_or(scenario);
        let next = numbers.len();
        members.push(*numbers.entry(cluster).or_insert(next));
        values.push(sum / *count as f64);
    }
    let clusters = Clusters::new(&values, &members);
    let error = clusters.standard_error();
    (clusters.mean(), if error.is_finite() { error } else { 0.0 })
}

pub fn header(log: &Log<'_>, common: &Common, totals: &Totals) -> Value {
    let Log { run, stage, part, .. } = log;
    let policy = &part.policy;
    let mode = part.mode.map(Mode::name);
    let ids = [run.id.as_str(), &stage.id, policy, mode.unwrap_or_default()];
    let epochs = totals.epochs.len().max(1);
    // The first score is the headline.
    let order = |name: &&String| (*name != "correct", *name != "reward");
    let mut names: Vec<&String> = totals.scores.keys().collect();
    names.sort_by_key(order);
    let metric = |name: &str| if name == "correct" { "accuracy" } else { "mean" };
    let cluster = json!({ "cluster": "cluster" });
    let scores: Vec<Value> = names
        .iter()
        .map(|name| {
            let of_score = &totals.scores[*name];
            let scored: usize = of_score.values().map(|(_, count)| count).sum();
            let (value, error) = mean(common, of_score);
            let mut score = json!({
                "name": name,
                "scorer": name,
                "scored_samples": scored,
                "unscored_samples": totals.samples - scored,
                "params": {},
                "metrics": {
                    metric(name): { "name": metric(name), "value": value, "params": {} },
                    "stderr": { "name": "stderr", "value": error, "params": cluster },
                },
            });
            if epochs > 1 {
                score["reducer"] = "mean".into();
            }
            score
        })
        .collect();
    let scorers: Vec<Value> = names
        .iter()
        .map(|name| {
            let metrics = json!([
                { "name": format!("inspect_ai/{}", metric(name)), "options": {} },
                { "name": "inspect_ai/stderr", "options": cluster },
            ]);
            json!({ "name": name, "options": {}, "metrics": metrics, "metadata": {} })
        })
        .collect();
    let file = run.file.as_deref().and_then(|file| Path::new(file).file_stem()?.to_str()).unwrap_or("mcprl");
    let data_set = stage.inputs.iter().find(|edge| edge.role == "scenarios");
    let mut seen = BTreeSet::new();
    let sample_ids: Vec<&String> = totals.scenarios.iter().filter(|id| seen.insert(*id)).collect();
    let model = &common.model;
    let mut args = json!({ "run": run.id, "stage": stage.id });
    if let Some((_, iteration)) = &stage.iteration {
        args["iteration"] = (*iteration).into();
    }
    if let Some(mode) = mode {
        args["mode"] = mode.into();
    }
    let mut spec = json!({
        "eval_id": id("eval", &ids),
        "run_id": id("run", &[&run.id, &stage.id]),
        "created": time(common.begin),
        "task": format!("{file}/{}", stage.name),
        "task_id": id("task", &ids),
        "task_version": 0,
        "task_display_name": stage.id,
        "task_attribs": {},
        "task_args": args,
        "task_args_passed": args,
        "tags": ["mcprl"],
        "dataset": {
            "name": data_set.and_then(|edge| edge.from.as_deref()).unwrap_or("scenarios"),
            "samples": sample_ids.len(),
            "sample_ids": sample_ids,
            "shuffled": false,
        },
        "model": model,
        "model_generate_config": generate_config(log),
        "model_args": { "policy": log.outcome(log.part.rows[0]).policy },
        "config": { "epochs": epochs, "epochs_reducer": ["mean"] },
        "packages": run.versions.last().map(|version| json!({ "mcprl": version })).unwrap_or_else(|| json!({})),
        "metadata": metadata(log, common),
        "scorers": scorers,
        // The texts are those of a server and of a model: shown as they are, with nothing rendered or fetched.
        "viewer": { "trust_content": false },
    });
    if let Some(turns) = stage.params.get("max_turns").filter(|turns| turns.is_u64()) {
        spec["config"]["turn_limit"] = turns.clone();
    }
    let mut results = json!({
        "total_samples": totals.samples,
        "completed_samples": totals.samples,
        "scores": scores,
    });
    if let Some(first) = names.first() {
        results["headline"] = json!({ "scorer": first, "score": first, "metric": metric(first) });
    }
    json!({
        "version": 2,
        "status": "success",
        "eval": spec,
        "plan": {
            "name": "plan",
            "steps": [{ "solver": stage.kind.as_deref().unwrap_or("mcprl"), "params": stage.params }],
            "config": {},
        },
        "results": results,
        "stats": {
            "started_at": time(common.begin),
            "completed_at": time(stage.ended_ms.unwrap_or(common.begin)),
            "model_usage": { model.as_str(): usage_json(totals.usage) },
            "role_usage": {},
            "connection_limit_history": [],
        },
        "invalidated": false,
        "tags": ["mcprl"],
        "metadata": metadata(log, common),
    })
}

/// How the policy was sampled.
fn generate_config(log: &Log<'_>) -> Value {
    let temperature = match log.part.mode {
        Some(Mode::Greedy) => Some(0.0),
        Some(Mode::Sampled) => Some(1.0),
        None => log.stage.params.get("temperature").and_then(Value::as_f64),
    };
    let mut config = Map::new();
    config.extend(temperature.map(|temperature| ("temperature".to_owned(), temperature.into())));
    let tokens = log.stage.params.get("max_turn_tokens").filter(|tokens| tokens.is_u64());
    config.extend(tokens.map(|tokens| ("max_tokens".to_owned(), tokens.clone())));
    config.into()
}

/// What Inspect has no field for.
fn metadata(log: &Log<'_>, common: &Common) -> Value {
    let mut metadata = json!({
        "run": log.run.id,
        "stage": log.stage.id,
        "policy": log.part.policy,
        "clustered_by": common.clustered_by,
        "times": "of the stage; the times of events are nominal",
    });
    if let Some(seed) = log.run.seed {
        metadata["seed"] = seed.into();
    }
    if let Some(verdict) = &log.part.verdict {
        metadata["verdict"] = json!(verdict);
    }
    metadata
}
