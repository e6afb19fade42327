//! The result of a tool call, as text for a model.
//!
//! Servers differ in what they send; every answer becomes an [`Outcome`]. The model sees the texts. If there are none, it
//! sees the structured result, with a description of what else there is.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    json,
    message::UNREADABLE,
    quirks::ErrorPatterns,
    untrusted::{Untrusted, truncate_middle},
};

/// The result of a tool call. A failed call is an outcome that the model sees, not an error.
///
/// `is_error` is set by the server, or by the run file's `error_patterns`. Servers without either report errors that look like
/// results: [`Outcome::is_failure`] knows them by their words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The result as text for the model.
    pub text: String,
    pub is_error: bool,
}

impl Outcome {
    /// Whether the call failed, as far as its result says.
    pub fn is_failure(&self) -> bool {
        self.is_error || looks_failed(&self.text)
    }
}

/// Whether a text is what servers give for failures without marking them: an error in the first line, in front of a colon or behind
/// one.
pub fn looks_failed(text: &str) -> bool {
    let line = text.trim_start().lines().next().unwrap_or_default();
    let words = |part: &str| -> Vec<String> {
        let words = part.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let is_failure =
        |word: &String| ["error", "exception", "traceback", "failed", "invalid"].contains(&word.as_str());
    let mut parts = line.split(':').map(words);
    let head = parts.next().unwrap_or_default();
    let begins_so = |next: Vec<String>| next.first().is_some_and(is_failure);
    head.len() <= 4 && (head.iter().any(is_failure) || parts.next().is_some_and(begins_so))
}

/// What a server answered to a call, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WholeResult {
    pub(super) text: String,
    /// Whether the server says so.
    pub(super) is_error: bool,
}

impl WholeResult {
    /// The text of an error.
    pub(super) fn failed(text: String) -> Self {
        Self { text, is_error: true }
    }

    /// A text of mcprl's own making.
    pub(super) fn of_text(text: String) -> Self {
        Self { text, is_error: false }
    }

    /// Reads a result of any shape.
    pub(super) fn from_result(result: Untrusted<Value>) -> Self {
        let (text, is_error) = result.written(of_result);
        Self { text, is_error }
    }

    /// Reads what `prompts/get` answers: its messages, each with its role.
    pub(super) fn from_prompt(result: Untrusted<Value>) -> Self {
        let (text, is_error) = result.written(of_prompt);
        Self { text, is_error }
    }

    /// The text is cut to `limit` bytes. One that matches a pattern is an error.
    pub(super) fn outcome(self, limit: usize, errors: &ErrorPatterns) -> Outcome {
        let is_error = self.is_error || errors.matches(&self.text);
        Outcome { text: truncate_middle(self.text, limit), is_error }
    }
}

/// The text of a result, and whether the server says that it is an error.
pub(super) fn of_result(result: &Value) -> (String, bool) {
    if let Some(reason) = result.get(UNREADABLE).and_then(Value::as_str) {
        return (format!("the server's answer cannot be read: {reason}"), true);
    }
    match result.get("resultType").and_then(Value::as_str) {
        None | Some("complete") => (text_of(result), is_error(result)),
        Some("input_required") => ("the server asked for input, which is not given here".into(), true),
        Some(other) => (format!("the server answered with `{other}` instead of a result"), true),
    }
}

fn of_prompt(result: &Value) -> (String, bool) {
    let Some(Value::Array(messages)) = result.get("messages") else { return of_result(result) };
    let message = |message: &Value| {
        let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
        let content = match message.get("content") {
            Some(Value::Array(blocks)) => blocks.iter().map(block_text).collect::<Vec<_>>().join("\n"),
            Some(block) => block_text(block),
            None => String::new(),
        };
        format!("{role}: {content}")
    };
    (messages.iter().map(message).collect::<Vec<_>>().join("\n\n"), false)
}

/// Whether the server says that a result is an error.
pub(super) fn is_error(result: &Value) -> bool {
    match result.get("isError") {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

/// Members of a result that are not the tool's answer.
const ENVELOPE: [&str; 3] = ["isError", "resultType", "_meta"];

fn text_of(result: &Value) -> String {
    let Value::Object(members) = result else { return plain(result) };
    let in_list = |value: &Value, text: fn(&Value) -> String| match value {
        Value::Array(items) => items.iter().map(text).collect(),
        Value::Null => Vec::new(),
        other => vec![text(other)],
    };
    let blocks = match (members.get("content"), members.get("contents")) {
        (Some(content), _) => in_list(content, block_text),
        // A resource in place of a tool's result.
        (None, Some(contents)) => in_list(contents, embedded_text),
        (None, None) => Vec::new(),
    };
    let has_text = match members.get("content") {
        Some(Value::Array(blocks)) => blocks.iter().any(is_text),
        _ => true,
    };
    let text = blocks.join("\n");
    let rest = match members.get("structuredContent") {
        Some(structured) if (text.is_empty() || !has_text) && !structured.is_null() => {
            json::written(structured)
        }
        // A server that sends its answer without the envelope.
        None if !members.contains_key("content") && !members.contains_key("contents") => {
            let mut answer = members.clone();
            answer.retain(|name, _| !ENVELOPE.contains(&name.as_str()));
            if answer.is_empty() { String::new() } else { json::written(&Value::Object(answer)) }
        }
        _ => String::new(),
    };
    if text.is_empty() || rest.is_empty() { text + &rest } else { format!("{text}\n{rest}") }
}

/// Whether a model reads the block itself instead of a description.
fn is_text(block: &Value) -> bool {
    match block.get("type").and_then(Value::as_str) {
        Some("image" | "audio" | "resource_link") => false,
        Some("resource") => block.get("resource").is_some_and(|resource| resource.get("text").is_some()),
        Some("text") => block.get("text").is_some_and(|text| text != ""),
        _ => block.is_string() || block.get("text").is_some(),
    }
}

/// A text as it is, null as nothing, and other values as JSON.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => json::written(other),
    }
}

