//! A run at a glance: its stages with states and times, what is left, and what it cost.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    exec::RunState,
    plan::stage_name,
    store::{Cost, Store},
    usage::Usage,
    view::{Run, Stage, StageState},
};

/// What does not change while a run goes on: its stages in the order of the plan, and how long they took in earlier runs.
pub struct Planned {
    stages: Vec<Stage>,
    /// Mean seconds by the stage's name without iteration.
    earlier: BTreeMap<String, f64>,
}

impl Planned {
    /// Computes digests of files that the run file names, if they are not known yet.
    pub fn new(store: &Store, run: Run) -> Self {
        let stages = run.with_pending(store).stages;
        let mut times: BTreeMap<String, (f64, f64)> =
            stages.iter().map(|stage| (stage.name.clone(), (0.0, 0.0))).collect();
        for record in store.records() {
            if let Some((sum, count)) = times.get_mut(&stage_name(&record.stage)) {
                (*sum, *count) = (*sum + record.cost.seconds, *count + 1.0);
            }
        }
        let earlier = times.into_iter().filter(|(_, (_, count))| *count > 0.0);
        Self { stages, earlier: earlier.map(|(name, (sum, count))| (name, sum / count)).collect() }
    }

    /// Adds the stages that have not begun.
    pub fn complete(&self, run: &mut Run) {
        let mut begun: HashMap<String, Stage> =
            run.stages.drain(..).map(|stage| (stage.id.clone(), stage)).collect();
        for planned in &self.stages {
            let mut stage = begun.remove(&planned.id).unwrap_or_else(|| planned.clone());
            if stage.inputs.is_empty() {
                stage.inputs.clone_from(&planned.inputs);
            }
            stage.kind = stage.kind.or_else(|| planned.kind.clone());
            run.stages.push(stage);
        }
        let mut rest: Vec<Stage> = begun.into_values().collect();
        rest.sort_by(|one, other| one.id.cmp(&other.id));
        run.stages.append(&mut rest);
    }
}

/// What is left of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Remaining {
    /// Sum of the expected times of what is left; less if stages run at the same time or a loop ends early.
    seconds: f64,
    stages: usize,
    /// Names of stages that were never measured.
    unknown: Vec<String>,
}

/// All that the first view shows but the curves.
pub fn overview(run: &Run, planned: Option<&Planned>, now_ms: u64) -> Value {
    let mut spent = Cost::default();
    for stage in run.stages.iter().filter(|stage| stage.state == StageState::Ran) {
        spent += Cost {
            seconds: stage.any_seconds().unwrap_or(0.0),
            spent: stage.usage.unwrap_or_default(),
            dollars: stage.dollars,
        };
    }
    let usage = |usage: Usage| usage.named().into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
    let mut value = json!(run);
    for stage in value["stages"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        stage.remove("params");
        stage.remove("key");
    }
    value["now_ms"] = now_ms.into();
    value["spent"] =
        json!({ "seconds": spent.seconds, "dollars": spent.dollars, "usage": usage(spent.spent) });
    value["left"] =
        json!(planned.filter(|_| run.state == RunState::Running).map(|planned| left(run, planned, now_ms)));
    value
}

fn left(run: &Run, planned: &Planned, now_ms: u64) -> Remaining {
    let mut own: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for stage in run.stages.iter().filter(|stage| stage.state == StageState::Ran) {
        if let Some(seconds) = stage.seconds {
            let (sum, count) = own.entry(&stage.name).or_default();
            (*sum, *count) = (*sum + seconds, *count + 1.0);
        }
    }
    let mut left = Remaining { seconds: 0.0, stages: 0, unknown: Vec::new() };
    let is_left = |stage: &&Stage| {
        matches!(stage.state, StageState::Pending | StageState::Running | StageState::Unfinished)
    };
    for stage in run.stages.iter().filter(is_left) {
        left.stages += 1;
        let measured = own.get(stage.name.as_str()).map(|(sum, count)| sum / count);
        let Some(expected) = measured.or_else(|| planned.earlier.get(&stage.name).copied()) else {
            if !left.unknown.contains(&stage.name) {
                left.unknown.push(stage.name.clone());
            }
            continue;
        };
        let started = stage.started_ms.filter(|_| stage.state == StageState::Running);
        let elapsed = started.map_or(0.0, |started| now_ms.saturating_sub(started) as f64 / 1000.0);
        left.seconds += (expected - elapsed).max(0.0);
    }
    left
}
