//! The conversation of an episode, ready to show. Texts are as the server and the policy wrote them: hostile until escaped.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::{
    data::{Call, EpisodeRow, calls::calls},
    secret::concealed,
};

/// One message.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    pub text: String,
    /// What the policy wrote before it, if the template tells it apart.
    pub reasoning: Option<String>,
    /// Calls of an assistant's message.
    pub calls: Vec<MadeCall>,
    /// Of a result: the id of its call, and the tool.
    pub call_id: Option<String>,
    pub tool: Option<String>,
    /// Of a result: why the call failed, as in the table `calls`.
    pub error: Option<String>,
    /// Of a result: whether its middle is missing, and the size of the whole in bytes.
    pub clipped: bool,
    pub bytes: Option<u64>,
}

/// A call as the policy made it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MadeCall {
    pub id: String,
    pub tool: String,
    /// Arguments as JSON.
    pub arguments: String,
}

impl Message {
    /// Removes what looks like a secret from its texts.
    pub fn conceal(&mut self) {
        let Self { text, reasoning, calls, tool, error, .. } = self;
        let of_calls = calls.iter_mut().flat_map(|call| [&mut call.tool, &mut call.arguments]);
        for text in [text].into_iter().chain(reasoning).chain(tool).chain(error).chain(of_calls) {
            let shown = concealed(text).into_owned();
            *text = shown;
        }
    }
}

/// The messages of an episode. Messages of another shape have empty fields.
pub fn conversation(episode: &EpisodeRow) -> Vec<Message> {
    let rows = calls(&episode.into(), &std::collections::BTreeSet::new());
    let messages: Vec<Value> = serde_json::from_str(&episode.messages).unwrap_or_default();
    of_messages(&messages, &rows)
}

/// The messages of a conversation with the calls that were made in it, as far as they are known.
pub fn of_messages(messages: &[Value], rows: &[Call]) -> Vec<Message> {
    let mut turn = 0;
    let message = |message: &Value| {
        let text = |key: &str| message[key].as_str().map(str::to_owned);
        let role = text("role").unwrap_or_default();
        turn += u32::from(role == "assistant");
        let call_id = text("tool_call_id");
        // By id within its turn: a policy may repeat ids in later turns.
        let of_result = |row: &&Call| row.turn + 1 == turn && Some(&row.call_id) == call_id.as_ref();
        let row = rows.iter().find(of_result).filter(|_| role == "tool");
        let call = |call: &Value| {
            let function = &call["function"];
            MadeCall {
                id: call["id"].as_str().unwrap_or_default().to_owned(),
                tool: function["name"].as_str().unwrap_or_default().to_owned(),
                arguments: function.get("arguments").map(Value::to_string).unwrap_or_default(),
            }
        };
        Message {
            text: text("content").unwrap_or_default(),
            reasoning: text("reasoning_content"),
            calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
            tool: text("name").filter(|_| role == "tool"),
            error: row.and_then(|row| row.error.clone()),
            clipped: row.is_some_and(|row| row.clipped),
            bytes: row.and_then(|row| row.result_bytes),
            call_id,
            role,
        }
    };
    messages.iter().map(message).collect()
}

/// What a search looks at: contents, reasoning, names and arguments of calls.
pub(super) fn texts_of(messages: &str) -> String {
    let Ok(messages) = serde_json::from_str::<Vec<Value>>(messages) else { return messages.to_owned() };
    let mut all = String::new();
    let mut add = |text: &str| {
        all.push_str(text);
        all.push('\n');
    };
    for message in &messages {
        for name in ["content", "reasoning_content"] {
            if !message[name].is_null() {
                add(&text_of(&message[name]));
            }
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = if call["function"].is_object() { &call["function"] } else { call };
            add(function["name"].as_str().unwrap_or_default());
            add(&text_of(&function["arguments"]));
        }
    }
    all
}

/// A text as it is; other JSON as it is written.
fn text_of(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_looks_at_texts_and_calls() {
        let raw = serde_json::json!([
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "find", "arguments": {"id": 7}}},
                {"name": "drop", "arguments": "{broken"}
            ]},
            {"role": "tool", "name": "find", "content": [{"a": 1}], "is_error": true},
            7
        ]);
        assert_eq!(texts_of(&raw.to_string()), "\nhm\nfind\n{\"id\":7}\ndrop\n{broken\n[{\"a\":1}]\n");
        assert_eq!(texts_of("not JSON"), "not JSON");
    }
}
