//! Ground truth: whether an episode has solved its task.
//!
//! The answer must be the expected one, or state it and no other (`answer/mod.rs`), and all [`Checks`] of the scenario must hold.

use std::borrow::Cow;

use regex::Regex;
use serde_json::{Map, Value};

use mcprl_base::answer::COMPLETE_TASK;

use super::{
    answer::{AnsweredTask, Number, listed, number, same, same_set, same_text},
    state,
};
use crate::{
    data::{
        CallChecks, CallError, CallPattern, Change, Checks, Json, Message, PairedCall, Scenario, TextCheck,
        Trajectory, paired_calls,
    },
    json,
};

/// What an episode left behind to decide by.
#[derive(Debug, Clone, Copy, Default)]
pub struct Evidence<'a> {
    pub answer: Option<&'a str>,
    pub messages: &'a [Message],
    /// As in [`Trajectory::state`].
    pub state: Option<&'a Json>,
}

impl<'a> From<&'a Trajectory> for Evidence<'a> {
    fn from(trajectory: &'a Trajectory) -> Self {
        let Trajectory { answer, messages, state, .. } = trajectory;
        Self { answer: answer.as_deref(), messages, state: state.as_ref() }
    }
}

/// Whether the scenario has ground truth.
pub fn is_known(scenario: &Scenario) -> bool {
    correct(scenario, Evidence::default()).is_some()
}

/// Whether the task is solved; `None` if the scenario has no ground truth. Checks that cannot be read do not hold.
pub fn correct(scenario: &Scenario, evidence: Evidence<'_>) -> Option<bool> {
    let Scenario { task, check, candidates, .. } = scenario;
    let candidates = candidates.as_deref().unwrap_or_default();
    let known = scenario.answer.as_deref().filter(|_| matches!(check.as_str(), "text" | "number" | "set"));
    let known = known.map(|expected| AnsweredTask { task, check, expected, candidates });
    let answered = known.map(|known| evidence.answer.is_some_and(|answer| known.is_answered_by(answer)));
    let Some(checks) = &scenario.checks else { return answered };
    let hold = match Checks::parse(&checks.0) {
        Ok(checks) if !checks.decides() => return answered,
        Ok(checks) => failed(&checks, evidence).is_empty(),
        Err(_) => false,
    };
    Some(hold && answered != Some(false))
}

/// What keeps an episode from being right, each as a clause.
pub fn unmet(scenario: &Scenario, evidence: Evidence<'_>) -> Vec<String> {
    let mut unmet = Vec::new();
    let only_answer = Scenario { checks: None, ..scenario.clone() };
    if correct(&only_answer, evidence) == Some(false) {
        unmet.push("the answer is not the expected one".to_owned());
    }
    match scenario.checks.as_ref().map(|checks| Checks::parse(&checks.0)) {
        None => {}
        Some(Err(_)) => unmet.push("its checks cannot be read".to_owned()),
        Some(Ok(checks)) => unmet.extend(failed(&checks, evidence)),
    }
    unmet
}

/// The checks that do not hold.
fn failed(checks: &Checks, evidence: Evidence<'_>) -> Vec<String> {
    let named = |check: &TextCheck| serde_json::to_string(check).unwrap_or_default();
    let with = |tool: &str, arguments: &Map<String, Value>| match arguments.is_empty() {
        true => format!("`{tool}`"),
        false => format!("`{tool}` {}", Value::Object(arguments.clone())),
    };
    let holds = |check: &TextCheck| evidence.answer.is_some_and(|answer| text_holds(check, answer));
    let of_answer = checks.answer.iter().filter(|check| !holds(check));
    let mut failed: Vec<String> =
        of_answer.map(|check| format!("the answer does not pass {}", named(check))).collect();
    if let Some(wanted) = &checks.calls {
        let made = calls_of(evidence.messages);
        let is_missing = |pattern: &&CallPattern| !made.iter().any(|call| matches(pattern, call));
        let missing: Vec<&CallPattern> = wanted.required.iter().filter(is_missing).collect();
        let text = |pattern: &&CallPattern| {
            format!("{} was not called with success", with(&pattern.tool, &pattern.arguments))
        };
        failed.extend(missing.iter().map(text));
        if missing.is_empty() && !are_made(wanted, &made) {
            failed.push("the calls are not in the wanted order".to_owned());
        }
        let forbidden = wanted.forbidden.iter().filter(|tool| made.iter().any(|call| call.tool() == **tool));
        failed.extend(forbidden.map(|tool| format!("`{tool}` was called, which is forbidden")));
        let most = wanted.at_most.filter(|most| made.len() > *most as usize);
        failed.extend(most.map(|most| format!("it made {} calls, more than {most}", made.len())));
    }
    let results = results(evidence);
    for (index, check) in checks.state.iter().enumerate().filter(|(_, check)| check.expect.decides()) {
        let result = results.get(index).and_then(Option::as_ref);
        if !result.is_some_and(|text| text_holds(&check.expect, text)) {
            let call = with(&check.tool, &check.arguments);
            failed.push(format!("afterwards, {call} does not give {}", named(&check.expect)));
        }
    }
    failed
}

