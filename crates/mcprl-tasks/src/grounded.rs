//! Questions grounded in the live server: the reference expert answers each one first.
//!
//! Questions without an answer from the server are dropped and counted, so every scenario is known to be
//! solvable. Seeded hashes decide which entities and phrasings are held out, never the order in which answers
//! arrive.
//!
//! | split | family | entity, for this family | phrasing |
//! |---|---|---|---|
//! | `train` | seen | seen | seen |
//! | `unseen_entities` | seen | **unseen** | seen |
//! | `unseen_phrasings` | seen | seen | **unseen** |
//! | `unseen_families` | **unseen** | – | seen |

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use futures::{StreamExt, TryStreamExt};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use tokio_util::sync::CancellationToken;

use super::{
    TaskError,
    answer_rule::AnswerRule,
    candidate::{calls_json, entity_json, scenario_id},
    families::{EntityList, Families, Family},
    live::Live,
    mix::evenly,
    phrase::Binding,
    solution::{Dropped, Solution},
};
use crate::{
    chat::ToolCall,
    data::{Checks, Json, Scenario, StateCheck, TextCheck, Tool},
    error::{Failure, Interrupted, Result, did_you_mean},
    hash::Encoder,
    progress::Observer,
};

/// How many questions to make.
#[derive(Debug, Clone, Copy)]
pub struct QuestionCounts {
    /// Training questions per family; fewer if there are not enough distinct ways to ask.
    pub per_family: usize,
    /// Questions in each held-out split.
    pub per_split: usize,
}

impl QuestionCounts {
    /// Most entities of a family that are solved. A quarter of them is held out, and the others can have one training question
    /// each.
    fn entities(self) -> usize {
        self.per_family.saturating_mul(4).div_ceil(3)
    }
}

/// Questions, and the counts of those dropped.
#[derive(Debug, Default)]
pub struct Grounded {
    pub train: Vec<Scenario>,
    pub heldout: Vec<Scenario>,
    pub dropped: BTreeMap<Dropped, usize>,
    /// Family, reason and detail of each dropped question, or its text.
    pub refused: Vec<(String, Dropped, String)>,
}

/// Most pages of entities, in case paging never ends.
const PAGES: usize = 1000;
/// Visits in flight; the pool decides how many talk to the server.
const VISITS: usize = 64;

