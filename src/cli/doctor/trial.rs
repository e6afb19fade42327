//! `mcprl doctor --try N`: plays a few tasks and says what the model does with them, and what would help it.

use std::{collections::BTreeSet, sync::Arc};

use super::{Finding, Verdict};
use crate::{
    data::{self, Trajectory},
    error::{Diagnostic, Result},
    exec::{self, Request, RunFolder, RunSpec, Signals, folder},
    grpo::{Advice, Conduct, Headroom},
    plan::{Ledger, Node, NodeIndex, Plan, PlanReport, Status},
    stage::{Cards, headroom::of_tasks},
    store::{FileDigests, Store},
    ui::{Printer, RunView, Verbosity},
};

/// Episodes of each task: enough to see whether attempts differ.
const EPISODES: u32 = 4;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "doctor", class = usage)]
enum TrialError {
    #[error("no stage plays groups of episodes, as a `rollout` does")]
    NoRollout,
    #[error("stopped before all tasks were played")]
    #[diagnostic(class = interrupted)]
    Stopped,
}

/// Plays this many tasks with the first policy that the plan's episodes are of: the model before training. Runs everything that
/// this needs, which is in the cache then, where a later run finds it; but what is explored for it is less than a run explores.
/// `spec` is the run file as it is checked.
///
/// # Errors
/// If a stage fails, or no stage plays episodes of training tasks.
pub fn play(
    plan: &Plan,
    mut spec: RunSpec,
    store: Store,
    tasks: u32,
    printer: Printer,
) -> Result<Vec<Finding>> {
    let found = plan.order().iter().find_map(|index| trial(plan, plan.node(*index), tasks));
    let bounds = bounds(plan, &store, tasks);
    if !bounds.is_empty() {
        printer.say(&format!(
            "makes tasks first: at most {CALLS} calls that try tools out, in at most {SECONDS} s; the run itself makes its own"
        ));
    }
    spec.overrides.set.extend(bounds);
    spec.overrides.set.extend([format!("name={}-try", plan.name), found.ok_or(TrialError::NoRollout)?]);
    spec.until = vec![TRIAL.to_owned()];
    Ok(findings(&episodes(&spec, store, printer)?))
}

/// Of exploration for a trial: calls that try tools out, seconds, and fewest tasks.
const CALLS: u64 = 150;
const SECONDS: u64 = 60;
const FEWEST: u64 = 40;

/// Bounds of the exploration of stages that have no result yet, as overrides.
fn bounds(plan: &Plan, store: &Store, tasks: u32) -> Vec<String> {
    let ledger = Ledger::new(plan, store);
    let report = PlanReport::new(plan, store, &[]);
    let nodes = report.map(|report| report.nodes).unwrap_or_default();
    let cached = nodes.into_iter().filter(|node| matches!(node.status, Status::Cached { .. }));
    let cached: BTreeSet<String> = cached.map(|node| node.id).collect();
    let wanted = FEWEST.max(4 * u64::from(tasks));
    let mut bounds = Vec::new();
    let is_cached = |index: &NodeIndex| cached.contains(&plan.node(*index).id);
    for index in plan.order().iter().filter(|index| ledger.get(**index).is_none()) {
        let stage = &plan.node(*index).stage;
        for (param, most) in
            [("explore_calls", CALLS), ("explore_seconds", SECONDS), ("tasks", wanted), ("lessons", FEWEST)]
        {
            let explores = stage.kind.as_ref().is_some_and(|kind| kind.explores());
            // A table of an earlier run is taken as it is.
            let given = stage.params.get(param).filter(|_| explores && !is_cached(index));
            if given.and_then(serde_json::Value::as_u64).is_some_and(|given| given > most) {
                bounds.push(format!("{}.{param}={most}", stage.path));
            }
        }
    }
    bounds
}

/// The name of the stage that plays.
const TRIAL: &str = "try";

/// A stage that plays the tasks of `node` with its first policy. None if `node` plays none.
fn trial(plan: &Plan, node: &Node, tasks: u32) -> Option<String> {
    let params = &node.stage.params;
    let is_rollout = params.contains_key("group_size") || node.inputs.iter().any(|edge| edge.role == "dev");
    let input = |roles: &[&str]| {
        let edge = node.inputs.iter().find(|edge| roles.contains(&edge.role.as_str()))?;
        let (writer, port) = edge.from.output()?;
        let writer = plan.node(writer);
        writer.iteration.is_none().then(|| format!("{}.{port}", writer.stage.name))
    };
    let (policy, tools) = (input(&["policies", "policy"])?, input(&["tools"])?);
    let scenarios = input(&["scenarios"]).filter(|_| is_rollout)?;
    Some(format!(
        "stages.{TRIAL}={{ kind = \"headroom\", policies = {{ base = \"{policy}\" }}, tools = \"{tools}\", scenarios = \
         \"{scenarios}\", tasks = {tasks}, samples = {EPISODES} }}"
    ))
}

fn episodes(spec: &RunSpec, store: Store, printer: Printer) -> Result<Vec<Trajectory>> {
    let source = spec.source()?;
    let files = FileDigests::load(&store);
    let plan =
        Plan::new(&source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)?.until(&spec.until)?;
    let stages = plan.order().iter().map(|index| plan.node(*index).id.as_str());
    let listener = Arc::new(RunView::new(printer, Verbosity::Normal, stages));
    store.prepare()?;
    let folder = RunFolder::create(&store, &plan.name, spec)?;
    let node = plan.order().iter().map(|index| plan.node(*index)).find(|node| node.id == TRIAL);
    let table =
        node.and_then(|node| folder::inner_path(node, "trajectories")).map(|path| folder.path.join(path));
    let signals = Signals::listen();
    let stopping = listener.clone();
    let summary = exec::run(Request {
        plan,
        store,
        files,
        folder,
        resample: Vec::new(),
        keep_going: false,
        listener: listener.clone(),
        program: None,
        cancel: signals.stop(move || exec::Listener::event(&*stopping, &exec::Event::Stopping)),
    })?;
    listener.end();
    match (summary.failures.into_iter().next(), table) {
        (Some(failure), _) => Err(failure),
        (None, Some(table)) if !summary.interrupted => Ok(data::read(&table)?),
        (None, _) => Err(TrialError::Stopped.into()),
    }
}

/// What the episodes say of the model.
fn findings(played: &[Trajectory]) -> Vec<Finding> {
    let conduct = Conduct::of(played);
    // How answers are compared is not at hand; of texts that differ in form, the vote is a lower bound.
    let headroom = Headroom::of(&of_tasks(played, |_| "text"));
    let mut findings = Vec::new();
    if let Some(headroom) = headroom {
        let advice = headroom.advice();
        findings.push(match advice {
            Advice::Practice | Advice::Nothing => {
                Finding::good("try", format!("{headroom}: {}", advice.text()))
            }
            Advice::Solutions | Advice::Cannot => {
                Finding::new("try", Verdict::Note, headroom.to_string()).todo(advice.text())
            }
        });
    }
    let facts = conduct.hurdles().into_iter().chain(conduct.forms());
    findings.extend(facts.map(|fact| Finding::new("try", Verdict::Note, fact)));
    findings
}
