//! A task before it is admitted: its text, the calls that answer it, and how the answer is read and compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer_rule::{ANSWER_BYTES, AnswerRule};
use crate::{
    chat::ToolCall,
    data::{Checks, Json, Scenario, Working},
    hash::Encoder,
    mcp::Outcome,
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidate {
    pub family: String,
    /// The values that the task is about, by name.
    pub entity: BTreeMap<String, String>,
    pub task: String,
    /// Which wording it is, for splits.
    pub phrasing: String,
    pub calls: Vec<ToolCall>,
    pub rule: AnswerRule,
    pub check: Check,
    /// The answer is a text, though it may look like a number.
    pub is_text: bool,
    pub checks: Option<Checks>,
    /// Values that results have where the answer stands; the answer may be one of them.
    pub alternatives: BTreeSet<String>,
    /// The calls fail on the way, on purpose.
    pub may_fail: bool,
    /// What the solution writes before its answer.
    pub working: Option<String>,
    /// What the solution says at the end of a change, which has no answer that is compared.
    pub closing: Option<String>,
    /// What its calls and those of its checks of the state gave, if they were executed already.
    pub executed: Vec<Outcome>,
    /// What the task asks, for a program that checks the answer (docs/guides/scenarios.md).
    pub asks: Option<Value>,
}

/// How an answer is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Check {
    /// As text, ignoring case and spaces.
    Text,
    /// As a number.
    Number,
    /// As a comma-separated list in any order.
    Set,
    /// There is no answer; `checks` decide. A families file cannot say so.
    #[default]
    #[serde(skip)]
    None,
}

impl Check {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// As a number if it is written like one: `007` and `1E5` are not.
    pub fn of(answer: &str) -> Self {
        let answer = answer.trim();
        let digits = answer.trim_start_matches('-');
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            && (!digits.starts_with('0') || digits.len() == 1 || digits.starts_with("0."));
        if is_plain && answer.parse::<f64>().is_ok_and(f64::is_finite) { Self::Number } else { Self::Text }
    }
}

pub use crate::data::NONE;

/// What an answer says if something cannot be done.
pub const CANNOT: &str = r"(?i)(\b(cannot|can not|could not|unable|impossible|not (possible|available|supported|able|found|allowed|permitted)|no such|no tool|there (is|are) no|do(es)? not (have|exist)|did not|already|unknown)\b|n['’]t\b)";
/// What an answer says if nothing was to be done.
pub const UNCHANGED: &str = r"(?i)(\b(not|no|nothing|already|unchanged|unnecessary)\b|n['’]t\b)";

/// Most candidates of a scenario.
pub const CANDIDATES: usize = 200;

impl Candidate {
    /// The scenario with its answer, not in any split yet.
    pub fn scenario(&self, answer: Option<String>) -> Scenario {
        let checks = self.checks.as_ref().map(|checks| Json(checks.to_json()));
        let check = match (self.check, &answer) {
            (Check::Text, Some(answer)) if !self.is_text => Check::of(answer),
            (check, _) => check,
        };
        Scenario {
            id: self.id(answer.as_deref()),
            candidates: answer.as_deref().and_then(|answer| candidates(check, answer, &self.alternatives)),
            split: String::new(),
            family: self.family.clone(),
            task: self.task.clone(),
            answer: answer.or_else(|| self.closing.clone()),
            check: check.name().to_owned(),
            entity: (!self.entity.is_empty()).then(|| entity_json(&self.entity)),
            reference: Some(calls_json(&self.calls)),
            checks,
            server: None,
            working: self.working.clone().map(Working),
            asks: self.asks.as_ref().map(|asks| Json(asks.to_string())),
            reads: self.rule.column(),
            ..Scenario::default()
        }
    }

    pub fn id(&self, answer: Option<&str>) -> String {
        let checks = self.checks.as_ref().map(Checks::to_json);
        scenario_id(&self.family, &self.task, answer, checks.as_deref())
    }
}

/// The column `candidates` of a scenario: `None` if no other value is known. For numbers any other number is one.
fn candidates(check: Check, answer: &str, alternatives: &BTreeSet<String>) -> Option<Vec<String>> {
    let items = |text: &str| -> BTreeSet<String> {
        let split = text.split(", ").map(str::to_owned);
        if check == Check::Set { split.collect() } else { BTreeSet::from([text.to_owned()]) }
    };
    let own = items(answer);
    if check == Check::None {
        return None;
    }
    if check != Check::Text && own.iter().all(|item| Check::of(item) == Check::Number) {
        return Some(Vec::new());
    }
    let is_short =
        |value: &String| !value.trim().is_empty() && value.len() <= ANSWER_BYTES && !value.contains('\n');
    let others: BTreeSet<String> =
        alternatives.iter().flat_map(|text| items(text)).filter(is_short).collect();
    let others: Vec<String> = others.difference(&own).cloned().collect();
    // A sample of all if they are too many.
    let count = others.len().min(CANDIDATES);
    let sample = (0..count).map(|place| others[place * others.len() / count].clone());
    Some(sample.collect()).filter(|sample: &Vec<String>| !sample.is_empty())
}

/// The id of a scenario. `checks`: in JSON.
pub fn scenario_id(family: &str, task: &str, answer: Option<&str>, checks: Option<&str>) -> String {
    let mut encoder = Encoder::new("mcprl scenario v1");
    encoder.text(family).text(task).text(answer.unwrap_or_default());
    if let Some(checks) = checks {
        encoder.text(checks);
    }
    encoder.finish().to_string()
}

/// The column `entity` of a scenario.
pub fn entity_json(entity: &BTreeMap<String, String>) -> String {
    json!(entity).to_string()
}

/// The column `reference` of a scenario.
pub fn calls_json(calls: &[ToolCall]) -> String {
    json!(calls).to_string()
}

/// The calls in the column `reference` of a scenario.
pub fn reference_calls(scenario: &Scenario) -> Vec<ToolCall> {
    let calls = scenario.reference.as_deref().and_then(|calls| serde_json::from_str(calls).ok());
    calls.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_knows_the_other_values_that_its_answer_could_have_been() {
        let known: BTreeSet<String> =
            ["a, b", "b", "c", "", "d\ne", &"x".repeat(81)].map(str::to_owned).into();
        let listed = |values: &[&str]| Some(values.iter().map(|value| (*value).to_owned()).collect());
        assert_eq!(candidates(Check::Text, "b", &known), listed(&["a, b", "c"]));
        assert_eq!(candidates(Check::Set, "b, e", &known), listed(&["a", "c"]));
        assert_eq!(candidates(Check::Set, "1, 2", &known), listed(&[]));
        assert_eq!(candidates(Check::Number, "1", &known), listed(&[]));
        assert_eq!(candidates(Check::Text, "b", &["b".to_owned()].into()), None);
        assert_eq!(candidates(Check::None, "-", &known), None);
        let many: BTreeSet<String> = (0..1000).map(|number| format!("{number:03}")).collect();
        let sample = candidates(Check::Text, "x", &many).unwrap();
        assert_eq!((sample.len(), &*sample[0], &*sample[199]), (CANDIDATES, "000", "995"));
    }
}
