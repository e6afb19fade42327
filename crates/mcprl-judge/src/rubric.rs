//! A language model scores each episode alone, by named criteria with weights.
//!
//! The score is the weighted mean of the criteria. Equal conversations are shown once and share a score.
//!
//! A model too small to write scores can still tell right from wrong: then each criterion is a yes-or-no question, and the
//! probability of yes is the score (as in G-Eval, Liu et al. 2023).

use minijinja::{context, value::Serde};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    JudgeModel, ReplyCache, Round, Score, Scores,
    model::{CRITERION, render},
    relative::distinct,
    reply::ReplyScore,
    reward::JudgedTrajectory,
    transcript::plain,
};

/// One criterion of a rubric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Criterion {
    pub name: String,
    /// What the judge is told.
    pub about: String,
    pub weight: f64,
}

/// A criterion as written in a run file: its text, or a table.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum ParsedCriterion {
    Text(String),
    Table { about: String, weight: Option<f64> },
}

/// Reads criteria: `{ name = "text" }` or `{ name = { about = "text", weight = 2 } }`.
///
/// # Errors
/// If there is none, or one has no text or a weight that is not above 0; says which.
pub fn criteria(table: &Map<String, Value>) -> Result<Vec<Criterion>, String> {
    let read = |(name, value): (&String, &Value)| {
        let (about, weight) = match ParsedCriterion::deserialize(value) {
            Ok(ParsedCriterion::Text(about)) => (about, 1.0),
            Ok(ParsedCriterion::Table { about, weight }) => (about, weight.unwrap_or(1.0)),
            Err(_) => return Err(format!("`{name}` should be a text, or a table of `about` and `weight`")),
        };
        if about.trim().is_empty() {
            return Err(format!("`{name}` says nothing"));
        }
        if !(weight.is_finite() && weight > 0.0) {
            return Err(format!("the weight of `{name}` should be above 0"));
        }
        Ok(Criterion { name: name.clone(), about, weight })
    };
    match table.is_empty() {
        true => Err("there is no criterion".into()),
        false => table.iter().map(read).collect(),
    }
}

/// Criteria that ask for what usually goes wrong: the answer of a wrong call is read correctly as often as that of a right one.
pub fn default_criteria() -> Vec<Criterion> {
    let all = [
        (
            "conditions",
            "Every condition of the task stands in a call: no name, number, date or restriction of it is missing or another one.",
        ),
        (
            "subject",
            "The calls that the answer follows from look up, or change, what the task is about, and nothing else in its place.",
        ),
        (
            "operation",
            "The operation is the one that the task asks for, such as a count, a sum, the largest, a list, one field or a change, and the answer is its result.",
        ),
    ];
    all.map(|(name, about)| Criterion { name: name.into(), about: about.into(), weight: 1.0 }).to_vec()
}

/// How a criterion is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// The model writes scores of all criteria.
    Written,
    /// The model is asked whether each criterion is met. The score is the probability of yes.
    Probability,
}

/// The rubric judge.
pub struct Rubric {
    pub model: JudgeModel,
    pub scoring: Scoring,
    /// The prompt, a jinja template of `task` and `conversation`, and of `criteria` (name, about, weight) for written scores
    /// or one `criterion` for probabilities.
    pub prompt: String,
    pub criteria: Vec<Criterion>,
}

