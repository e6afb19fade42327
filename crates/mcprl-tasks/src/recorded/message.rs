//! Messages of any dialect as those of a chat template.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Trace;
use crate::data::{Message, MessageCall, Role, arguments};

/// A message with what it holds, before calls and results are paired.
#[derive(Debug, Default)]
struct RawMessage {
    role: Role,
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    /// Of a result: the id of its call.
    id: Option<String>,
    /// Of the assistant: it has the weight 0, so it is not learned.
    is_unlearned: bool,
}

#[derive(Debug, Clone)]
struct Call {
    id: Option<String>,
    name: String,
    arguments: Map<String, Value>,
}

/// A conversation of these messages.
///
/// # Errors
/// What is wrong with it.
pub fn trace(messages: &[Value], tools: Option<Vec<Value>>, correct: Option<bool>) -> Result<Trace, String> {
    let mut repairs = Vec::new();
    let mut said = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if is_of_program(message) {
            repairs.push("messages that the program wrote in the model's place are lost".into());
            continue;
        }
        said.extend(read(message, &mut repairs).map_err(|why| format!("message {}: {why}", index + 1))?);
    }
    let said = joined(said, &mut repairs);
    let messages = paired(said, &mut repairs)?;
    let mut trace = Trace { messages, tools, correct, repairs };
    for (role, name) in [(Role::User, "user"), (Role::Assistant, "assistant")] {
        if trace.count(role) == 0 {
            return Err(format!("there is no {name} message"));
        }
    }
    let mut known = std::collections::BTreeSet::new();
    trace.repairs.retain(|repair: &String| known.insert(repair.clone()));
    Ok(trace)
}

/// Whether a program wrote this message of the assistant: an error of the endpoint, as agents record it.
fn is_of_program(message: &Value) -> bool {
    let inner = message.get("message").filter(|inner| inner.is_object()).unwrap_or(message);
    [message, inner].into_iter().any(|message| {
        message.get("isApiErrorMessage").is_some_and(|flag| *flag == true)
            || message.get("model").is_some_and(|model| model == "<synthetic>")
            || message.get("stopReason").is_some_and(|reason| reason == "error")
    })
}

/// One message, or several where a dialect has results within a message.
fn read(message: &Value, repairs: &mut Vec<String>) -> Result<Vec<RawMessage>, String> {
    // ART keeps what was sampled as a choice.
    let message = match message.get("message") {
        Some(inner) if inner.is_object() && message.get("role").is_none() => inner,
        _ => message,
    };
    let role =
        message.get("role").or_else(|| message.get("from")).and_then(Value::as_str).unwrap_or_default();
    let role = match role {
        "system" | "developer" => Role::System,
        "user" | "human" => Role::User,
        "assistant" | "gpt" | "model" | "chatgpt" | "function_call" => Role::Assistant,
        "tool" | "function" | "observation" | "toolResult" => Role::Tool,
        "" => return Err("it has no role".into()),
        other => return Err(format!("\"{other}\" is no role")),
    };
    let of_sharegpt = message.get("value").is_some();
    let content = message.get("content").or_else(|| message.get("value")).unwrap_or(&Value::Null);
    let mut said = RawMessage { role, id: id_of(message), ..RawMessage::default() };
    if role == Role::Tool {
        errors_lost(message, repairs);
    }
    let mut results = Vec::new();
    match content {
        Value::Null => {}
        Value::String(text) => said.text.clone_from(text),
        Value::Array(parts) => {
            for part in parts {
                block(part, &mut said, &mut results, repairs)?;
            }
        }
        Value::Object(_) => said.text = content.to_string(),
        _ => return Err("its content is no text".into()),
    }
    if said.reasoning.is_empty() {
        let keys = ["reasoning_content", "reasoning", "thinking", "reasoningContent"];
        let mut texts = keys.iter().filter_map(|key| message.get(key)?.as_str());
        texts.find(|text| !text.is_empty()).unwrap_or_default().clone_into(&mut said.reasoning);
    }
    if role == Role::Assistant {
        said.is_unlearned = message.get("weight").and_then(Value::as_f64) == Some(0.0);
        if let Some((reasoning, rest)) = thought(&said.text) {
            (said.reasoning, said.text) = (reasoning, rest);
        }
        let calls = message.get("tool_calls").or_else(|| message.get("toolCalls"));
        for call in calls.and_then(Value::as_array).into_iter().flatten() {
            said.calls.push(call_of(call)?);
        }
        if let Some(call) = message.get("function_call").filter(|call| call.is_object()) {
            said.calls.push(call_of(call)?);
        }
        if of_sharegpt && message.get("from").is_some_and(|from| from == "function_call") {
            let call =
                serde_json::from_str(&said.text).map_err(|error| format!("its call is not JSON: {error}"))?;
            said.calls.push(call_of(&call)?);
            said.text.clear();
        }
        if said.calls.is_empty() && said.text.contains(CALL) {
            tagged(&mut said)?;
        }
    }
    if role == Role::Tool && said.text.contains(RESULT) {
        let each = said.text.split(RESULT).skip(1);
        let texts = each.map(|text| text.split(RESULT_END).next().unwrap_or_default().trim().to_owned());
        results.extend(texts.map(|text| RawMessage { role: Role::Tool, text, ..RawMessage::default() }));
        said.text.clear();
    }
    let is_empty = said.text.is_empty() && said.reasoning.is_empty() && said.calls.is_empty();
    if results.is_empty() || !is_empty {
        results.push(said);
    }
    Ok(results)
}

