use mcprl_base::hash::Encoder;
use serde_json::{Map, Value};

use super::ToolCall;

/// Length of an id. Mistral's templates refuse any other length.
const LENGTH: usize = 9;

/// An id of nine letters and digits that depends only on the call and its index in the turn.
pub(super) fn call_id(index: usize, call: &ToolCall) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let digest = Encoder::new("mcprl call id v1")
        .number(index as u64)
        .text(&call.name)
        .json(&Value::Object(call.arguments.clone()))
        .finish();
    digest
        .as_bytes()
        .iter()
        .take(LENGTH)
        .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
        .collect()
}

/// An id for a call without one; the call may be malformed.
pub(super) fn generated_id(index: usize, call: &Result<ToolCall, String>) -> String {
    let malformed = ToolCall { name: String::new(), arguments: Map::new() };
    call_id(index, call.as_ref().unwrap_or(&malformed))
}
