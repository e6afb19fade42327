//! Why an episode has a wrong answer, by rules on its calls and results.

use serde_json::Value;

use super::difference::{difference, unconditional};
use crate::{
    answer::COMPLETE_TASK,
    chat::ToolCall,
    data::{CallError, EpisodeRow, Message, MessageCall, Scenario, first_of_user, paired_calls},
    report::escape::shortened,
};

/// Why a failed task failed, by the first rule that applies.
pub const CAUSES: [(&str, &str); 12] = [
    ("server", "a call took too long, or the server was lost"),
    ("gave up", "the episode ended without an answer: no call, or a limit was reached"),
    (
        "unknown name",
        "the last call before the answer failed, because it names something that does not exist",
    ),
    ("after an error", "the last call before the answer failed otherwise"),
    ("after an empty result", "the last call before the answer found nothing"),
    (
        "misread result",
        "the expected answer was in a result, or the reference's call was made, and another answer was given",
    ),
    ("tool choice", "a tool of the reference solution was never called"),
    ("filter", "a condition of the reference solution, or a name or number of the task, is in no call"),
    ("argument", "a call of the reference solution was made with other arguments only"),
    ("other question", "the answer is what the last call returned, so that call asked for something else"),
    ("not in a result", "the answer is in no result"),
    ("other", "no rule applies"),
];

/// The cause of a failure, and what is known beyond it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// A name of [`CAUSES`].
    pub cause: &'static str,
    /// What the call named, what it lacked, or what the error said.
    pub detail: Option<String>,
    /// The tool of that call.
    pub tool: Option<String>,
    /// The error of the last call, where the server did not mark it as one.
    pub unmarked_error: Option<String>,
}

/// A call and what came back.
struct AnsweredCall<'m> {
    call: &'m MessageCall,
    result: &'m str,
    error: Option<CallError>,
}

impl AnsweredCall<'_> {
    fn is_error(&self) -> bool {
        self.error.is_some() || is_error_text(self.result)
    }
}

/// Calls of tools with a result. Without those that could not be parsed, and the one that gives the answer.
fn made(messages: &[Message]) -> Vec<AnsweredCall<'_>> {
    let made = paired_calls(messages).into_iter().filter_map(|paired| {
        Some(AnsweredCall { call: paired.call?, result: &paired.result?.text, error: paired.error() })
    });
    made.filter(|made| made.call.name != COMPLETE_TASK).collect()
}

/// The first rule that applies to a wrong episode.
pub fn cause(row: &EpisodeRow, scenario: Option<&Scenario>) -> Diagnosis {
    let only = |cause| Diagnosis { cause, ..Diagnosis::default() };
    if row.end == "server_down" {
        return only("server");
    }
    let Some(answer) = row.answer.as_deref() else {
        return Diagnosis { detail: Some(row.end.replace('_', " ")), ..only("gave up") };
    };
    let made = made(&row.messages);
    let last = made.last();
    if let Some(last) = last {
        let found = Diagnosis { tool: Some(last.call.name.clone()), ..Diagnosis::default() };
        if last.is_error() {
            let unmarked_error = last.error.is_none().then(|| message(last.result));
            let found = Diagnosis { unmarked_error, ..found };
            return match unknown_name(last) {
                Some(name) => Diagnosis { cause: "unknown name", detail: Some(format!("`{name}`")), ..found },
                None => Diagnosis { cause: "after an error", detail: Some(message(last.result)), ..found },
            };
        }
        if is_empty(last.result) {
            return Diagnosis { cause: "after an empty result", ..found };
        }
    }
    let expected = scenario.and_then(|scenario| scenario.answer.as_deref());
    let has_expected =
        |made: &AnsweredCall<'_>| expected.is_some_and(|expected| holds(made.result, expected));
    if last.is_some_and(has_expected) {
        return only("misread result");
    }
    let reference: Vec<ToolCall> = scenario
        .and_then(|scenario| serde_json::from_str(scenario.reference.as_deref()?).ok())
        .unwrap_or_default();
    if !reference.is_empty() {
        return against(&reference, &made);
    }
    let task = first_of_user(&row.messages).unwrap_or_default();
    let spoken: String = made.iter().map(|made| made.call.arguments_json().to_lowercase()).collect();
    if !made.is_empty() && values(task).iter().any(|value| !is_used(value, &spoken)) {
        return only("filter");
    }
    match last {
        Some(last) if holds(last.result, answer) => {
            let detail = unconditional(&last.call.arguments);
            Diagnosis { tool: Some(last.call.name.clone()), detail, ..only("other question") }
        }
        _ if made.iter().any(has_expected) => only("misread result"),
        _ if made.iter().all(|made| !holds(made.result, answer)) => only("not in a result"),
        _ => only("other"),
    }
}