/// Runs the reference expert on everything the families file declares, and phrases what it could answer.
pub async fn generate(
    families: &Families,
    tools: &[Tool],
    live: &Live,
    quota: QuestionCounts,
    seed: u64,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Grounded> {
    families.check_tools(tools)?;
    let mut lists = Vec::new();
    for list in &families.entities {
        lists.push(entities(families, list, live).await?);
    }
    let cases: Vec<(&Family, Binding)> = families
        .iter()
        .flat_map(|family| {
            let lists = family.entities.iter().map(|index| lists[*index].as_slice());
            let all = combinations(lists);
            drawn(family, all, quota.entities(), seed).into_iter().map(move |binding| (family, binding))
        })
        .collect();
    observer.phase("questions", cases.len() as u64);
    let found: Vec<Result<Solved, Unsolved>> = futures::stream::iter(0..cases.len())
        .map(|case| {
            let (family, binding) = &cases[case];
            async move {
                if cancel.is_cancelled() {
                    return Err(Interrupted.into());
                }
                let found = solve(families, family, binding, live).await?;
                observer.advance(1);
                Ok::<_, Failure>(found)
            }
        })
        .buffered(VISITS)
        .try_collect()
        .await?;

    let mut refused: Vec<(String, Dropped, String)> = Vec::new();
    let mut solved: Vec<(&Family, Vec<Solved>)> =
        families.iter().map(|family| (family, Vec::new())).collect();
    let mut failures: BTreeMap<&str, String> = BTreeMap::new();
    for ((family, _), found) in cases.into_iter().zip(found) {
        match found {
            Ok(case) => {
                if let Some((_, cases)) = solved.iter_mut().find(|(other, _)| other.name == family.name) {
                    cases.push(case);
                }
            }
            Err((why, text)) => {
                refused.push((family.name.clone(), why, text.chars().take(300).collect()));
                failures.entry(&family.name).or_insert_with(|| format!("{}: {text}", why.name()));
            }
        }
    }
    for (family, _) in solved.iter().filter(|(_, cases)| cases.is_empty()) {
        if let Some(why) = failures.get(family.name.as_str()) {
            observer.note(&format!("family {} has no answerable question: {why}", family.name));
        }
    }
    let grounded = Wording { seed, ..Wording::default() }.word(&solved, quota, refused);
    if grounded.train.is_empty() && grounded.heldout.is_empty() {
        let account = failures.iter().map(|(family, why)| format!("{family}: {why}")).take(5);
        return Err(TaskError::Nothing { account: account.collect::<Vec<_>>().join("; ") }.into());
    }
    Ok(grounded)
}

/// The entities of a list, in the server's order, each once.
async fn entities(families: &Families, list: &EntityList, live: &Live) -> Result<Vec<Binding>> {
    let wrong = |problem: String| TaskError::Entities { name: list.name.clone(), problem };
    let mut bindings: Vec<Binding> = Vec::new();
    let mut answer = String::new();
    for page in 0..PAGES {
        let offset = page * list.page.unwrap_or_default();
        let call = list.call.fill(&Binding::from([("offset".to_owned(), offset.to_string())]));
        let outcome = live.visit().call(&call).await?;
        if outcome.is_error {
            return Err(wrong(outcome.text).into());
        }
        let rows = families.results.read(&outcome.text);
        for row in 0..rows.rows.len() {
            let field = |(index, (column, field)): (usize, &(String, Option<String>))| {
                let position = field.as_ref().map_or(Some(index), |field| rows.position(Some(field)));
                let value = position.and_then(|position| rows.field(row, position));
                let value = value.ok_or_else(|| wrong(format!("row {row} has no field for `{column}`")))?;
                Ok((column.clone(), value.to_owned()))
            };
            let binding =
                list.columns.iter().enumerate().map(field).collect::<Result<Binding, TaskError>>()?;
            if !bindings.contains(&binding) {
                bindings.push(binding);
            }
        }
        answer = outcome.text.chars().take(200).collect();
        match list.page {
            Some(size) if rows.rows.len() >= size => {}
            None if rows.more => {
                return Err(wrong("the result shows a part of them; say `page`".into()).into());
            }
            _ => break,
        }
    }
    if bindings.is_empty() {
        return Err(wrong(format!("the server's answer lists none: {answer}")).into());
    }
    Ok(bindings)
}

/// One item of each list, in every combination.
fn combinations<'a>(lists: impl Iterator<Item = &'a [Binding]>) -> Vec<Binding> {
    lists.fold(vec![Binding::new()], |all, list| {
        let with = |one: &Binding, other: &Binding| {
            one.iter().chain(other).map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        all.iter().flat_map(|one| list.iter().map(move |other| with(one, other))).collect()
    })
}

/// At most `count` of a family's entities, drawn by the seed.
fn drawn(family: &Family, mut all: Vec<Binding>, count: usize, seed: u64) -> Vec<Binding> {
    if all.len() > count {
        let order = |binding: &Binding| {
            let mut encoder = Encoder::new("mcprl drawn entities v1");
            encoder.number(seed).text(&family.name).text(&entity_json(binding)).finish()
        };
        all.sort_by_cached_key(order);
        all.truncate(count);
    }
    all
}

/// Why there is no answer, and what the server returned.
type Unsolved = (Dropped, String);

/// The reference expert: makes the family's calls, reads the answer, and looks at the state that is left.
async fn solve(
    families: &Families,
    family: &Family,
    binding: &Binding,
    live: &Live,
) -> Result<Result<Solved, Unsolved>> {
    let mut solution = Solution::new(families, &family.solve, binding.clone());
    let mut visit = live.visit();
    let mut calls = Vec::new();
    let mut text = String::new();
    while let Some(call) = solution.call() {
        let mut outcome = visit.call(&call).await?;
        if outcome.is_error && families.is_retried(&outcome.text) {
            calls.push(call.clone());
            outcome = visit.call(&call).await?;
        }
        calls.push(call);
        text = outcome.text;
        if outcome.is_error {
            return Ok(Err((Dropped::Failed, text)));
        }
        if let Err(why) = solution.result(text.clone()) {
            return Ok(Err((why, text)));
        }
    }
    let answer = match solution.answer(family) {
        Ok(answer) => answer,
        Err(why) => return Ok(Err((why, text))),
    };
    let rule = AnswerRule::Quoted(answer.clone());
    let reads = rule.answer(&[text.as_str()]).ok().and_then(|_| rule.column());
    let solved = Solved { binding: binding.clone(), answer, calls, reads, checks: None };
    let Some(state) = &families.state else { return Ok(Ok(solved)) };
    let call = state.fill(&Binding::new());
    let outcome = visit.call(&call).await?;
    if outcome.is_error {
        return Ok(Err((Dropped::Failed, outcome.text)));
    }
    let expect = TextCheck { equals: Some(outcome.text), ..TextCheck::default() };
    let state = StateCheck { tool: call.name, arguments: call.arguments, expect, before: None };
    let checks = Checks { state: vec![state], ..Checks::default() };
    Ok(Ok(Solved { checks: Some(Json(checks.to_json())), ..solved }))
}

impl Families {
    /// Checks that every tool named in a call exists.
    fn check_tools(&self, tools: &[Tool]) -> Result<(), TaskError> {
        let known = || tools.iter().filter(|tool| !tool.synthetic).map(|tool| tool.name.as_str());
        let of_families = self.iter().flat_map(|family| {
            let calls = family.solve.iter().map(|step| &step.call);
            calls.map(|call| (format!("family \"{}\"", family.name), &call.tool))
        });
        let of_entities =
            self.entities.iter().map(|list| (format!("entities.{}", list.name), &list.call.tool));
        for (place, tool) in of_families.chain(of_entities) {
            if !known().any(|name| name == tool) {
                let hint = did_you_mean(tool, known())
                    .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                let problem = format!("the server has no tool `{tool}`{hint}");
                return Err(TaskError::Families { file: "families".into(), place, problem });
            }
        }
        Ok(())
    }
}

/// A question that the reference expert answered.
struct Solved {
    binding: Binding,
    answer: String,
    calls: Vec<ToolCall>,
    /// Where the last result states the answer.
    reads: Option<Json>,
    checks: Option<Json>,
}

/// Family and entity.
type Asker = (String, Binding);

/// Phrases questions, each sentence once.
#[derive(Default)]
struct Wording {
    seed: u64,
    refused: Vec<(String, Dropped, String)>,
    /// The first asker of each sentence, and the answer with its checks.
    sentences: BTreeMap<String, (Asker, (String, Option<Json>))>,
    /// Other askers of the same sentence.
    repeated: BTreeSet<(String, Asker)>,
    /// Sentences that turned out to have two answers.
    ambiguous: BTreeSet<String>,
}

impl Wording {
    /// Phrases what was solved. `unsolved` are the refusals of the other questions.
    fn word(
        mut self,
        solved: &[(&Family, Vec<Solved>)],
        quota: QuestionCounts,
        unsolved: Vec<(String, Dropped, String)>,
    ) -> Grounded {
        let trained: Vec<_> = solved.iter().filter(|(family, _)| !family.holdout).collect();
        let held: Vec<_> = solved.iter().filter(|(family, _)| family.holdout).collect();
        let share = |families: usize| quota.per_split.div_ceil(families.max(1)) + 1;
        let (mut train, mut entities, mut phrasings, mut families) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut seen_and_unseen = Vec::new();
        for (family, cases) in &trained {
            let cases = self.shuffled(family, cases);
            let (unseen, seen) = cases.split_at(cases.len() / 4);
            train.extend(self.ask(family, "train", seen, quota.per_family));
            seen_and_unseen.push((family, seen.to_vec(), unseen.to_vec()));
        }
        // After all of training, so that a held-out sentence that duplicates a training one is the one
        // dropped.
        let count = share(trained.len());
        for (family, seen, unseen) in seen_and_unseen {
            entities.push(self.ask(family, "unseen_entities", &unseen, count));
            phrasings.push(self.ask(family, "unseen_phrasings", &seen, count));
        }
        for (family, cases) in &held {
            let cases = self.shuffled(family, cases);
            families.push(self.ask(family, "unseen_families", &cases, share(held.len())));
        }
        let splits = [entities, phrasings, families].into_iter();
        let mut heldout: Vec<Scenario> = splits.flat_map(|split| evenly(split, quota.per_split)).collect();
        for scenarios in [&mut train, &mut heldout] {
            scenarios.retain(|scenario| !self.ambiguous.contains(&scenario.task));
        }
        self.refused.extend(unsolved);
        let mut dropped = BTreeMap::new();
        // Of an ambiguous sentence, the first question is dropped, too.
        let firsts = self.ambiguous.iter().map(|_| Dropped::Ambiguous);
        for why in self.refused.iter().map(|(_, why, _)| *why).chain(firsts) {
            *dropped.entry(why).or_default() += 1;
        }
        Grounded { train, heldout, dropped, refused: self.refused }
    }

    /// In seeded random order, independent of the server's order of entities.
    fn shuffled<'a>(&self, family: &Family, cases: &'a [Solved]) -> Vec<&'a Solved> {
        let mut order: Vec<&Solved> = cases.iter().collect();
        order.sort_by_cached_key(|case| {
            let mut encoder = Encoder::new("mcprl held-out entities v1");
            encoder.number(self.seed).text(&family.name).text(&entity_json(&case.binding)).finish()
        });
        order
    }

    /// Up to `count` sentences, cycling through the cases.
    fn ask(&mut self, family: &Family, split: &str, cases: &[&Solved], count: usize) -> Vec<Scenario> {
        let mut encoder = Encoder::new("mcprl phrasings v1");
        let mut rng = ChaCha8Rng::from_seed(
            *encoder.number(self.seed).text(&family.name).text(seed_text(split)).finish().as_bytes(),
        );
        let mut scenarios = Vec::new();
        // With many ways to ask, most draws are new; with few, this bounds the tries.
        for case in cases.iter().cycle().take(if cases.is_empty() { 0 } else { count * 4 + 16 }) {
            if scenarios.len() == count {
                break;
            }
            let task = match split {
                "unseen_phrasings" => family.phrasings.draw_unseen(&case.binding, &mut rng),
                _ => Some(family.phrasings.draw(&case.binding, &mut rng)),
            };
            let Some(task) = task else { break };
            if self.is_new(family, case, &task) {
                scenarios.push(scenario(family, split, case, task));
            }
        }
        scenarios
    }

    fn is_new(&mut self, family: &Family, case: &Solved, task: &str) -> bool {
        let asker = (family.name.clone(), case.binding.clone());
        let (first, (answer, checks)) = match self.sentences.entry(task.to_owned()) {
            Entry::Vacant(free) => {
                free.insert((asker, (case.answer.clone(), case.checks.clone())));
                return true;
            }
            Entry::Occupied(taken) => taken.get().clone(),
        };
        if first == asker || !self.repeated.insert((task.to_owned(), asker)) {
            return false;
        }
        let is_same = answer == case.answer && checks == case.checks;
        let why = if is_same { Dropped::Duplicate } else { Dropped::Ambiguous };
        self.refused.push((family.name.clone(), why, task.to_owned()));
        if !is_same {
            self.ambiguous.insert(task.to_owned());
        }
        false
    }
}

/// What the draws of a split are seeded by: letters, so that a seed keeps its questions though splits have names now.
fn seed_text(split: &str) -> &str {
    match split {
        "unseen_entities" => "a",
        "unseen_phrasings" => "b",
        "unseen_families" => "c",
        other => other,
    }
}

fn scenario(family: &Family, split: &str, case: &Solved, task: String) -> Scenario {
    let checks = case.checks.as_ref().map(|checks| checks.0.as_str());
    Scenario {
        id: scenario_id(&family.name, &task, Some(&case.answer), checks),
        split: split.to_owned(),
        family: family.name.clone(),
        task,
        answer: Some(case.answer.clone()),
        check: family.check.name().to_owned(),
        entity: Some(entity_json(&case.binding)),
        reference: Some(calls_json(&case.calls)),
        checks: case.checks.clone(),
        reads: case.reads.clone(),
        ..Scenario::default()
    }
}
