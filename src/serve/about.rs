//! What the page shows first: who answers, with which tools and how well, and tasks to try. It names no command and no path, and
//! conceals what looks like a secret.

use std::{collections::BTreeMap, path::Path};

use axum::body::Body;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Policy, Service};
use crate::{
    data::{Scenario, VerdictRow, is_of_trained_cases},
    eval::{self, Headline, Sentence},
    judge::truth::{self, Evidence},
    openai::{ApiError, read_body},
    secret,
};

/// Tasks to try.
const TASKS: usize = 5;

/// What is known of the agent of a run.
#[derive(Default)]
pub struct About {
    /// What its servers call themselves.
    pub server: String,
    /// The result of the run's comparison of policies, and what it says.
    pub exam: Option<(Headline, Option<Sentence>)>,
    /// Of that comparison.
    pub tasks: Vec<Scenario>,
}

impl About {
    /// Keeps a few of the tasks: of as many families and splits as possible, and first those that an answer alone decides.
    pub fn new(server: String, verdict: &[VerdictRow], tasks: Vec<Scenario>) -> Self {
        let exam = eval::headline(verdict).map(|headline| (headline, eval::claim(verdict)));
        // What is concealed would be another task.
        let tasks =
            tasks.into_iter().filter(|task| task.split != "train" && secret::in_text(&task.task).is_none());
        let (known, new): (Vec<_>, Vec<_>) = tasks.partition(|task| is_of_trained_cases(&task.split));
        Self { server, exam, tasks: varied(if new.is_empty() { known } else { new }) }
    }

    /// Whether this is one of the compared policies.
    pub fn compares(&self, policy: &str) -> bool {
        self.exam.iter().flat_map(|(exam, _)| &exam.policies).any(|standing| standing.policy == policy)
    }
}

/// A few of these tasks: those that an answer alone decides before others, one of each family before a second of any, and of
/// different splits first.
fn varied(tasks: Vec<Scenario>) -> Vec<Scenario> {
    let mut tasks_of_family: BTreeMap<String, usize> = BTreeMap::new();
    let mut families_of_split: BTreeMap<String, usize> = BTreeMap::new();
    let mut ranked = Vec::with_capacity(tasks.len());
    for task in tasks {
        let in_family = tasks_of_family.entry(task.family.clone()).or_default();
        *in_family += 1;
        let in_split = families_of_split.entry(task.split.clone()).or_default();
        if *in_family == 1 {
            *in_split += 1;
        }
        ranked.push(((!is_decided(&task), *in_family, *in_split), task));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, task)| task).take(TASKS).collect()
}

/// Whether an answer alone decides a task.
pub fn is_decided(task: &Scenario) -> bool {
    task.checks.is_none() && task.server.is_none() && truth::is_known(task)
}

#[derive(Deserialize)]
struct GivenAnswer {
    /// The number of the task.
    task: usize,
    answer: String,
}

impl Service {
    /// For the page.
    pub fn about(&self) -> Value {
        let About { server, exam, tasks } = &self.about;
        let model = |name: Option<&str>, policy: &Policy, is_agent: bool| {
            let path = Path::new(&policy.input.name);
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let shown = if self.run.is_some() { Some(policy.input.name.clone()) } else { file };
            let found =
                exam.iter().flat_map(|(exam, _)| &exam.policies).find(|one| one.policy == policy.input.name);
            let success = found
                .filter(|_| is_agent)
                .map(|one| json!({"success": one.success, "low": one.low, "high": one.high}));
            json!({"model": name, "policy": shown, "is_agent": is_agent, "exam": success})
        };
        let first = self.policies.first();
        let alone = first.into_iter().filter(|_| self.run.is_some()).chain(self.others());
        let mut models: Vec<Value> =
            self.agents().map(|(name, policy)| model(Some(&name), policy, true)).collect();
        models.extend(alone.map(|policy| model(Some(&policy.input.name), policy, false)));
        // Its name may be a path.
        if models.is_empty() {
            models.extend(first.map(|policy| model(None, policy, false)));
        }
        let tools = self.agent.iter().flat_map(|ask| &ask.agent.open.tools).filter(|tool| !tool.synthetic);
        let tools: Vec<Value> =
            tools.map(|tool| json!({"name": tool.name, "description": tool.description})).collect();
        let tasks = tasks.iter().filter(|_| self.agent.is_some());
        let tasks: Vec<Value> = tasks.map(|task| json!({"task": task.task, "answer": task.answer})).collect();
        let mut about = json!({
            "run": self.run, "keeps": self.keeper.is_some(), "server": server, "tools": tools, "models": models,
            "exam": exam.as_ref().map(|(exam, claim)| json!({
                "tasks": exam.tasks, "mode": exam.mode, "of_trained_cases": exam.of_trained_cases, "claim": claim,
                "advice": exam.advice.as_ref().map(eval::Advice::sentence),
            })), "tasks": tasks,
        });
        secret::conceal(&mut about);
        about
    }

    /// Whether an answer to one of the tasks is right; null if more than the answer decides.
    pub async fn check(&self, body: Body) -> Result<Value, ApiError> {
        let _permit = self.queue.clone().try_acquire_owned().map_err(|_| ApiError::busy())?;
        let body = read_body(body).await?;
        let given: GivenAnswer = serde_json::from_slice(&body)
            .map_err(|cause| ApiError::invalid("task", format!("a task's number and an answer: {cause}")))?;
        let task = self.about.tasks.get(given.task);
        let unknown =
            "is not the number of a task to try; load the page again if the server was started again";
        let task = task.ok_or_else(|| ApiError::invalid("task", unknown))?;
        let evidence = Evidence { answer: Some(&given.answer), ..Evidence::default() };
        Ok(json!({"is_right": is_decided(task).then(|| truth::correct(task, evidence)).flatten()}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_to_try_are_of_different_families_and_splits_and_an_answer_decides_the_first() {
        let task = |(id, family, split, check): &(&str, &str, &str, &str)| Scenario {
            id: (*id).into(),
            family: (*family).into(),
            split: (*split).into(),
            check: (*check).into(),
            answer: Some("7".into()),
            ..Scenario::default()
        };
        let tasks = [
            ("undecided", "state", "test", "none"),
            ("one", "count", "test", "text"),
            ("two", "count", "test", "text"),
            ("three", "count", "other", "text"),
            ("four", "list", "test", "text"),
            ("five", "name", "other", "text"),
        ];
        let kept = varied(tasks.iter().map(task).collect());
        let kept: Vec<&str> = kept.iter().map(|task| task.id.as_str()).collect();
        assert_eq!(kept, ["five", "one", "four", "two", "three"]);
    }
}