/// Compares the calls with those of the reference solution, the last of which gives the answer.
fn against(reference: &[ToolCall], made: &[AnsweredCall<'_>]) -> Diagnosis {
    if let Some(missing) =
        reference.iter().find(|wanted| made.iter().all(|made| made.call.name != wanted.name))
    {
        let detail = Some(format!("`{}`", missing.name));
        return Diagnosis {
            cause: "tool choice",
            detail,
            tool: Some(missing.name.clone()),
            ..Diagnosis::default()
        };
    }
    let is_made = |wanted: &&ToolCall| {
        made.iter().any(|made| {
            made.call.name == wanted.name
                && !made.is_error()
                && difference(&wanted.arguments, &made.call.arguments).is_none()
        })
    };
    let Some(wanted) = reference.iter().rev().find(|wanted| !is_made(wanted)) else {
        return Diagnosis { cause: "misread result", ..Diagnosis::default() };
    };
    let of_tool = |made: &&AnsweredCall<'_>| made.call.name == wanted.name;
    let nearest = made.iter().rev().filter(of_tool).find(|made| !made.is_error());
    let nearest = nearest.or_else(|| made.iter().rev().find(of_tool));
    let found = nearest.and_then(|nearest| difference(&wanted.arguments, &nearest.call.arguments));
    Diagnosis {
        cause: if found.as_ref().is_some_and(|found| found.is_filter) { "filter" } else { "argument" },
        detail: found.map(|found| found.text),
        tool: Some(wanted.name.clone()),
        ..Diagnosis::default()
    }
}

fn first_line(text: &str) -> &str {
    text.trim().lines().next().unwrap_or_default()
}

fn message(text: &str) -> String {
    shortened(first_line(text), 160).into_owned()
}

/// Whether a result that is not marked as an error is one: it begins with such a word and a colon, or is an object with a
/// field `error`.
fn is_error_text(text: &str) -> bool {
    if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) {
        return fields.get("error").is_some_and(|error| !matches!(error, Value::Null | Value::Bool(false)));
    }
    let line = first_line(text).to_lowercase();
    let Some((head, _)) = line.split_once(':') else { return false };
    let words: Vec<&str> = head.split_whitespace().collect();
    let is_sign = |word: &&str| ["error", "exception", "traceback"].iter().any(|sign| word.ends_with(sign));
    head.starts_with("traceback") || (words.len() <= 4 && words.last().is_some_and(is_sign))
}

/// Signs that an error is about something that does not exist.
const UNKNOWN: [&str; 12] = [
    "no such",
    "not found",
    "unknown",
    "not exist",
    "doesn't exist",
    "no tool named",
    "undefined",
    "unrecognized",
    "keyerror",
    "invalid",
    "not one of",
    "not a valid",
];

/// What a failed call names that does not exist: the last word of the error that is in the call.
fn unknown_name(made: &AnsweredCall<'_>) -> Option<String> {
    if made.error == Some(CallError::UnknownTool) {
        return Some(made.call.name.clone());
    }
    let line = first_line(made.result);
    let lower = line.to_lowercase();
    let sign = UNKNOWN.iter().find(|sign| lower.contains(**sign))?;
    let words = |text: &str| -> Vec<String> {
        let is_part =
            |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '.' | '-' | '@' | '#');
        let words = text.split(|letter| !is_part(letter)).map(|word| word.trim_matches('.').to_owned());
        words.filter(|word| !word.is_empty()).collect()
    };
    let given = words(&made.call.arguments_json());
    words(line).into_iter().rev().find(|word| given.contains(word) && !sign.contains(&word.to_lowercase()))
}

