//! Conditions of success that a scenario can have besides its expected answer: on the answer, on the calls, and on the
//! server's state after the episode.
//!
//! ```json
//! {"answer": [{"matches": "^INV-[0-9]+$"}],
//!  "calls": {"required": [{"tool": "search"}], "forbidden": ["delete_ticket"], "at_most": 6},
//!  "state": [{"tool": "dump", "arguments": {}, "expect": {"json": "/tickets/7/status", "equals": "closed"}}]}
//! ```

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// All of these must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checks {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer: Vec<TextCheck>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallChecks>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<StateCheck>,
}

/// A comparison of a text, or of a part of it if it is JSON. All given comparisons must hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextCheck {
    /// JSON pointer (RFC 6901) of the part to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json: Option<String>,
    /// The text, ignoring case and spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<f64>,
    /// Largest difference from `number`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// The items of a comma-separated list, in any order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<String>>,
    /// A regular expression that matches somewhere in the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// JSON that says the same: names of fields in any order, items of lists in any order, `7.0` as `7`. A text that is no
    /// JSON is read as its lines, and a line `name: value` as a field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same: Option<Value>,
    /// Names of fields that `same` does not compare, wherever they stand, such as times.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignore: Vec<String>,
}

/// Conditions on the calls of an episode that the server answered without an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CallChecks {
    /// Calls that must be made; in this order if `ordered`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<CallPattern>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ordered: bool,
    /// Tools that must not be called, with or without success.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forbidden: Vec<String>,
    /// Most calls, failed ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u32>,
}

/// A call of this tool whose arguments contain these.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallPattern {
    pub tool: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
}

/// A call after the episode, on the episode's own session, and what its result must be. The agent neither sees the call
/// nor needs to know the tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateCheck {
    pub tool: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub arguments: Map<String, Value>,
    /// Without a condition, the result decides nothing: what attempts leave behind is compared between them (`consensus` of
    /// `judge`), where nobody knows what is right.
    pub expect: TextCheck,
    /// What the task changes, as it is before: compared like `same`. Absent if the result stays as it is. No condition of
    /// success: an exam says by it whether a failed episode changed nothing, or something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
}

/// What a failed episode did to the state that its scenario checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// All that is checked is as before.
    Nothing,
    /// Some of what is wanted, and nothing else; or all of it, with a wrong answer.
    Part,
    /// Something else is otherwise than before, or could not be read.
    Other,
}

impl Checks {
    /// Parses the column `checks` of a scenario.
    ///
    /// # Errors
    /// If it is not the JSON of checks, if there is no check, or if one can never hold; says which.
    pub fn parse(text: &str) -> Result<Self, String> {
        let checks: Self = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
        checks.problem().map_or(Ok(checks), Err)
    }

    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Whether there is a condition of success.
    pub fn decides(&self) -> bool {
        !self.answer.is_empty()
            || self.calls.is_some()
            || self.state.iter().any(|check| check.expect.decides())
    }

    fn problem(&self) -> Option<String> {
        if *self == Self::default() {
            return Some("there is no check; name `answer`, `calls` or `state`".into());
        }
        let texts = self.answer.iter().map(|check| ("answer".to_owned(), check));
        let states = self.state.iter().filter(|check| check.expect.decides());
        let states = states.map(|check| (format!("state, tool `{}`", check.tool), &check.expect));
        texts.chain(states).find_map(|(place, check)| Some(format!("{place}: {}", check.problem()?)))
    }
}

impl TextCheck {
    /// Whether it has a condition.
    pub fn decides(&self) -> bool {
        *self != Self { ignore: self.ignore.clone(), ..Self::default() }
    }

    fn problem(&self) -> Option<String> {
        let Self { json, equals, number, tolerance, set, matches, same, ignore } = self;
        if json.as_ref().is_some_and(|pointer| !pointer.is_empty() && !pointer.starts_with('/')) {
            return Some("`json` should be a JSON pointer, such as \"/items/0/id\"".into());
        }
        if tolerance.is_some_and(|tolerance| number.is_none() || !tolerance.is_finite() || tolerance < 0.0) {
            return Some("`tolerance` should be 0 or more, beside a `number`".into());
        }
        if let Some(Err(cause)) = matches.as_deref().map(Regex::new) {
            return Some(format!("`matches` is not a regular expression: {cause}"));
        }
        if same.is_none() && !ignore.is_empty() {
            return Some("`ignore` should stand beside `same`: it names fields that are not compared".into());
        }
        let compares = equals.is_some() || number.is_some() || set.is_some() || matches.is_some();
        (!compares && same.is_none() && json.is_none())
            .then(|| "name `equals`, `number`, `set`, `same`, `matches` or `json`".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_read_and_written_as_they_are() {
        let text = r#"{"answer":[{"json":"/id","number":7.0,"tolerance":0.5},{"matches":"^a"}],"calls":{"required":[{"tool":"find","arguments":{"id":7}}],"ordered":true,"forbidden":["drop"],"at_most":3},"state":[{"tool":"dump","expect":{"equals":"x"}}]}"#;
        assert_eq!(Checks::parse(text).unwrap().to_json(), text);
    }

    #[test]
    fn checks_that_say_nothing_or_cannot_hold_are_refused() {
        let cases = [
            ("{}", "there is no check"),
            ("7", "invalid type"),
            (r#"{"anwser": []}"#, "unknown field `anwser`"),
            (r#"{"answer": [{}]}"#, "answer: name `equals`"),
            (r#"{"answer": [{"matches": "("}]}"#, "not a regular expression"),
            (r#"{"answer": [{"equals": "7", "tolerance": 1}]}"#, "beside a `number`"),
            (r#"{"answer": [{"equals": "7", "ignore": ["at"]}]}"#, "beside `same`"),
            (r#"{"answer": [{"number": 7, "tolerance": -1}]}"#, "0 or more"),
            (r#"{"state": [{"tool": "dump", "expect": {"json": "id"}}]}"#, "state, tool `dump`: `json`"),
            (r#"{"state": [{"expect": {"equals": ""}}]}"#, "missing field `tool`"),
        ];
        for (text, problem) in cases {
            let found = Checks::parse(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