impl Rubric {
    /// Judges the episodes of one group, each alone. Returns scores in the group's order. An episode without a usable reply
    /// has none.
    ///
    /// # Errors
    /// If a request fails, or no episode has a score.
    pub async fn judge(
        &self,
        group: &[JudgedTrajectory<'_>],
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Scores> {
        let (distinct, which) = distinct(group, self.model.shown_bytes);
        let Some(first) = group.first() else { return Ok(Scores::default()) };
        // A probability is no draw, so asking again gives the same.
        let repeats = match self.scoring {
            Scoring::Written => self.model.repeats.max(1),
            Scoring::Probability => 1,
        };
        let empty = |repeat| Round { order: 0, repeat, places: Vec::new(), scores: Vec::new() };
        let mut rounds: Vec<Round> = (0..repeats).map(empty).collect();
        let mut judged: Vec<Option<Score>> = Vec::with_capacity(distinct.len());
        let mut unusable = None;
        for conversation in &distinct {
            let (mut score, mut totals) = (Score::default(), Vec::with_capacity(rounds.len()));
            for round in &rounds {
                let replied = match self.ask(&first.scenario.task, conversation, round.repeat, cache).await {
                    Ok(replied) => replied,
                    Err(failure) if failure.code() == "judge::reply" => {
                        unusable.get_or_insert(failure);
                        break;
                    }
                    Err(failure) => return Err(failure),
                };
                let (mut sum, mut weights) = (0.0, 0.0);
                for (criterion, (value, explanation)) in self.criteria.iter().zip(replied) {
                    sum += criterion.weight * value;
                    weights += criterion.weight;
                    *score.criteria.entry(criterion.name.clone()).or_default() += value / f64::from(repeats);
                    if let Some(text) = explanation.filter(|text| round.repeat == 0 && !text.is_empty()) {
                        let all = score.explanation.get_or_insert_default();
                        *all +=
                            &format!("{}{}: {text}", if all.is_empty() { "" } else { "\n" }, criterion.name);
                    }
                }
                totals.push(sum / weights);
                score.score += sum / weights / f64::from(repeats);
            }
            let is_whole = totals.len() == rounds.len();
            if is_whole {
                rounds.iter_mut().zip(totals).for_each(|(round, total)| round.scores.push(total));
            }
            judged.push(is_whole.then_some(score));
        }
        if let Some(failure) = unusable.filter(|_| judged.iter().all(Option::is_none)) {
            return Err(failure);
        }
        let scores = which.iter().map(|place| judged[*place].clone()).collect();
        Ok(Scores { scores, which, rounds })
    }

    /// Scores of one conversation, one for each criterion.
    async fn ask(
        &self,
        task: &str,
        conversation: &str,
        repeat: u32,
        cache: &impl ReplyCache,
    ) -> crate::error::Result<Vec<ReplyScore>> {
        let Self { scoring, prompt, criteria, .. } = self;
        let task = plain(task);
        if *scoring == Scoring::Written {
            let names: Vec<&str> = criteria.iter().map(|criterion| criterion.name.as_str()).collect();
            let tools = Serde(&self.model.tools);
            let variables = context! { task, tools, criteria => Serde(json!(criteria)), conversation };
            return self.model.ask(&render(prompt, variables)?, &names, repeat, cache).await;
        }
        let mut scores = Vec::with_capacity(criteria.len());
        for criterion in criteria {
            let tools = Serde(&self.model.tools);
            let variables =
                context! { task => &task, tools, criterion => Serde(json!(criterion)), conversation };
            let question = render(prompt, variables)?;
            let shared = question.rfind(CRITERION).unwrap_or(0);
            scores.push((self.model.probability(&question, shared, cache).await?, None));
        }
        Ok(scores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_are_texts_or_tables_and_mistakes_are_named() {
        let read = |value: Value| criteria(value.as_object().unwrap());
        let found = read(json!({"b": "is brief", "a": {"about": "is right", "weight": 3}})).unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.name.as_str(), found.weight)).collect();
        assert_eq!(found, [("b", 1.0), ("a", 3.0)]);
        let cases = [
            (json!({}), "there is no criterion"),
            (json!({"a": " "}), "`a` says nothing"),
            (json!({"a": 1}), "`a` should be a text, or a table of `about` and `weight`"),
            (
                json!({"a": {"about": "x", "wieght": 1}}),
                "`a` should be a text, or a table of `about` and `weight`",
            ),
            (json!({"a": {"about": "x", "weight": 0}}), "the weight of `a` should be above 0"),
        ];
        for (value, problem) in cases {
            assert_eq!(read(value.clone()).unwrap_err(), problem, "{value}");
        }
    }
}
