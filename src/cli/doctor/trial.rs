//! `mcprl doctor --try N`: plays a few tasks and says what the model does with them.

use std::sync::Arc;

use serde_json::Value;

use super::{Finding, Verdict};
use crate::{
    data::{self, Trajectory, groups},
    error::{Diagnostic, Result},
    exec::{self, Request, RunFolder, RunSpec, Signals, folder},
    grpo::{Conduct, chance_to_vary},
    plan::{Node, Plan, stage_name},
    stage::Cards,
    store::{FileDigests, Store},
    ui::{Printer, RunView, Verbosity},
};

/// Episodes of each task: enough to see whether attempts differ.
const EPISODES: u32 = 2;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "doctor", class = usage)]
enum TrialError {
    #[error("no stage plays groups of episodes, as a `rollout` does")]
    NoRollout,
    #[error("stopped before all tasks were played")]
    #[diagnostic(class = interrupted)]
    Stopped,
}

/// Runs everything up to the plan's first rollout, which plays this many tasks. What this makes is in the cache, where a later
/// run finds it. `spec` is the run file as it is checked.
///
/// # Errors
/// If a stage fails, or no stage plays episodes.
pub fn play(
    plan: &Plan,
    mut spec: RunSpec,
    store: Store,
    tasks: u32,
    printer: Printer,
) -> Result<Vec<Finding>> {
    let mut nodes = plan.order().iter().map(|index| plan.node(*index));
    let size = |node: &Node| node.stage.params.get("group_size").and_then(Value::as_u64);
    let rollout = nodes.find_map(|node| Some((node, size(node)?)));
    let (rollout, group_size) = rollout.ok_or(TrialError::NoRollout)?;
    let name = stage_name(&rollout.id);
    let table = match name.split_once('/') {
        Some((in_loop, stage)) => format!("loop.{in_loop}.stages.{stage}"),
        None => format!("stages.{name}"),
    };
    spec.overrides.set.extend([
        format!("name={}-try", plan.name),
        format!("{table}.prompts={tasks}"),
        format!("{table}.group_size={EPISODES}"),
        format!("{table}.refill_waves=0"),
    ]);
    spec.until = vec![rollout.id.clone()];
    let played = episodes(&spec, rollout, store, printer)?;
    Ok(findings(&played, group_size as u32))
}

fn episodes(spec: &RunSpec, rollout: &Node, store: Store, printer: Printer) -> Result<Vec<Trajectory>> {
    let source = spec.source()?;
    let files = FileDigests::load(&store);
    let plan =
        Plan::new(&source, &spec.overrides, &Cards::new(spec.stages.clone()), &files)?.until(&spec.until)?;
    let stages = plan.order().iter().map(|index| plan.node(*index).id.as_str());
    let listener = Arc::new(RunView::new(printer, Verbosity::Normal, stages));
    store.prepare()?;
    let folder = RunFolder::create(&store, &plan.name, spec)?;
    let table = folder::inner_path(rollout, "trajectories").map(|path| folder.path.join(path));
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
    listener.flush();
    match (summary.failures.into_iter().next(), table) {
        (Some(failure), _) => Err(failure),
        (None, Some(table)) if !summary.interrupted => Ok(data::read(&table)?),
        (None, _) => Err(TrialError::Stopped.into()),
    }
}

/// What the episodes say of the model. `group_size`: of the run file.
fn findings(played: &[Trajectory], group_size: u32) -> Vec<Finding> {
    let conduct = Conduct::of(played);
    let by_group = groups(played.iter().map(Trajectory::group)).into_values().map(|members| {
        let known = members.into_iter().filter_map(|index| played[index].correct);
        known.fold((0, 0), |(right, of), correct| (right + u32::from(correct), of + 1))
    });
    let by_group: Vec<(u32, u32)> = by_group.filter(|(_, of)| *of > 0).collect();
    let mut findings = Vec::new();
    if let Some(chance) = chance_to_vary(&by_group, group_size) {
        let right = format!(
            "{} of {} episodes are right; of groups of {group_size}, about {:.0} % would have both right and wrong ones",
            conduct.right,
            conduct.episodes,
            100.0 * chance
        );
        let start = "train on reference solutions first (`demonstrations` and `sft`), or take easier tasks or a larger model";
        findings.push(match conduct.right {
            0 => Finding::new("try", Verdict::Bad, right).todo(start),
            _ => Finding::good("try", right),
        });
    }
    let facts = conduct.hurdles().into_iter().chain(conduct.forms());
    findings.extend(facts.map(|fact| Finding::new("try", Verdict::Note, fact)));
    findings
}