/// Whether two answers count as one under this check, as a whole answer is compared with the expected one.
pub fn same_answer(check: &str) -> impl Fn(&str, &str) -> bool {
    move |one, other| same(check, one, other)
}

/// Whether a text is a number, and not a code of digits such as `007`, `+49` or `1.10`.
pub fn is_number(text: &str) -> bool {
    text.trim().parse::<f64>().is_ok() && Number::written_as_one(text).is_some()
}

/// What an episode changed. `None` if the scenario checks no state, or does not know how it was before.
pub fn changed(scenario: &Scenario, evidence: Evidence<'_>) -> Option<Change> {
    let checks = Checks::parse(&scenario.checks.as_ref()?.0).ok()?.state;
    let results = results(evidence);
    let mut all = Change::Nothing;
    for (index, check) in checks.iter().enumerate() {
        let wanted = check.expect.same.as_ref()?;
        let ignore = &check.expect.ignore;
        let Some(Some(found)) = results.get(index) else { return Some(Change::Other) };
        let before = check.before.as_ref().unwrap_or(wanted);
        if !state::is_same(before, ignore, found) {
            all = Change::Part;
            if !state::is_between(before, wanted, ignore, found) {
                return Some(Change::Other);
            }
        }
    }
    (!checks.is_empty()).then_some(all)
}

/// Whether two whole answers are one: as numbers, as texts, or as sets.
pub fn agree(one: &str, other: &str) -> bool {
    let check = if is_number(one) && is_number(other) { "number" } else { "text" };
    same(check, one, other) || listed(one).count() > 1 && same_set(one, other)
}

/// What each state check of its scenario found after an episode, as a structure; `None` for an error.
pub fn state_left(trajectory: &Trajectory) -> Vec<Option<Value>> {
    results(trajectory.into()).iter().map(|text| text.as_deref().map(state::structure)).collect()
}

/// The tools that were called, in their order.
pub(super) fn called_tools(messages: &[Message]) -> Vec<&str> {
    calls_of(messages).iter().map(PairedCall::tool).collect()
}

/// The tools whose calls the server answered without an error, in their order.
pub(super) fn successful_tools(messages: &[Message]) -> Vec<&str> {
    calls_of(messages).iter().filter(|call| has_succeeded(call)).map(PairedCall::tool).collect()
}

/// The results of the calls of state checks.
fn results(evidence: Evidence<'_>) -> Vec<Option<String>> {
    evidence.state.and_then(|json| serde_json::from_str(&json.0).ok()).unwrap_or_default()
}

/// Whether the text, or the part that the check names, is as expected.
pub fn text_holds(check: &TextCheck, text: &str) -> bool {
    let part = match &check.json {
        None => Cow::Borrowed(text),
        Some(pointer) => {
            let value = json::exact(text).ok();
            match value.as_ref().and_then(|value| value.pointer(pointer)) {
                Some(Value::String(text)) => Cow::Owned(text.clone()),
                Some(value) => Cow::Owned(value.to_string()),
                None => return false,
            }
        }
    };
    let is_near = |expected: f64| {
        number(&part).is_some_and(|found| match check.tolerance {
            Some(tolerance) => (found.value() - expected).abs() <= tolerance,
            None => Number::read(&expected.to_string()).is_some_and(|expected| found.is(expected)),
        })
    };
    check.equals.as_ref().is_none_or(|expected| same_text(expected, &part))
        && check.number.is_none_or(is_near)
        && check.set.as_ref().is_none_or(|items| same_set(&items.join(","), &part))
        && check.same.as_ref().is_none_or(|expected| state::is_same(expected, &check.ignore, &part))
        && check
            .matches
            .as_ref()
            .is_none_or(|pattern| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(&part)))
}

/// The calls of an episode in order, without those that could not be parsed.
fn calls_of(messages: &[Message]) -> Vec<PairedCall<'_>> {
    let mut calls = paired_calls(messages);
    calls.retain(|call| call.tool() != COMPLETE_TASK && call.error() != Some(CallError::Unparsable));
    calls
}

