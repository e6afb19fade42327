//! A run at a glance: its stages with states and times, what is left, and what it cost.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    exec::RunState,
    plan::{Plan, PlanReport},
    progress::Progress,
    store::{Cost, Store},
    usage::Usage,
    view::{Run, Stage, StageState},
};

/// What does not change while a run goes on: its stages in the order of the plan, and how long each takes as planned.
pub struct Planned {
    stages: Vec<Stage>,
    /// Seconds by the stage's id, as `plan` estimates them.
    expected: BTreeMap<String, f64>,
}

impl Planned {
    /// Without what stages take.
    pub fn new(plan: Option<&Plan>, run: Run) -> Self {
        let stages = match plan {
            Some(plan) => run.with_plan(plan).stages,
            None => run.stages,
        };
        Self { stages, expected: BTreeMap::new() }
    }

    /// With what stages take, as earlier runs tell. Looks at all of them.
    pub fn estimated(&self, plan: &Plan, store: &Store) -> Self {
        let nodes = PlanReport::new(plan, store, &[]).map(|report| report.nodes).unwrap_or_default();
        let expected = nodes.into_iter().filter_map(|node| Some((node.id, node.cost?.cost.seconds)));
        Self { expected: expected.collect(), stages: self.stages.clone() }
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
    /// For all of the run: the sum of the expected times of its stages; less if stages run at the same time or a loop ends early.
    /// None if one of them has no estimate.
    seconds: Option<f64>,
    stages: usize,
}

/// All that the first view shows but the curves.
pub fn overview(run: &Run, planned: Option<&Planned>, progress: &[Progress], now_ms: u64) -> Value {
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
    let is_running = run.state == RunState::Running;
    let left = planned.filter(|_| is_running).map(|planned| left(run, planned, progress, now_ms));
    value["left"] = json!(left);
    value
}

fn left(run: &Run, planned: &Planned, progress: &[Progress], now_ms: u64) -> Remaining {
    let mut own: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for stage in run.stages.iter().filter(|stage| stage.state == StageState::Ran) {
        if let Some(seconds) = stage.seconds {
            let (sum, count) = own.entry(&stage.name).or_default();
            (*sum, *count) = (*sum + seconds, *count + 1.0);
        }
    }
    let mut left = Remaining { seconds: Some(0.0), stages: 0 };
    let is_left = |stage: &&Stage| {
        matches!(stage.state, StageState::Pending | StageState::Running | StageState::Unfinished)
    };
    for stage in run.stages.iter().filter(is_left) {
        left.stages += 1;
        let measured = || own.get(stage.name.as_str()).map(|(sum, count)| sum / count);
        let seconds = match progress.iter().find(|progress| progress.stage == stage.id) {
            Some(progress) => progress.left(now_ms).map(|left| left.as_secs_f64()),
            None => measured().or_else(|| planned.expected.get(&stage.id).copied()),
        };
        left.seconds = left.seconds.zip(seconds).map(|(sum, seconds)| sum + seconds);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::synthetic::{self, RUN, Size};

    #[test]
    fn the_time_left_is_that_of_the_whole_run_or_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let store = synthetic::write(folder.path(), Size::SMALL);
        let mut run = Run::open(&store, RUN).unwrap();
        let exam = run.stages.iter().position(|stage| stage.id == "exam").unwrap();
        let tasks = run.stages.iter().position(|stage| stage.id == "tasks").unwrap();
        run.stages[exam].state = StageState::Running;
        run.stages[tasks].state = StageState::Pending;
        let planned = |expected: &[(&str, f64)]| Planned {
            stages: run.stages.clone(),
            expected: expected.iter().map(|(id, seconds)| ((*id).to_owned(), *seconds)).collect(),
        };
        let mut progress = Progress::new("exam", 0);
        let unknown = left(&run, &planned(&[("exam", 900.0)]), &[progress.clone()], 20_000);
        assert_eq!((unknown.seconds, unknown.stages), (None, 2), "the running stage itself has no basis yet");
        progress.expected_s = Some(60.0);
        let without_tasks = left(&run, &planned(&[("exam", 900.0)]), &[progress.clone()], 20_000);
        assert_eq!(without_tasks.seconds, None, "the time of one stage is not that of the run");
        let known = left(&run, &planned(&[("exam", 900.0), ("tasks", 5.0)]), &[progress], 20_000);
        assert_eq!(known, Remaining { seconds: Some(45.0), stages: 2 });
    }
}
