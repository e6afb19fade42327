//! The result of a tool call, as text for a model.
//!
//! Servers differ in what they send; every answer becomes an [`Outcome`]. The model sees the texts, or the structured
//! result if there are none, but never both.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    clean::{clean, truncate_middle},
    message::UNREADABLE,
};

/// The result of a tool call. A failed call is an outcome that the model sees, not an error.
///
/// `is_error` is set by the server, and some servers report errors without it. Do not rely on it alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The result as text for the model.
    pub text: String,
    pub is_error: bool,
}

impl Outcome {
    /// An error outcome; its text is cleaned and cut to `limit` bytes.
    pub(super) fn failed(text: &str, limit: usize) -> Self {
        Self { text: truncate_middle(clean(text), limit), is_error: true }
    }

    /// Reads a result of any shape; its text is cleaned and cut to `limit` bytes.
    pub(super) fn from_result(result: &Value, limit: usize) -> Self {
        if let Some(reason) = result.get(UNREADABLE).and_then(Value::as_str) {
            return Self::failed(&format!("the server's answer cannot be read: {reason}"), limit);
        }
        let (text, is_error) = match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => (text_of(result), is_true(result.get("isError"))),
            Some("input_required") => ("the server asked for input, which is not given here".into(), true),
            Some(other) => (format!("the server answered with `{other}` instead of a result"), true),
        };
        Self { text: truncate_middle(clean(&text), limit), is_error }
    }
}

fn is_true(flag: Option<&Value>) -> bool {
    match flag {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

fn text_of(result: &Value) -> String {
    let texts: Vec<String> = match result.get("content") {
        Some(Value::Array(blocks)) => blocks.iter().map(block_text).collect(),
        None | Some(Value::Null) => Vec::new(),
        Some(block) => vec![block_text(block)],
    };
    let text = texts.join("\n");
    match result.get("structuredContent") {
        Some(structured) if text.is_empty() && !structured.is_null() => structured.to_string(),
        _ => text,
    }
}

/// A text unchanged. Anything else is described in brackets and never fetched.
fn block_text(block: &Value) -> String {
    if let Value::String(text) = block {
        return text.clone();
    }
    let field = |name: &str| block.get(name).and_then(Value::as_str);
    match field("type").unwrap_or("unknown") {
        "text" => field("text").unwrap_or_default().to_owned(),
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
        other => match field("text") {
            Some(text) => text.to_owned(),
            None => format!("[content of type {other}]"),
        },
    }
}

fn embedded_text(resource: &Value) -> String {
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

    fn check(result: Value, text: &str, is_error: bool) {
        let expected = Outcome { text: text.into(), is_error };
        assert_eq!(Outcome::from_result(&result, 1000), expected, "{result}");
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
        check(json!("a bare string"), "", false);
        check(json!({"content": [{"type": "text", "text": "no"}], "isError": true}), "no", true);
        check(json!({"content": "no", "isError": "true"}), "no", true);
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
