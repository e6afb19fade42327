//! What a policy reads when it makes a call again and gets the same result: the result, and a way out of the loop.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Key of a result that is [`told`]: the size of what the server answered, in bytes.
pub const REPEATS: &str = "repeats";

const BEFORE: &str = "You have made this call before, with the same result:\n";

/// What a policy is told about a call that it has made before with the same result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeats {
    /// That it has, and how to go on.
    #[default]
    Tell,
    /// Nothing.
    Run,
}

fn behind(completes: bool) -> &'static str {
    match completes {
        true => "\nIf it answers the task, call complete_task with the answer; otherwise make another call.",
        false => "\nIf it answers the task, answer; otherwise make another call.",
    }
}

/// What is read in place of a repeated `result`. `completes`: whether the agent has `complete_task`.
pub fn told(result: &str, completes: bool) -> String {
    format!("{BEFORE}{result}{}", behind(completes))
}

/// What the server answered, as far as the message of a result has it.
pub fn result_of(message: &Value) -> &str {
    let text = message["content"].as_str().unwrap_or_default();
    let told = message.get(REPEATS).and_then(|_| text.strip_prefix(BEFORE));
    let result =
        told.and_then(|told| [true, false].into_iter().find_map(|way| told.strip_suffix(behind(way))));
    result.unwrap_or(text)
}

/// Whether an earlier call of this tool with these arguments had this result in the messages.
pub fn is_repeated(
    messages: &[Value],
    (tool, arguments): (&str, &Map<String, Value>),
    result: &Value,
) -> bool {
    let mut made: &[Value] = &[];
    messages.iter().any(|message| {
        made = message["tool_calls"].as_array().map_or(made, Vec::as_slice);
        if message["role"] != "tool" || message["name"] != tool {
            return false;
        }
        let written = || made.iter().find(|call| call["id"] == message["tool_call_id"]);
        let sent = message.get("arguments").or_else(|| Some(&written()?["function"]["arguments"]));
        sent.and_then(Value::as_object) == Some(arguments)
            && result_of(message) == result_of(result)
            && ["error", "bytes"].iter().all(|key| message.get(*key) == result.get(*key))
    })
}