/// A text unchanged. Anything else is described in brackets and never fetched.
fn block_text(block: &Value) -> String {
    if let Value::String(text) = block {
        return text.clone();
    }
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    match field("type").unwrap_or("unknown") {
        "text" => block.get("text").map(plain).unwrap_or_default(),
        kind @ ("image" | "audio") => {
            let bytes = base64_bytes(field("data").unwrap_or_default());
            format!("[{kind}, {}, {bytes} bytes]", field("mimeType").unwrap_or("unknown type"))
        }
        "resource_link" => {
            let uri = field("uri").unwrap_or_default();
            field("name")
                .map_or_else(|| format!("[resource {uri}]"), |name| format!("[resource {name}: {uri}]"))
        }
        "resource" => embedded_text(block.get("resource").unwrap_or(&Value::Null)),
        other => match (field("text"), block.get("json").or_else(|| block.get("data"))) {
            (Some(text), _) => text.to_owned(),
            (None, Some(value @ (Value::Object(_) | Value::Array(_)))) => json::written(value),
            (None, _) => format!("[content of type {other}]"),
        },
    }
}

/// The text of a resource, of its `contents` if it has them, or a description.
fn embedded_text(resource: &Value) -> String {
    if let Some(Value::Array(contents)) = resource.get("contents") {
        // One level, as `resources/read` answers.
        let inner = contents.iter().filter(|inner| inner.get("contents").is_none());
        return inner.map(embedded_text).collect::<Vec<_>>().join("\n");
    }
    let field = |name: &str| resource.get(name).and_then(Value::as_str);
    match (field("text"), field("blob")) {
        (Some(text), _) => text.to_owned(),
        (None, Some(blob)) => {
            let kind = field("mimeType").unwrap_or("unknown type");
            format!("[resource {}, {kind}, {} bytes]", field("uri").unwrap_or_default(), base64_bytes(blob))
        }
        (None, None) => format!("[resource {}]", field("uri").unwrap_or_default()),
    }
}

