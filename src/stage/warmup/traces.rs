//! Training traces: a scripted worker, which makes mistakes on purpose, on the live server.
//!
//! The worker knows the families file. The family's [`Tier`] sets how often it explores, guesses, gives up,
//! slips or forgets to submit its answer. Results are real answers of the server. Each trace has its own
//! random generator, so the same seed gives the same traces in whatever order answers arrive.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, TryStreamExt};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::{
    answer::COMPLETE_TASK,
    chat::ToolCall,
    data::{Json, Scenario},
    error::{Failure, Interrupted, Result},
    hash::Encoder,
    judge::truth,
    progress::Observer,
    random::{shuffle, unit},
    stage::scenarios::{
        Binding, CallSequence, Families, Family, Live, ScenarioError, Solution, Step, Tier, below,
    },
};

/// A conversation to train on.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    pub scenario_id: String,
    /// The server whose tools alone the worker has, of several.
    pub server: Option<String>,
    pub task: String,
    pub turns: Vec<TraceTurn>,
    /// The tools that the worker means to call, the last call's first.
    pub planned: Vec<String>,
    /// Whether the worker solved the task.
    pub correct: bool,
    /// Function schemas that the conversation shows instead of the server's.
    pub tools: Option<Arc<Vec<Value>>>,
}

/// The worker's message and the results; no results where the conversation ends.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceTurn {
    pub text: String,
    pub call: Option<ToolCall>,
    pub result: Option<String>,
}

/// Submitted by a worker that found nothing.
const UNKNOWN: &str = "unknown";
/// Traces in flight; the pool limits the calls.
const AT_ONCE: usize = 64;

/// Records `count` traces of the worker on these scenarios, with families weighted by the root of their size.
///
/// # Errors
/// If no scenario has a family and an entity, if one is of an unknown family, or if the server is lost.
pub async fn traces(
    families: &Families,
    scenarios: &[Scenario],
    live: &Live,
    count: usize,
    seed: u64,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Vec<Trace>> {
    let questions = questions(families, scenarios)?;
    let plan = plan(&questions, count, seed);
    observer.phase("recording traces", plan.len() as u64);
    futures::stream::iter(plan.into_iter().enumerate())
        .map(|(index, question)| {
            let questions = &questions;
            async move {
                if cancel.is_cancelled() {
                    return Err(Interrupted.into());
                }
                let question = &questions[question];
                let mut encoder = Encoder::new("mcprl trace v1");
                let rng = encoder.number(seed).number(index as u64).text(&question.scenario.id).finish();
                let mut worker = Worker {
                    families,
                    family: question.family,
                    known: question.binding.clone(),
                    visit: live.visit(),
                    rng: ChaCha8Rng::from_seed(*rng.as_bytes()),
                    turns: Vec::new(),
                    planned: Vec::new(),
                };
                worker.work().await?;
                let correct = worker.is_correct(question.scenario).await?;
                observer.advance(1);
                let scenario = question.scenario;
                Ok::<_, Failure>(Trace {
                    scenario_id: scenario.id.clone(),
                    server: None,
                    task: scenario.task.clone(),
                    turns: worker.turns,
                    planned: worker.planned,
                    correct,
                    tools: None,
                })
            }
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

struct Question<'a> {
    scenario: &'a Scenario,
    family: &'a Family,
    binding: Binding,
}

/// The scenarios that a worker can handle.
fn questions<'a>(
    families: &'a Families,
    scenarios: &'a [Scenario],
) -> Result<Vec<Question<'a>>, ScenarioError> {
    let mut questions = Vec::new();
    for scenario in scenarios.iter().filter(|scenario| scenario.reference.is_some()) {
        let Some(binding) = scenario.entity.as_deref().and_then(|entity| serde_json::from_str(entity).ok())
        else {
            continue;
        };
        let unknown =
            || ScenarioError::UnknownFamily { id: scenario.id.clone(), family: scenario.family.clone() };
        let family = families.get(&scenario.family).ok_or_else(unknown)?;
        questions.push(Question { scenario, family, binding });
    }
    if questions.is_empty() {
        return Err(ScenarioError::NoReference);
    }
    Ok(questions)
}

/// The question of each trace: none repeats before its family is exhausted.
fn plan(questions: &[Question<'_>], count: usize, seed: u64) -> Vec<usize> {
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, question) in questions.iter().enumerate() {
        families.entry(&question.scenario.family).or_default().push(index);
    }
    let mut rng =
        ChaCha8Rng::from_seed(*Encoder::new("mcprl trace plan v1").number(seed).finish().as_bytes());
    let total: f64 = families.values().map(|questions| (questions.len() as f64).sqrt()).sum();
    let mut plan = Vec::with_capacity(count);
    let mut owed = 0.0;
    for questions in families.values_mut() {
        shuffle(questions, &mut rng);
        owed += count as f64 * (questions.len() as f64).sqrt() / total;
        let due = (owed.round() as usize).saturating_sub(plan.len());
        plan.extend(questions.iter().cycle().take(due));
    }
    shuffle(&mut plan, &mut rng);
    plan
}

/// One worker on one question.
struct Worker<'a> {
    families: &'a Families,
    family: &'a Family,
    /// The entity's values, for calls.
    known: Binding,
    visit: CallSequence<'a>,
    rng: ChaCha8Rng,
    turns: Vec<TraceTurn>,
    planned: Vec<String>,
}

