//! The tasks of a run in pages, with what people decide about them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{WebError, query::Query, site::Site};
use crate::{
    data::{Admission, Scenario, Table},
    error::Result,
    exec::review::{self, Decision, RecordedDecision},
    text::start_of,
    view::{Run, Stage},
};

/// Most tasks of a page.
const MOST_TASKS: usize = 200;
/// Most characters of a text in a page of tasks.
const SHOWN: usize = 2000;

/// All tasks that a stage made, for training and held out.
fn tasks_of(stage: &Stage) -> Result<Vec<Scenario>, WebError> {
    let gone = |problem| WebError::NotFound(format!("the tasks of {}: {problem}", stage.id));
    let tables = stage.outputs.iter().filter(|output| output.kind == Scenario::NAME);
    let read = tables.map(|output| output.table::<Scenario>().map_err(gone));
    Ok(read.collect::<Result<Vec<_>, _>>()?.concat())
}

/// A page of the tasks of one stage, filtered.
pub(super) fn tasks(site: &Site, run: &str, query: &Query) -> Result<String> {
    let as_now = site.run(run)?;
    let makers: Vec<&Stage> = as_now.writers(Scenario::NAME).collect();
    let Some(stage) = makers.iter().rev().find(|stage| query.allows("stage", &stage.id)) else {
        return Ok(json!({ "stages": [], "tasks": [] }).to_string());
    };
    let (tasks, path) = (tasks_of(stage)?, site.review_path(run)?);
    let decided = review::decisions(&path)?;
    let state = |task: &Scenario| decided.get(&task.id).map_or("open", |decided| decided.decision.name());
    let text = query.text("text").map(str::to_lowercase);
    let has_text = |task: &Scenario| {
        text.as_ref().is_none_or(|text| {
            let answer = task.answer.as_deref().unwrap_or_default();
            task.task.to_lowercase().contains(text) || answer.to_lowercase().contains(text)
        })
    };
    let mut matching: Vec<&Scenario> = tasks
        .iter()
        .filter(|task| {
            query.allows("split", &task.split) && query.allows("family", &task.family) && has_text(task)
        })
        .collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for task in &matching {
        *counts.entry(state(task)).or_default() += 1;
    }
    matching.retain(|task| query.allows("decision", state(task)));
    let offset = query.parsed("offset")?.unwrap_or(0);
    let limit = query.parsed("limit")?.unwrap_or(25).min(MOST_TASKS);
    let shown = matching.iter().skip(offset).take(limit).map(|task| row(task, decided.get(&task.id)));
    let values = |of: fn(&Scenario) -> &String| tasks.iter().map(of).collect::<BTreeSet<_>>();
    let refused = stage.table::<Admission>().unwrap_or_default();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for reason in refused.into_iter().filter_map(|row| row.reason) {
        *reasons.entry(reason).or_default() += 1;
    }
    Ok(json!({
        "stages": makers.iter().map(|stage| &stage.id).collect::<Vec<_>>(),
        "stage": stage.id,
        "splits": values(|task| &task.split),
        "families": values(|task| &task.family),
        "total": tasks.len(),
        "refused": reasons,
        "counts": counts,
        "matching": matching.len(),
        "offset": offset,
        "tasks": shown.collect::<Vec<Value>>(),
        "file": path,
    })
    .to_string())
}

/// The stage that made tasks, by its id.
fn maker<'r>(run: &'r Run, id: &str) -> Result<&'r Stage, WebError> {
    let stage = run.writers(Scenario::NAME).find(|stage| stage.id == id);
    stage.ok_or_else(|| WebError::NotFound(format!("stage \"{id}\" made no tasks")))
}

fn with_id<'t>(tasks: &'t [Scenario], id: &str) -> Result<&'t Scenario, WebError> {
    let task = tasks.iter().find(|task| task.id == id);
    task.ok_or_else(|| WebError::NotFound(format!("there is no task \"{id}\"")))
}

/// The whole text and answer of one task, as edited: what a person may go on to edit.
pub(super) fn task(site: &Site, run: &str, query: &Query) -> Result<String> {
    let as_now = site.run(run)?;
    let tasks = tasks_of(maker(&as_now, query.required("stage")?)?)?;
    let task = with_id(&tasks, query.required("id")?)?;
    let decided = review::decisions(&site.review_path(run)?)?;
    Ok(match decided.get(&task.id).filter(|decided| decided.decision == Decision::Edit) {
        Some(edited) => json!({ "task": edited.task, "answer": edited.answer }),
        None => json!({ "task": task.task, "answer": task.answer }),
    }
    .to_string())
}

fn row(task: &Scenario, decided: Option<&RecordedDecision>) -> Value {
    let calls = task.reference.as_deref().and_then(|calls| serde_json::from_str::<Value>(calls).ok());
    json!({
        "id": task.id,
        "split": task.split,
        "family": task.family,
        "task": start_of(&task.task, SHOWN),
        "answer": task.answer.as_deref().map(|answer| start_of(answer, SHOWN)),
        "check": task.check,
        "calls": calls,
        "decision": decided.map(|decided| json!({
            "name": decided.decision.name(),
            "task": start_of(&decided.task, SHOWN),
            "answer": decided.answer.as_deref().map(|answer| start_of(answer, SHOWN)),
        })),
    })
}

/// A decision as the page sends it; without `decision` it is taken back.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewDecision {
    run: String,
    stage: String,
    id: String,
    decision: Option<String>,
    task: Option<String>,
    answer: Option<String>,
}

/// Keeps a decision.
pub(super) fn decide(site: &Site, body: &[u8]) -> Result<String> {
    let wrong = |problem: String| WebError::BadRequest(format!("the request is no decision: {problem}"));
    let new: NewDecision = serde_json::from_slice(body).map_err(|cause| wrong(cause.to_string()))?;
    let named = |name: String| Decision::named(&name).ok_or_else(|| wrong(format!("`{name}`")));
    let decision = new.decision.map(named).transpose()?;
    let as_now = site.run(&new.run)?;
    let tasks = tasks_of(maker(&as_now, &new.stage)?)?;
    let task = with_id(&tasks, &new.id)?;
    let given =
        |text: Option<String>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let task = match decision {
        Some(Decision::Edit) => {
            let (text, answer) = (given(new.task), given(new.answer));
            review::edited(&tasks, task, text.as_deref(), answer.as_deref())?
        }
        _ => task.clone(),
    };
    let decided = review::set(&site.review_path(&new.run)?, &task, decision)?;
    Ok(json!({ "task": row(&task, decided.get(&task.id)), "decided": decided.len() }).to_string())
}