const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const RESULT: &str = "<tool_response>";
const RESULT_END: &str = "</tool_response>";

/// Reasoning in tags before the text.
fn thought(text: &str) -> Option<(String, String)> {
    let rest = text.trim_start().strip_prefix("<think>")?;
    let (reasoning, rest) = rest.split_once("</think>")?;
    Some((reasoning.trim().to_owned(), rest.trim_start().to_owned()))
}

/// Calls in Hermes' tags.
fn tagged(said: &mut RawMessage) -> Result<(), String> {
    let mut text = String::new();
    let whole = std::mem::take(&mut said.text);
    let mut parts = whole.split(CALL);
    text += parts.next().unwrap_or_default();
    for part in parts {
        let (call, rest) = part.split_once(CALL_END).ok_or("a call has no closing tag")?;
        let call =
            serde_json::from_str(call.trim()).map_err(|error| format!("a call is not JSON: {error}"))?;
        said.calls.push(call_of(&call)?);
        text += rest;
    }
    text.trim().clone_into(&mut said.text);
    Ok(())
}

/// A part of a content, as OpenAI and Anthropic write them.
fn block(
    part: &Value,
    said: &mut RawMessage,
    results: &mut Vec<RawMessage>,
    repairs: &mut Vec<String>,
) -> Result<(), String> {
    let text = |key: &str| part.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "text" => append(&mut said.text, text("text")),
        "thinking" => append(&mut said.reasoning, text("thinking")),
        "reasoning" => append(&mut said.reasoning, text("text")),
        "tool_use" | "toolCall" => said.calls.push(call_of(part)?),
        "tool_result" => {
            let mut result = RawMessage { role: Role::Tool, id: id_of(part), ..RawMessage::default() };
            errors_lost(part, repairs);
            match &part["content"] {
                Value::String(text) => result.text.clone_from(text),
                Value::Array(parts) => {
                    for part in parts {
                        block(part, &mut result, &mut Vec::new(), repairs)?;
                    }
                }
                _ => {}
            }
            results.push(result);
        }
        "redacted_thinking" => repairs.push("reasoning that is encrypted is lost".into()),
        "" if part.is_string() => append(&mut said.text, part.as_str().unwrap_or_default()),
        other => repairs.push(format!("a part of type \"{other}\" is lost")),
    }
    Ok(())
}

/// A chat template has no place for it; the text of the result stays.
fn errors_lost(result: &Value, repairs: &mut Vec<String>) {
    let is_error = ["is_error", "isError"].iter().any(|key| result.get(key) == Some(&Value::Bool(true)));
    if is_error {
        repairs.push("which results are errors is lost".into());
    }
}