impl Worker<'_> {
    async fn work(&mut self) -> Result<()> {
        let habits = &self.family.worker;
        let tier: Tier = habits.tier;
        if self.chance(tier.look) {
            for look in &habits.look {
                self.call(look.fill(&self.known)).await?;
            }
        } else if let Some(guess) = &habits.guess
            && self.chance(tier.guess)
        {
            let failed = self.call(guess.fill(&self.known)).await?.1;
            if failed && !self.chance(tier.recover) {
                self.finish(UNKNOWN.into(), tier);
                return Ok(());
            }
            if let Some(look) = habits.look.first()
                && failed
                && self.chance(0.5)
            {
                self.call(look.fill(&self.known)).await?;
            }
        }
        let slips = !habits.slips.is_empty() && self.chance(tier.slip);
        let steps = match slips {
            true => &habits.slips[below(&mut self.rng, habits.slips.len())],
            false => &self.family.solve,
        };
        for step in steps.iter().rev() {
            let tool = &step.call.tool;
            if !self.planned.iter().any(|planned| planned == tool) {
                self.planned.push(tool.to_owned());
            }
        }
        let answer = self.follow(steps).await?;
        self.finish(answer.unwrap_or_else(|| UNKNOWN.into()), tier);
        Ok(())
    }

    /// Makes the calls and reads the answer. Without an answer if a result is not what later calls need.
    async fn follow(&mut self, steps: &[Step]) -> Result<Option<String>> {
        let mut solution = Solution::new(self.families, steps, self.known.clone());
        while let Some(call) = solution.call() {
            let (mut text, failed) = self.call(call.clone()).await?;
            if failed && self.families.is_retried(&text) && self.chance(self.family.worker.tier.recover) {
                text = self.call(call).await?.0;
            }
            if solution.result(text).is_err() {
                return Ok(None);
            }
        }
        Ok(solution.careless_answer(self.family))
    }

    /// A call's result, and whether it failed.
    async fn call(&mut self, call: ToolCall) -> Result<(String, bool)> {
        let outcome = self.visit.call(&call).await?;
        self.turns.push(TraceTurn {
            text: String::new(),
            call: Some(call),
            result: Some(outcome.text.clone()),
        });
        Ok((outcome.text, outcome.is_error))
    }

    fn finish(&mut self, answer: String, tier: Tier) {
        let turn = if self.chance(tier.finish) {
            let arguments = Map::from_iter([("answer".to_owned(), Value::from(answer))]);
            let call = ToolCall { name: COMPLETE_TASK.into(), arguments };
            TraceTurn { text: String::new(), call: Some(call), result: None }
        } else {
            TraceTurn { text: answer, call: None, result: None }
        };
        self.turns.push(turn);
    }

    /// Whether the task is solved by what the worker submitted and by the state it left.
    async fn is_correct(&self, scenario: &Scenario) -> Result<bool> {
        let state = match (&self.families.state, &scenario.checks) {
            (Some(call), Some(_)) => {
                let outcome = self.visit.call(&call.fill(&Binding::new())).await?;
                Some(Json(serde_json::json!([(!outcome.is_error).then_some(outcome.text)]).to_string()))
            }
            _ => None,
        };
        let last = self.turns.last().and_then(|turn| turn.call.as_ref());
        let completed = last.filter(|call| call.name == COMPLETE_TASK);
        let answer = completed.and_then(|call| call.arguments.get("answer")?.as_str());
        let evidence = truth::Evidence { answer, messages: "", state: state.as_ref() };
        Ok(truth::correct(scenario, evidence) == Some(true))
    }

    fn chance(&mut self, of: f64) -> bool {
        unit(&mut self.rng) < of
    }
}

/// Share of traces that solve their task: the success rate of a perfect imitator.
pub fn success(traces: &[Trace]) -> f64 {
    traces.iter().filter(|trace| trace.correct).count() as f64 / traces.len().max(1) as f64
}
