//! What a policy reads when it makes a call again and gets the same result: the result, and a way out of the loop.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::data::{Message, paired_calls};

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
pub fn result_of(message: &Message) -> &str {
    let text = message.text.as_str();
    let repeats = message.result.as_ref().and_then(|result| result.repeats);
    let told = repeats.and_then(|_| text.strip_prefix(BEFORE));
    let result =
        told.and_then(|told| [true, false].into_iter().find_map(|way| told.strip_suffix(behind(way))));
    result.unwrap_or(text)
}

/// Whether an earlier call in these messages, of the tool of this result and with the same arguments, had the same result.
/// `written`: the arguments of its call.
pub fn is_repeated(messages: &[Message], written: &Map<String, Value>, message: &Message) -> bool {
    let Some(result) = &message.result else { return false };
    let sent = result.arguments.as_ref().unwrap_or(written);
    let is_same = |earlier: &Message| {
        let known = earlier.result.as_ref().map(|known| (known.error, known.bytes));
        earlier.name == message.name
            && result_of(earlier) == message.text
            && known == Some((result.error, result.bytes))
    };
    let calls = paired_calls(messages);
    calls.iter().any(|call| call.result.is_some_and(is_same) && call.sent() == Some(sent))
}
