//! The policy that a command line names: a folder, or the newest one of a run or of its stage.

use std::path::{Path, PathBuf};

use super::{locations::Locations, target::Target};
use crate::{
    error::{Diagnostic, Result},
    exec::{
        RunState, folder,
        history::{self, RunHistory, StageHistory, Stages},
    },
    plan::NodeName,
    stage::{Cards, card::ParamType},
    store::Store,
};

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "export")]
enum SourceError {
    #[error("there is no run and no folder \"{0}\"")]
    #[diagnostic(class = usage)]
    #[hint = "`mcprl runs` lists the runs in the cache; `--cache DIR` uses another cache"]
    NotThere(String),
    #[error("{0} contains no policy")]
    #[diagnostic(class = usage)]
    #[hint = "`model`, `adapter`, `sft` and `grpo` stages write policies"]
    NoPolicy(String),
    #[error(
        "run \"{run}\" has not trained a policy yet: its newest one is the initial policy of \"{stage}\""
    )]
    #[hint = "continue the run with `mcprl resume {run}`, or name that policy: `{run}/{stage}`"]
    Untrained { run: String, stage: String },
    #[error("run \"{run}\" has written no policy yet")]
    #[diagnostic(code = "untrained")]
    #[hint = "continue the run with `mcprl resume {run}`"]
    NoneYet { run: String },
    #[error("{link} is no longer in the cache")]
    #[hint = "make it again with `mcprl resume {run}`, or name another policy: `{run}/STAGE`"]
    Gone { link: PathBuf, run: String },
}

/// A policy that a command line names.
pub struct PolicySource {
    pub store: Store,
    pub folder: PathBuf,
    /// The run and stage that wrote it, if it was named by them.
    pub of: Option<(RunHistory, String)>,
}

/// Finds the policy in a run's folder, in its own folder, or by a run's id.
pub fn find(text: &str, locations: &Locations) -> Result<PolicySource> {
    let folder = Path::new(text);
    if let Some(Target { store, run, part }) = Target::at(folder)? {
        return of_run(store, text, &run, part.as_deref());
    }
    if folder.is_dir() {
        let inner = folder.join("policy");
        let found = [folder.to_owned(), inner].into_iter().find(|folder| folder::is_policy(folder));
        let folder = found.ok_or_else(|| SourceError::NoPolicy(text.to_owned()))?;
        return Ok(PolicySource { store: locations.store(None)?, folder, of: None });
    }
    let Target { store, run, part } = Target::new(locations, text)?;
    let run = folder::named(&store, &run);
    if run.is_empty() || !store.runs().join(&run).is_dir() {
        return Err(SourceError::NotThere(text.to_owned()).into());
    }
    of_run(store, text, &run, part.as_deref())
}

/// The newest policy of a run, or of a part of it. An unfinished run may have trained none; the policy it
/// started with is then an error.
pub fn of_run(store: Store, text: &str, id: &str, part: Option<&str>) -> Result<PolicySource> {
    let run = history::run(&store, id)?;
    let path = store.runs().join(id);
    // The place in the run's folder.
    let inner = |policy: &Path| Some(policy.strip_prefix(&path).ok()?.to_str()?.to_owned());
    let mut policies = folder::policies(&store, id);
    if let Some(part) = part {
        run.named(part)?;
        let named = NodeName::parse(part);
        policies.retain(|policy| inner(policy).is_some_and(|inner| named.means(&inner)));
    }
    if part.is_none() {
        // Of a loop that has a result, the policies of other iterations are not what it made.
        policies.retain(|policy| {
            let iteration = inner(policy).and_then(|inner| iteration(&inner));
            iteration.is_none_or(|(name, number)| {
                run.loop_results.get(&name).is_none_or(|(result, _)| *result == number)
            })
        });
    }
    let none = || match part {
        None if run.state != RunState::Finished => SourceError::NoneYet { run: id.to_owned() },
        _ => SourceError::NoPolicy(text.to_owned()),
    };
    let folder = policies.pop().ok_or_else(none)?;
    // Do not fall back to an earlier policy: it would be mistaken for this one.
    if !folder::is_policy(&folder) {
        return Err(SourceError::Gone { link: folder, run: id.to_owned() }.into());
    }
    let writer = inner(&folder).and_then(|at| run.node(&at).ok());
    if let Some(node) = writer {
        history::check_link(&store, id, node, &folder)?;
    }
    if let Some(node) = writer.filter(|_| part.is_none() && run.state != RunState::Finished)
        && is_start(&store, &Stages::new(&store, &run).stage(node))
    {
        let (run, stage) = (run.id.clone(), node.id.clone());
        return Err(SourceError::Untrained { run, stage }.into());
    }
    let writer = writer.map(|node| node.id.clone());
    Ok(PolicySource { store, folder, of: writer.map(|stage| (run, stage)) })
}

/// The loop and the iteration of a place in a run's folder, such as `train.0003/update/policy`.
fn iteration(inner: &str) -> Option<(String, u32)> {
    let (name, number) = inner.split('/').next()?.rsplit_once('.')?;
    Some((name.to_owned(), number.parse().ok()?))
}

/// Whether a stage's policy is the one that the run started with.
fn is_start(store: &Store, stage: &StageHistory) -> bool {
    let reads_policy = stage.inputs.iter().any(|input| folder::is_policy(&store.artifact(&input.digest)));
    stage.fields.as_ref().is_some_and(|fields| model_param(&fields.kind).is_some() || !reads_policy)
}

/// The parameter that names the model or adapter which a stage of this kind imports.
pub fn model_param(kind: &str) -> Option<String> {
    let card = Cards::new(None).get(kind).ok()??;
    card.params.iter().find(|(_, param)| param.kind == ParamType::Model).map(|(name, _)| name.clone())
}
