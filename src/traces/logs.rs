//! Logs in which a line is a message or less, and a file or a session is the conversation.

use serde_json::{Value, json};

use super::{Format, Trace, message};

/// A line of a file, with its number.
type Line = (usize, Value);

/// Conversations, each with the name of its session if the file has several.
pub type Sessions = Vec<(Option<String>, Result<Trace, String>)>;

/// The conversations of a log. None if these are no lines of one.
pub fn read(items: &[Line]) -> Option<(Format, Sessions)> {
    let mut items_only = items.iter().map(|(_, item)| item);
    if items_only.clone().any(|item| item["type"] == "response_item" && item.get("payload").is_some()) {
        return Some((Format::Codex, vec![(None, codex(items))]));
    }
    let is_line = |item: &Value| is_turn(item) && item.get("message").is_some() && item.get("uuid").is_some();
    if items_only.clone().any(is_line) {
        return Some((Format::ClaudeCode, claude_code(items)));
    }
    if items_only.next()?["type"] != "session" {
        return None;
    }
    let messages = items_only.filter(|item| item["type"] == "message").map(|item| item["message"].clone());
    let trace = message::trace(&messages.collect::<Vec<_>>(), None, None);
    Some((Format::Session, vec![(None, trace)]))
}

fn is_turn(item: &Value) -> bool {
    item["type"] == "user" || item["type"] == "assistant"
}

/// The sessions of a log of Claude Code. Each block of a turn is a line of its own, and a side chain is another
/// conversation.
fn claude_code(items: &[Line]) -> Sessions {
    let mut sessions: Vec<(String, Vec<Value>)> = Vec::new();
    let mut notes = 0;
    for (_, item) in items {
        if !is_turn(item) || item["isSidechain"] == true {
            continue;
        }
        // What the program itself says to the user or to the model.
        if item["isMeta"] == true {
            notes += 1;
            continue;
        }
        let session = item["sessionId"].as_str().unwrap_or_default();
        let place = sessions.iter().position(|(known, _)| known == session).unwrap_or_else(|| {
            sessions.push((session.to_owned(), Vec::new()));
            sessions.len() - 1
        });
        sessions[place].1.push(item["message"].clone());
    }
    let several = sessions.len() > 1;
    let trace = |(session, messages): (String, Vec<Value>)| {
        let trace = message::trace(&messages, None, None).map(|mut trace| {
            if notes > 0 {
                trace.repairs.push(format!("{notes} notes of the program are lost"));
            }
            trace
        });
        (several.then_some(session), trace)
    };
    sessions.into_iter().map(trace).collect()
}

/// A log of Codex: items of responses between events.
fn codex(items: &[Line]) -> Result<Trace, String> {
    let mut messages: Vec<Value> = Vec::new();
    let mut repairs: Vec<String> = Vec::new();
    for (_, item) in items.iter().filter(|(_, item)| item["type"] == "response_item") {
        let payload = &item["payload"];
        match payload["type"].as_str().unwrap_or_default() {
            "message" => messages.push(payload.clone()),
            "function_call" => {
                let call = json!({"id": payload["call_id"], "name": payload["name"], "arguments": payload["arguments"]});
                messages.push(json!({"role": "assistant", "tool_calls": [call]}));
            }
            "function_call_output" => {
                let output = match &payload["output"] {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                messages.push(json!({"role": "tool", "tool_call_id": payload["call_id"], "content": output}));
            }
            "reasoning" => {
                let parts = ["content", "summary"].iter().find_map(|key| payload[*key].as_array());
                let texts = parts.into_iter().flatten().filter_map(|part| part["text"].as_str());
                let text = texts.collect::<Vec<_>>().join("\n");
                match text.is_empty() {
                    true => repairs.push("reasoning that is encrypted is lost".into()),
                    false => messages.push(json!({"role": "assistant", "reasoning_content": text})),
                }
            }
            other => repairs.push(format!("an item of type \"{other}\" is lost")),
        }
    }
    let mut trace = message::trace(&messages, None, None)?;
    trace.repairs.extend(repairs);
    trace.repairs.dedup();
    Ok(trace)
}