fn append(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

fn id_of(value: &Value) -> Option<String> {
    let keys = ["tool_call_id", "tool_use_id", "toolCallId"];
    keys.iter().find_map(|key| Some(value.get(key)?.as_str()?.to_owned()))
}

fn call_of(call: &Value) -> Result<Call, String> {
    let function = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
    let name = function.get("name").and_then(Value::as_str).ok_or("a call has no name")?.to_owned();
    let keys = ["arguments", "input", "parameters"];
    let given = keys.iter().find_map(|key| function.get(key)).cloned().unwrap_or_default();
    let arguments = arguments(&name, given)?;
    let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
    Ok(Call { id: id.or_else(|| id_of(call)), name, arguments })
}

/// Messages of one speaker become one, a system prompt is the first, and the conversation ends with the assistant.
fn joined(said: Vec<RawMessage>, repairs: &mut Vec<String>) -> Vec<RawMessage> {
    let mut all: Vec<RawMessage> = Vec::new();
    for one in said {
        match all.last_mut() {
            // Text behind calls speaks of their results, which then are missing.
            Some(last)
                if last.role == one.role
                    && one.role != Role::Tool
                    && (last.calls.is_empty() || one.text.is_empty()) =>
            {
                // A turn that is recorded in parts.
                if one.role == Role::User {
                    repairs.push("user messages in a row are joined".into());
                }
                append(&mut last.text, &one.text);
                append(&mut last.reasoning, &one.reasoning);
                last.calls.extend(one.calls);
                last.is_unlearned |= one.is_unlearned;
            }
            Some(_) if one.role == Role::System => {
                repairs.push("a system message within the conversation is lost".into());
            }
            _ => all.push(one),
        }
    }
    while all.last().is_some_and(|last| last.role == Role::User) {
        repairs.push("the last user message, which has no answer, is lost".into());
        all.pop();
    }
    all
}

/// Gives each call its result, by id and otherwise by place.
fn paired(said: Vec<RawMessage>, repairs: &mut Vec<String>) -> Result<Vec<Message>, String> {
    let mut messages = Vec::new();
    let mut said = said.into_iter().peekable();
    let mut count = 0;
    while let Some(one) = said.next() {
        match one.role {
            Role::System | Role::User => messages.push(Message::new(one.role, one.text)),
            Role::Tool => return Err("a result has no call before it".into()),
            Role::Assistant => {
                let mut results = Vec::new();
                while let Some(result) = said.next_if(|next| next.role == Role::Tool) {
                    results.push(result);
                }
                let is_last = said.peek().is_none();
                if results.len() > one.calls.len() {
                    return Err(format!("{} calls have {} results", one.calls.len(), results.len()));
                }
                let mut ordered = Vec::new();
                if !(is_last && results.is_empty()) {
                    ordered = in_order(&one.calls, results)?;
                }
                let numbers = count + 1..=count + one.calls.len();
                count += one.calls.len();
                let call = |(call, number): (Call, usize)| {
                    let (id, Call { name, arguments, .. }) = (format!("call_{number:08}"), call);
                    MessageCall { id, name, arguments, ..MessageCall::default() }
                };
                let calls: Vec<MessageCall> = one.calls.into_iter().zip(numbers).map(call).collect();
                if calls.is_empty() && one.text.is_empty() {
                    repairs.push("an empty turn is lost".into());
                    continue;
                }
                let result =
                    |(call, text): (&MessageCall, String)| Message::result(&call.name, &call.id, text);
                let results: Vec<Message> = calls.iter().zip(ordered).map(result).collect();
                messages.push(Message {
                    reasoning: Some(one.reasoning).filter(|reasoning| !reasoning.is_empty()),
                    unlearned: one.is_unlearned,
                    ..Message::assistant(one.text, calls)
                });
                messages.extend(results);
            }
        }
    }
    Ok(messages)
}

/// The texts of results in the order of their calls.
fn in_order(calls: &[Call], results: Vec<RawMessage>) -> Result<Vec<String>, String> {
    let missing = |call: &Call| format!("the call of `{}` has no result", call.name);
    let is_named =
        results.iter().all(|result| result.id.is_some()) && calls.iter().all(|call| call.id.is_some());
    if !is_named {
        if let Some(call) = calls.get(results.len()) {
            return Err(missing(call));
        }
        return Ok(results.into_iter().map(|result| result.text).collect());
    }
    let mut by_id: BTreeMap<String, String> =
        results.into_iter().filter_map(|result| Some((result.id?, result.text))).collect();
    calls
        .iter()
        .map(|call| by_id.remove(call.id.as_deref().unwrap_or_default()).ok_or_else(|| missing(call)))
        .collect()
}

/// A tool in OpenAI's form, from that or from MCP's or Anthropic's.
pub fn function(tool: &Value) -> Value {
    if tool.get("function").is_some() {
        return tool.clone();
    }
    let keys = ["parameters", "inputSchema", "input_schema"];
    let parameters = keys.iter().find_map(|key| tool.get(key)).cloned();
    let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    let mut function = json!({"name": tool["name"], "parameters": parameters});
    if let Some(description) = tool.get("description") {
        function["description"] = description.clone();
    }
    json!({"type": "function", "function": function})
}
