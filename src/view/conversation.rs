//! The conversation of an episode, ready to show. Texts are as the server and the policy wrote them: hostile until escaped.

use serde::Serialize;
use serde_json::Value;

use crate::data::{EpisodeRow, calls::calls};

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

/// The messages of an episode. Messages of another shape have empty fields.
pub fn conversation(episode: &EpisodeRow) -> Vec<Message> {
    let rows = calls(&episode.into(), &std::collections::BTreeSet::new());
    let messages: Vec<Value> = serde_json::from_str(&episode.messages).unwrap_or_default();
    let mut turn = 0;
    let message = |message: &Value| {
        let text = |key: &str| message[key].as_str().map(str::to_owned);
        let role = text("role").unwrap_or_default();
        turn += u32::from(role == "assistant");
        let call_id = text("tool_call_id");
        // By id within its turn: a policy may repeat ids in later turns.
        let of_result =
            |row: &&crate::data::Call| row.turn + 1 == turn && Some(&row.call_id) == call_id.as_ref();
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