fn base64_bytes(encoded: &str) -> usize {
    encoded.trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::untrusted::Redaction;

    fn answer(result: &Value) -> WholeResult {
        WholeResult::from_result(Untrusted::new(result.clone(), &Redaction::new([], None)))
    }

    fn check(result: Value, text: &str, is_error: bool) {
        let expected = Outcome { text: text.into(), is_error };
        assert_eq!(answer(&result).outcome(1000, &ErrorPatterns::default()), expected, "{result}");
    }

    #[test]
    fn texts_are_joined_and_shown_once() {
        check(
            json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            "a\nb",
            false,
        );
        check(
            json!({"content": [{"type": "text", "text": "7"}], "structuredContent": {"result": 7}}),
            "7",
            false,
        );
        check(json!({"content": [], "structuredContent": {"b": 1, "a": [2]}}), r#"{"b":1,"a":[2]}"#, false);
    }

    #[test]
    fn an_answer_of_any_shape_is_an_outcome() {
        check(json!({}), "", false);
        check(json!({"content": null}), "", false);
        check(json!({"content": "plain"}), "plain", false);
        check(json!({"content": {"type": "text", "text": "one"}}), "one", false);
        check(
            json!({"content": [{"type": "hologram"}, 7, {"type": "poem", "text": "ode"}]}),
            "[content of type hologram]\n[content of type unknown]\node",
            false,
        );
        check(json!("a bare string"), "a bare string", false);
        check(json!({"rows": [1], "isError": false, "_meta": {}}), r#"{"rows":[1]}"#, false);
        check(json!({"content": [], "rows": [1]}), "", false);
        check(
            json!({"content": [{"type": "text", "text": 7}, {"type": "text", "text": null}]}),
            "7\n",
            false,
        );
        check(json!({"content": [{"type": "json", "json": {"a": 1}}]}), r#"{"a":1}"#, false);
        check(json!({"content": [{"type": "text", "text": "no"}], "isError": true}), "no", true);
        check(json!({"content": "no", "isError": "true"}), "no", true);
    }

    #[test]
    fn no_part_of_a_result_has_a_secret() {
        let secret = "s3cr3t\nkey";
        let redaction = Redaction::new([secret.to_owned(), "20202020".to_owned()], None);
        let split = "s3c\u{200b}r3t\nke\u{7}y";
        let in_json = json!({"key": secret}).to_string();
        for result in [
            json!({"content": [{"type": "text", "text": split}]}),
            json!({"content": [{"type": "text", "text": in_json}]}),
            json!({"content": in_json}),
            json!({"structuredContent": {"a": [split, in_json], split: 20_202_020}}),
            json!({"content": [{"type": "json", "json": {"a": split}}]}),
            json!({"content": [{"type": "resource", "resource": {"uri": split, "blob": ""}}]}),
            json!({"content": [{"type": "resource_link", "uri": "a:b", "name": split}]}),
            json!({"content": [{"type": split}]}),
            json!({"contents": [{"uri": "a:b", "text": split}]}),
            json!({"resultType": split}),
            json!({UNREADABLE: split}),
            json!({"rows": [split]}),
            json!({"messages": [{"role": split, "content": {"type": "text", "text": in_json}}]}),
            json!(split),
        ] {
            let result_of = || Untrusted::new(result.clone(), &redaction);
            for answer in [WholeResult::from_result(result_of()), WholeResult::from_prompt(result_of())] {
                let text = answer.text;
                assert!(text.contains("[redacted]"), "{result}: {text}");
                assert!(!text.contains("s3cr3t") && !text.contains("20202020"), "{result}: {text}");
            }
        }
    }

    #[test]
    fn what_is_not_text_is_described() {
        check(
            json!({"content": [
                {"type": "image", "mimeType": "image/png", "data": "aGVsbG8="},
                {"type": "resource_link", "uri": "file:///a", "name": "a"},
                {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
                {"type": "resource", "resource": {"uri": "file:///c", "mimeType": "a/b", "blob": "aGk="}},
            ]}),
            "[image, image/png, 5 bytes]\n[resource a: file:///a]\ninside\n[resource file:///c, a/b, 2 bytes]",
            false,
        );
    }

    #[test]
    fn a_result_that_matches_an_error_pattern_is_an_error() {
        let patterns = ErrorPatterns::new(&["^Error:".into(), "failed$".into()]).unwrap();
        let long = format!("{}failed", "x".repeat(2000));
        for (text, is_error) in [("Error: no", true), ("no Error:", false), (&*long, true)] {
            let result = json!({"content": [{"type": "text", "text": text}], "isError": false});
            assert_eq!(answer(&result).outcome(100, &patterns).is_error, is_error, "{text}");
        }
    }

    #[test]
    fn a_structured_result_is_shown_beside_what_is_not_text() {
        let image = json!({"type": "image", "mimeType": "image/png", "data": "aGVsbG8="});
        let structured = json!({"n": 1});
        for (content, text) in [
            (json!([image]), "[image, image/png, 5 bytes]\n{\"n\":1}"),
            (json!([image, {"type": "text", "text": "one"}]), "[image, image/png, 5 bytes]\none"),
            (json!([{"type": "text", "text": ""}]), "{\"n\":1}"),
            (
                json!([{"type": "resource", "resource": {"uri": "a:b", "blob": "aGk="}}]),
                "[resource a:b, unknown type, 2 bytes]\n{\"n\":1}",
            ),
            (json!([{"type": "resource", "resource": {"uri": "a:b", "text": "x"}}]), "x"),
            (json!(null), "{\"n\":1}"),
        ] {
            check(json!({"content": content, "structuredContent": structured}), text, false);
        }
    }

    #[test]
    fn resources_are_read_from_contents() {
        let contents =
            json!([{"uri": "a:b", "text": "one"}, {"uri": "a:c", "mimeType": "a/b", "blob": "aGk="}]);
        let text = "one\n[resource a:c, a/b, 2 bytes]";
        check(json!({"contents": contents}), text, false);
        check(json!({"content": [{"type": "resource", "resource": {"contents": contents}}]}), text, false);
        check(
            json!({"content": [{"type": "resource", "resource": {"contents": [{"contents": contents}]}}]}),
            "",
            false,
        );
    }

    #[test]
    fn a_prompt_is_its_messages() {
        let none = Redaction::new([], None);
        let text = |result: Value| WholeResult::from_prompt(Untrusted::new(result, &none)).text;
        let messages = json!([
            {"role": "user", "content": {"type": "text", "text": "Review this."}},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image", "data": ""}]},
            {"content": {"type": "resource", "resource": {"uri": "a:b", "text": "code"}}},
        ]);
        assert_eq!(
            text(json!({"description": "d", "messages": messages})),
            "user: Review this.\n\nassistant: a\n[image, unknown type, 0 bytes]\n\nuser: code"
        );
        assert_eq!(text(json!({"messages": "odd"})), r#"{"messages":"odd"}"#);
    }

    #[test]
    fn a_request_for_input_is_refused() {
        check(
            json!({"resultType": "input_required", "inputRequests": {}}),
            "the server asked for input, which is not given here",
            true,
        );
        check(json!({"resultType": "task"}), "the server answered with `task` instead of a result", true);
        check(json!({"resultType": "complete", "content": "x"}), "x", false);
    }
}