/// Whether a result says that there is nothing.
fn is_empty(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    let bare = text.trim_matches(|letter: char| "[]{}()\"' ".contains(letter));
    let value = match bare.split_once(':') {
        Some((_, value)) if !value.contains([':', ',']) => value.trim(),
        _ => bare,
    };
    let says_so = text.len() <= 80
        && text.starts_with("no ")
        && ["found", "result", "match", "row", "record", "entr", "data"]
            .iter()
            .any(|word| text.contains(word));
    ["", "none", "null"].contains(&value) || says_so
}

/// Whether a result contains an answer: every item of it as a word or number of its own.
fn holds(result: &str, answer: &str) -> bool {
    let result = result.to_lowercase();
    let is_there = |item: &str| {
        result.match_indices(item).any(|(at, _)| {
            let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
            !is_word(result[..at].chars().next_back()) && !is_word(result[at + item.len()..].chars().next())
        })
    };
    let items: Vec<String> =
        answer.split(", ").map(|item| item.trim().to_lowercase()).filter(|item| !item.is_empty()).collect();
    !items.is_empty() && items.iter().all(|item| is_there(item))
}

/// What a task names: quoted texts, numbers, and names of several words.
fn values(task: &str) -> Vec<String> {
    let mut found: Vec<String> = task.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    let mut name: Vec<&str> = Vec::new();
    let mut close = |name: &mut Vec<&str>| {
        if name.len() > 1 {
            found.push(name.join(" "));
        }
        name.clear();
    };
    let mut numbers = Vec::new();
    // The first word of a sentence is no name for its capital letter.
    let mut is_first = true;
    for word in task.split_whitespace() {
        let bare = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let bare = bare.strip_suffix("'s").unwrap_or(bare);
        if !bare.is_empty() && bare.chars().all(|letter| letter.is_ascii_digit() || letter == '.') {
            numbers.push(bare.to_owned());
        }
        if bare.starts_with(char::is_uppercase) && !is_first {
            name.push(bare);
        } else {
            close(&mut name);
        }
        if word.ends_with(|letter: char| !letter.is_alphanumeric()) {
            close(&mut name);
        }
        is_first = word.ends_with(['.', '?', '!', ':']);
    }
    close(&mut name);
    found.extend(numbers);
    found
}