/// Whether the call has a result that is no error.
fn has_succeeded(call: &PairedCall<'_>) -> bool {
    call.result.is_some() && call.error().is_none()
}

/// Whether the required calls are there, in their order if that counts.
fn are_made(checks: &CallChecks, calls: &[PairedCall<'_>]) -> bool {
    let mut rest = calls.iter();
    checks.required.iter().all(|pattern| match checks.ordered {
        true => rest.any(|call| matches(pattern, call)),
        false => calls.iter().any(|call| matches(pattern, call)),
    })
}

fn matches(pattern: &CallPattern, call: &PairedCall<'_>) -> bool {
    let written = call.written();
    let contains = |(name, value): (&String, &Value)| written.and_then(|all| all.get(name)) == Some(value);
    has_succeeded(call) && call.tool() == pattern.tool && pattern.arguments.iter().all(contains)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scenario(check: &str, answer: Option<&str>) -> Scenario {
        Scenario { answer: answer.map(str::to_owned), check: check.into(), ..Scenario::default() }
    }

    #[test]
    fn what_keeps_an_episode_from_being_right_is_named() {
        let checks = json!({
            "calls": {"required": [{"tool": "close", "arguments": {"id": 7}}], "forbidden": ["drop"], "at_most": 1},
            "state": [{"tool": "get", "arguments": {"id": 7}, "expect": {"equals": "closed"}}],
        });
        let scenario = Scenario { checks: Some(Json(checks.to_string())), ..scenario("text", Some("7")) };
        let state = Json(json!(["open"]).to_string());
        let of = |answer| unmet(&scenario, Evidence { answer, messages: &[], state: Some(&state) });
        let checks = [
            r#"`close` {"id":7} was not called with success"#,
            r#"afterwards, `get` {"id":7} does not give {"equals":"closed"}"#,
        ];
        assert_eq!(of(Some("7")), checks);
        assert_eq!(of(Some("8"))[..2], ["the answer is not the expected one", checks[0]]);
    }

    #[test]
    fn answers_are_compared_by_meaning() {
        let cases = [
            ("text", "Ada Byron", "ada  byron.", true),
            ("text", "Ada Byron", "\"Ada Byron\"", true),
            ("text", "Ada Byron", "'Ada\nByron'.", true),
            ("text", "Ada Byron", "Ada Byron or Bob Stone", false),
            ("text", "Ada", "", false),
            ("text", "Zoë", "ZOË", true),
            ("text", "12", "12.0", false),
            ("number", "83", " 83 ", true),
            ("number", "83", "83.0", true),
            ("number", "83", "83.", true),
            ("number", "83", "$83", true),
            ("number", "83", "83 thousand", false),
            ("number", "83", "83 84", false),
            ("number", "-5", "−5", true),
            ("number", "5", "-5", false),
            ("number", "1234.5", "1,234.50", true),
            ("number", "1234567", "1 234 567", true),
            ("number", "1234", "1,23,4", false),
            ("number", "15", "1,5", false),
            ("number", "4155550123", "4155550127", false),
            ("number", "9780306406157", "9780306406158", false),
            ("text", "Zoë", "Zoe\u{308}", true),
            ("text", "01067", "1067", false),
            ("set", "1.9, 1.10", "1.9, 1.1", false),
            ("set", "01067, 01069", "1067, 1069", false),
            ("number", "0.3", "0.30000000000000004", true),
            ("number", "0.3", "0.31", false),
            ("number", "12", "12 %", true),
            ("number", "12", "nan", false),
            ("number", "12", "inf", false),
            ("number", "1e3", "1000", true),
            ("number", "none", "None", true),
            ("set", "Sales, Legal", "legal,sales", true),
            ("set", "Sales, Legal", "[\"Legal\", \"Sales\"]", true),
            ("set", "Sales, Legal", "Sales", false),
            ("set", "Sales, Legal", "Sales, Legal, Finance", false),
            ("set", "1, 2", "2.0; 1", true),
            ("set", "Sales", "Sales, Sales", true),
            ("set", "", "", true),
            ("set", "", "Sales", false),
        ];
        for (check, expected, answer, right) in cases {
            let scenario = scenario(check, Some(expected));
            let evidence = Evidence { answer: Some(answer), ..Evidence::default() };
            assert_eq!(correct(&scenario, evidence), Some(right), "{check}: {expected:?} and {answer:?}");
        }
    }

    #[test]
    fn votes_compare_whole_answers() {
        let scenario = Scenario { task: "How many orders are paid?".into(), ..scenario("number", Some("5")) };
        let sentence = "There are 5 orders that are paid.";
        let evidence = Evidence { answer: Some(sentence), ..Evidence::default() };
        assert_eq!(correct(&scenario, evidence), Some(true));
        assert!(!same_answer("number")(sentence, "5"));
    }

    #[test]
    fn a_missing_answer_is_wrong_if_the_truth_is_known() {
        assert_eq!(correct(&scenario("text", Some("x")), Evidence::default()), Some(false));
    }

    #[test]
    fn without_ground_truth_no_answer_is_right_or_wrong() {
        let evidence = Evidence { answer: Some("x"), ..Evidence::default() };
        for scenario in [scenario("none", None), scenario("none", Some("x")), scenario("text", None)] {
            assert_eq!(correct(&scenario, evidence), None);
        }
    }

    fn holds(checks: &str, evidence: Evidence<'_>) -> bool {
        Checks::parse(checks).unwrap();
        let scenario = Scenario { checks: Some(Json(checks.into())), ..scenario("none", None) };
        correct(&scenario, evidence).unwrap()
    }

    #[test]
    fn an_answer_is_checked_by_pattern_number_set_and_part() {
        let cases = [
            (r#"{"matches": "^INV-[0-9]+$"}"#, "INV-7", "7"),
            (r#"{"number": 20, "tolerance": 0.5}"#, "20.4", "20.6"),
            (r#"{"number": 20}"#, "20.0", "20.1"),
            (r#"{"set": ["a", "b"]}"#, "B, a", "a"),
            (
                r#"{"json": "/items/1/id", "equals": "x"}"#,
                r#"{"items": [{}, {"id": "X"}]}"#,
                r#"{"items": []}"#,
            ),
            (r#"{"json": "/n", "number": 3}"#, r#"{"n": 3.0}"#, r#"{"n": "many"}"#),
            (r#"{"json": "/n"}"#, r#"{"n": null}"#, "n"),
            (r#"{"equals": "yes", "matches": "^y"}"#, "yes", "Yes"),
        ];
        for (check, right, wrong) in cases {
            let checks = format!(r#"{{"answer": [{check}]}}"#);
            let of = |answer| holds(&checks, Evidence { answer, ..Evidence::default() });
            assert_eq!([of(Some(right)), of(Some(wrong)), of(None)], [true, false, false], "{check}");
        }
    }

    fn read(messages: &str) -> Vec<Message> {
        serde_json::from_str(messages).unwrap()
    }

    #[test]
    fn calls_are_checked_by_tool_arguments_order_and_number() {
        // find(7) fails, then find(8), then close(8).
        let messages = read(
            r#"[
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": {"id": 7}}}]},
            {"role": "tool", "tool_call_id": "a", "content": "error: none", "is_error": true},
            {"role": "assistant", "tool_calls": [
                {"id": "b", "function": {"name": "find", "arguments": {"id": 8, "deep": true}}},
                {"id": "c", "function": {"name": "close", "arguments": {"id": 8}}}]},
            {"role": "tool", "tool_call_id": "b", "content": "8"},
            {"role": "tool", "tool_call_id": "c", "content": "closed"},
            {"role": "assistant", "tool_calls": [{"id": "d", "function": {"name": "complete_task", "arguments": {}}}]}]"#,
        );
        let cases = [
            (r#"{"required": [{"tool": "find", "arguments": {"id": 8}}, {"tool": "close"}]}"#, true),
            (r#"{"required": [{"tool": "find", "arguments": {"id": 7}}]}"#, false),
            (r#"{"required": [{"tool": "close"}, {"tool": "find"}]}"#, true),
            (r#"{"required": [{"tool": "close"}, {"tool": "find"}], "ordered": true}"#, false),
            (r#"{"required": [{"tool": "find"}, {"tool": "close"}], "ordered": true}"#, true),
            (r#"{"forbidden": ["close"]}"#, false),
            (r#"{"forbidden": ["delete"]}"#, true),
            (r#"{"at_most": 3}"#, true),
            (r#"{"at_most": 2}"#, false),
        ];
        for (check, expected) in cases {
            let checks = format!(r#"{{"calls": {check}}}"#);
            let found = holds(&checks, Evidence { messages: &messages, ..Evidence::default() });
            assert_eq!(found, expected, "{check}");
        }
    }

    #[test]
    fn a_malformed_call_hides_no_other_call_of_its_turn() {
        let messages = read(
            r#"[
            {"role": "assistant", "content": "<tool_call>…", "tool_calls": [
                {"id": "b", "function": {"name": "delete", "arguments": {"id": 7}}}]},
            {"role": "tool", "tool_call_id": "a", "name": "", "content": "error: …", "is_error": true, "error": "unparsable"},
            {"role": "tool", "tool_call_id": "b", "name": "delete", "content": "deleted"}]"#,
        );
        for (check, expected) in [
            (r#"{"forbidden": ["delete"]}"#, false),
            (r#"{"at_most": 0}"#, false),
            (r#"{"at_most": 1}"#, true),
            (r#"{"required": [{"tool": "delete", "arguments": {"id": 7}}]}"#, true),
        ] {
            let checks = format!(r#"{{"calls": {check}}}"#);
            assert_eq!(
                holds(&checks, Evidence { messages: &messages, ..Evidence::default() }),
                expected,
                "{check}"
            );
        }
    }

    #[test]
    fn a_call_that_is_made_again_has_a_result_of_its_own() {
        let call = r#"{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": {}}}]}"#;
        let result =
            |is_error: bool| format!(r#"{{"role": "tool", "tool_call_id": "a", "is_error": {is_error}}}"#);
        let messages = read(&format!("[{call}, {}, {call}, {}]", result(true), result(false)));
        let required = r#"{"calls": {"required": [{"tool": "find"}]}}"#;
        assert!(holds(required, Evidence { messages: &messages, ..Evidence::default() }));
        let lost = read(&format!("[{call}, {}, {call}]", result(true)));
        assert!(!holds(required, Evidence { messages: &lost, ..Evidence::default() }));
    }

    #[test]
    fn the_state_after_the_episode_is_compared_check_by_check() {
        let checks = r#"{"state": [{"tool": "dump", "expect": {"equals": "a"}}, {"tool": "count", "expect": {"number": 2}}]}"#;
        let of =
            |state: &str| holds(checks, Evidence { state: Some(&Json(state.into())), ..Evidence::default() });
        assert!(of(r#"["a", "2"]"#));
        for state in [r#"["b", "2"]"#, r#"["a", "3"]"#, r#"["a", null]"#, r#"["a"]"#, "[]", ""] {
            assert!(!of(state), "{state}");
        }
    }

    #[test]
    fn a_failed_episode_changed_nothing_a_part_or_something_else() {
        let checks = r#"{"state": [
            {"tool": "list", "expect": {"same": [{"id": 1, "is": "shut"}, {"id": 2, "is": "shut"}], "ignore": ["at"]},
             "before": [{"id": 1, "is": "open"}, {"id": 2, "is": "open"}]},
            {"tool": "people", "expect": {"same": ["Ann"]}}]}"#;
        let scenario = Scenario { checks: Some(Json(checks.into())), ..scenario("none", None) };
        let list = |one: &str, two: &str| {
            format!(r#"[{{"id": 2, "is": "{two}", "at": 9}}, {{"id": 1, "is": "{one}"}}]"#)
        };
        for (states, solved, change) in [
            ([&list("shut", "shut"), "[\"Ann\"]"], true, Change::Part),
            ([&list("open", "open"), "[\"Ann\"]"], false, Change::Nothing),
            ([&list("shut", "open"), "[\"Ann\"]"], false, Change::Part),
            ([&list("lost", "open"), "[\"Ann\"]"], false, Change::Other),
            ([&list("open", "open"), "[\"Ben\"]"], false, Change::Other),
            (["[]", "[\"Ann\"]"], false, Change::Other),
        ] {
            let state = Json(serde_json::json!(states).to_string());
            let evidence = Evidence { state: Some(&state), ..Evidence::default() };
            assert_eq!(correct(&scenario, evidence), Some(solved), "{states:?}");
            assert_eq!(changed(&scenario, evidence), Some(change), "{states:?}");
        }
        assert_eq!(changed(&scenario, Evidence::default()), Some(Change::Other));
        let plain = Some(Json(r#"{"state": [{"tool": "list", "expect": {"equals": "x"}}]}"#.into()));
        let plain = Scenario { checks: plain, ..self::scenario("none", None) };
        assert_eq!(changed(&plain, Evidence::default()), None, "how it was before is not known");
    }

    #[test]
    fn both_the_answer_and_the_checks_must_hold() {
        let checks = Some(Json(r#"{"calls": {"at_most": 1}}"#.into()));
        let scenario = Scenario { checks, ..scenario("text", Some("x")) };
        let of = |answer| correct(&scenario, Evidence { answer: Some(answer), ..Evidence::default() });
        assert_eq!((of("x"), of("y")), (Some(true), Some(false)));
    }
}
