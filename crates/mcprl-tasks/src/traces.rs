//! `source = "traces"`: tasks out of conversations in OpenAI's format.
//!
//! The first user message is the task, and the calls until the next one are its reference solution. Nothing of a
//! conversation is believed: the calls are executed again, and the answer must be in their results.

use std::{collections::BTreeSet, io::Read as _, path::Path};

use serde_json::Value;

use super::{
    TaskError,
    answer_rule::AnswerRule,
    candidate::{Candidate, Check},
    file,
    refusals::{Reason, Refusal},
};
use crate::{
    answer::COMPLETE_TASK,
    data::{Message, MessageCall},
    recorded::list,
};

const FILE_BYTES: u64 = 256 << 20;
const CALLS: usize = 20;
/// Longest task, in bytes.
const TASK_BYTES: usize = 8000;

/// Conversations as candidates, or why they are none.
pub type ReadTasks = Vec<(String, Result<Candidate, Refusal>)>;

/// Reads JSON or JSONL: conversations as `{"messages": […]}` or as lists of messages.
///
/// # Errors
/// If the file cannot be read, or a line is not JSON.
pub fn load(path: &Path, tools: &BTreeSet<String>) -> Result<ReadTasks, TaskError> {
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES).read_to_string(&mut text))
        .map_err(|source| TaskError::Read { path: path.to_owned(), source })?;
    parse(&text, &file::name(path), tools)
}

fn parse(text: &str, file: &str, tools: &BTreeSet<String>) -> Result<ReadTasks, TaskError> {
    let wrong = |problem: String| TaskError::BadTraces { file: file.to_owned(), problem };
    let items = file::items(text).map_err(wrong)?;
    if items.is_empty() {
        return Err(wrong("there is no conversation".into()));
    }
    let read = |(place, item): file::Item| {
        let item = item.map_err(|problem| wrong(format!("{place}: {problem}")))?;
        let candidate = candidate(&item, tools).map_err(|why| (Reason::Unsolvable, why));
        Ok((place, candidate))
    };
    items.into_iter().map(read).collect()
}

fn candidate(item: &Value, tools: &BTreeSet<String>) -> Result<Candidate, String> {
    let messages = messages(item).ok_or("there are no `messages`")?;
    let role = |message: &Value| message["role"].as_str().unwrap_or_default().to_owned();
    let start =
        messages.iter().position(|message| role(message) == "user").ok_or("there is no user message")?;
    let task = Message::of_json(&messages[start])?.text.trim().to_owned();
    if task.is_empty() || task.len() > TASK_BYTES {
        return Err("the user message is empty, no text, or too long".into());
    }
    let own = messages[start + 1..].iter().take_while(|message| role(message) != "user");
    let mut calls = Vec::new();
    let mut answer = None;
    for message in own.filter(|message| role(message) == "assistant") {
        let message = Message::of_json(message)?;
        if !message.text.trim().is_empty() {
            answer = Some(message.text);
        }
        for call in message.calls.iter().map(MessageCall::tool_call) {
            if call.name == COMPLETE_TASK {
                answer = call.arguments.get("answer").map(crate::mcp::plain).or(answer);
            } else {
                calls.push(call);
            }
        }
    }
    if calls.is_empty() || calls.len() > CALLS {
        return Err(format!("it has {} calls; 1 to {CALLS} are read", calls.len()));
    }
    if let Some(call) = calls.iter().find(|call| !tools.contains(&call.name)) {
        return Err(format!("`{}` is no tool that is safe to call here", call.name));
    }
    let answer = answer.ok_or("the conversation has no answer")?;
    let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
    Ok(Candidate {
        family: format!("traces: {}", names.join(" > ")),
        entity: [("task".to_owned(), task.clone())].into(),
        rule: AnswerRule::Recorded { answer: answer.trim().to_owned(), task: task.clone() },
        task,
        phrasing: "trace".into(),
        calls,
        check: Check::Text,
        may_fail: true,
        ..Candidate::default()
    })
}

/// The messages, also where they are JSON in a text.
fn messages(item: &Value) -> Option<Vec<Value>> {
    match item {
        Value::Array(messages) => Some(messages.clone()),
        item => list(item.get("messages")?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(item: &Value) -> Result<Candidate, String> {
        candidate(item, &BTreeSet::from(["get".to_owned()]))
    }

    fn conversation(call: &Value, end: &str) -> Value {
        json!({"messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "How old is Ada?"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "content": "36"},
            {"role": "assistant", "content": end},
            {"role": "user", "content": "Thanks"},
        ]})
    }

    #[test]
    fn a_conversation_becomes_a_task_with_its_calls() {
        for arguments in
            [json!({"name": "Ada"}), json!("{\"name\": \"Ada\"}"), json!("\"{\\\"name\\\": \\\"Ada\\\"}\"")]
        {
            let found = read(&conversation(
                &json!({"function": {"name": "get", "arguments": arguments}}),
                "She is 36.",
            ))
            .unwrap();
            assert_eq!(found.task, "How old is Ada?");
            assert_eq!(found.calls[0].arguments["name"], "Ada");
            assert_eq!(found.rule.answer(&["{\"age\": 36, \"name\": \"Ada\"}"]), Ok("36".into()));
        }
    }

    #[test]
    fn what_cannot_be_a_task_has_a_reason() {
        let call = json!({"function": {"name": "get", "arguments": "{}"}});
        for (item, reason) in [
            (json!(7), "there are no `messages`"),
            (json!({"messages": "no"}), "there are no `messages`"),
            (json!({"messages": [{"role": "assistant", "content": "x"}]}), "there is no user message"),
            (json!([{"role": "user", "content": [{"type": "image"}]}]), "the user message is empty"),
            (
                json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]),
                "it has 0 calls",
            ),
            (
                conversation(&json!({"function": {"name": "drop", "arguments": "{}"}}), "x"),
                "`drop` is no tool",
            ),
            (conversation(&json!({"function": {"name": "get", "arguments": "{"}}), "x"), "not JSON"),
            (conversation(&json!({"function": {"name": "get", "arguments": [1]}}), "x"), "no object"),
            (conversation(&call, ""), "no answer"),
        ] {
            let found = read(&item).unwrap_err();
            assert!(found.contains(reason), "{item}: {found}");
        }
    }

    #[test]
    fn a_file_that_is_not_json_names_the_line() {
        let error = parse("{\"messages\": []}\n{", "chats.jsonl", &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.starts_with("chats.jsonl: line 2: "), "{error}");
    }
}