/// Whether a value of the task is in the calls: one of its words, in singular or plural.
fn is_used(value: &str, calls: &str) -> bool {
    value.split_whitespace().any(|word| {
        let word = word.to_lowercase();
        match word.parse::<f64>() {
            Ok(_) => {
                calls.split(|letter: char| !letter.is_alphanumeric() && letter != '.').any(|one| one == word)
            }
            Err(_) => calls.contains(word.strip_suffix('s').filter(|stem| stem.len() > 2).unwrap_or(&word)),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The cause of an episode with these calls: tool, arguments and result. The last result may be marked as an error.
    fn found(task: &str, calls: &[(&str, Value, &str)], answer: &str, scenario: &Scenario) -> Diagnosis {
        let mut messages = vec![json!({"role": "user", "content": task})];
        for (index, (tool, arguments, result)) in calls.iter().enumerate() {
            let id = index.to_string();
            let call =
                json!({"id": id, "type": "function", "function": {"name": tool, "arguments": arguments}});
            messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "name": tool, "content": result}));
        }
        let row = EpisodeRow {
            messages: serde_json::from_value(json!(messages)).unwrap(),
            answer: Some(answer.into()),
            end: "completed".into(),
            correct: Some(false),
            ..EpisodeRow::default()
        };
        cause(&row, Some(scenario))
    }

    fn scenario(answer: &str, reference: Option<Value>) -> Scenario {
        Scenario {
            answer: Some(answer.into()),
            reference: reference.map(|calls| calls.to_string()),
            ..Scenario::default()
        }
    }

    #[test]
    fn the_first_rule_that_applies_gives_the_cause() {
        let query = |sql: &str, result: &'static str| ("query", json!({"sql": sql}), result);
        let counts = json!([{"name": "query", "arguments": {"sql": "SELECT COUNT(*) FROM orders WHERE status = 'open'"}}]);
        let known = scenario("17", Some(counts));
        let asked = scenario("17", None);
        let all = "SELECT COUNT(*) FROM orders";
        for (task, call, answer, scenario, cause, detail) in [
            (
                "Open?",
                query("SELECT state FROM orders", "Database error: no such column: state"),
                "state",
                &known,
                "unknown name",
                Some("`state`"),
            ),
            (
                "Open?",
                query("SELECT x", "{\"error\": \"Unknown table x\"}"),
                "3",
                &known,
                "unknown name",
                Some("`x`"),
            ),
            (
                "Open?",
                query("SELEC", "Error: only SELECT is allowed"),
                "3",
                &known,
                "after an error",
                Some("Error: only SELECT is allowed"),
            ),
            ("Open?", query(all, "[]"), "0", &known, "after an empty result", None),
            ("Open?", query(all, "[{'SUM(n)': None}]"), "0", &known, "after an empty result", None),
            ("Open?", query(all, "No rows found."), "0", &known, "after an empty result", None),
            ("Open?", query(all, "[{'n': 17, 'm': 4}]"), "4", &known, "misread result", None),
            ("Open?", ("list", json!({}), "17a"), "4", &known, "tool choice", Some("`query`")),
            ("Open?", query(all, "[{'n': 60}]"), "60", &known, "filter", Some("`sql` has no WHERE")),
            (
                "Open?",
                query("SELECT SUM(n) FROM orders WHERE status = 'open'", "[{'n': 60}]"),
                "60",
                &known,
                "argument",
                Some("`sql` has no COUNT"),
            ),
            (
                "Open?",
                query("SELECT COUNT(*) FROM orders WHERE status = 'open'", "[{'n': '1-7'}]"),
                "60",
                &known,
                "misread result",
                None,
            ),
            ("How many orders has Tom Hughes?", query(all, "[{'n': 60}]"), "60", &asked, "filter", None),
            ("How many are in order 33?", query(all, "[{'n': 60}]"), "60", &asked, "filter", None),
            (
                "How many are open?",
                query(all, "[{'n': 60}]"),
                "60",
                &asked,
                "other question",
                Some("`sql` has no WHERE"),
            ),
            ("How many are open?", query(all, "[{'n': 60}]"), "61", &asked, "not in a result", None),
        ] {
            let found = found(task, &[call], answer, scenario);
            assert_eq!((found.cause, found.detail.as_deref()), (cause, detail), "{task} {answer}");
        }
        let earlier = [query("SELECT a", "17, 5"), query("SELECT b", "60")];
        assert_eq!(found("How many?", &earlier, "5", &asked).cause, "misread result");
        let reference_first =
            [query("SELECT COUNT(*) FROM orders WHERE status = 'open'", "1-7"), query(all, "60")];
        assert_eq!(found("How many?", &reference_first, "60", &known).cause, "misread result");
    }

    #[test]
    fn an_error_that_the_server_does_not_mark_is_known_by_its_beginning() {
        for (text, expected) in [
            ("Database error: no such table: x", true),
            ("ValueError: bad", true),
            ("Traceback (most recent call last):\n x", true),
            ("{\"error\": \"bad\", \"code\": 3}", true),
            ("{\"error\": null, \"rows\": []}", false),
            ("[{'error': 3}]", false),
            ("The error rate is: 3", false),
            ("No errors", false),
            ("", false),
        ] {
            assert_eq!(is_error_text(text), expected, "{text}");
        }
        let call = ("query", json!({"sql": "SELECT a"}), "Database error: no such column: a");
        let one = found("t", &[call], "a", &scenario("1", None));
        assert_eq!(one.unmarked_error.as_deref(), Some("Database error: no such column: a"));
    }

    #[test]
    fn a_task_names_quoted_texts_numbers_and_names_of_several_words() {
        for (task, expected) in [
            ("How many orders has Tom Hughes placed?", &["Tom Hughes"][..]),
            ("Is the \"wall clock\" in stock?", &["wall clock"]),
            ("Who placed order 21? Ask Mei Tanaka's friend.", &["Mei Tanaka", "21"]),
            ("How many customers live in Oslo?", &[]),
            ("", &[]),
        ] {
            assert_eq!(values(task), expected, "{task}");
        }
        assert!(is_used("Garden Hoses", "name = 'garden hose'") && is_used("21", "id = 21"));
        assert!(!is_used("21", "id = 210") && !is_used("Tom Hughes", "select count(*) from orders"));
    }
}
