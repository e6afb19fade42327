//! A reply that comes in chunks of a stream, put together as one that comes whole.

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

/// What a chunk adds to a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Added {
    pub reasoning: String,
    pub text: String,
}

/// Gets what a turn says as it comes.
pub type Parts = UnboundedSender<Added>;

/// A stream of chat completion chunks, as far as it has come.
#[derive(Default)]
pub struct Growing {
    /// Bytes behind the last whole line.
    line: Vec<u8>,
    message: Map<String, Value>,
    finish: Option<Value>,
    /// Of the last chunk that has it.
    usage: Value,
    /// An error instead of further chunks.
    error: Option<String>,
    /// Whether anything was passed on.
    pub is_heard: bool,
}

impl Growing {
    /// Takes bytes of the stream, and passes on what they say.
    pub fn push(&mut self, bytes: &[u8], parts: &Parts) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.read_line(&line, parts);
            }
        }
    }

    fn read_line(&mut self, line: &[u8], parts: &Parts) {
        let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { return };
        // `[DONE]` is no JSON.
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else { return };
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            self.error = Some(error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned));
        }
        if chunk["usage"].is_object() {
            self.usage = chunk["usage"].clone();
        }
        let choice = &chunk["choices"][0];
        if !choice["finish_reason"].is_null() {
            self.finish = Some(choice["finish_reason"].clone());
        }
        let delta = &choice["delta"];
        let mut text = |names: &[&str]| {
            let found = names.iter().find_map(|name| Some((*name, delta[*name].as_str()?)));
            let (name, more) = found.unwrap_or_default();
            if !more.is_empty() {
                let so_far = self.message.entry(name).or_insert_with(|| "".into());
                *so_far = format!("{}{more}", so_far.as_str().unwrap_or_default()).into();
            }
            more.to_owned()
        };
        let added = Added { reasoning: text(&["reasoning_content", "reasoning"]), text: text(&["content"]) };
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.add_call(call);
        }
        if added != Added::default() {
            self.is_heard = true;
            // Nobody may listen any more.
            _ = parts.send(added);
        }
    }

    /// A call comes in parts of its arguments. Some endpoints number none.
    fn add_call(&mut self, part: &Value) {
        /// More are no turn.
        const MOST: usize = 1000;
        let calls = self.message.entry("tool_calls").or_insert_with(|| json!([]));
        let Some(calls) = calls.as_array_mut() else { return };
        let mut at = part["index"].as_u64().map_or(calls.len(), |index| index as usize);
        // Some number all calls 0; another id begins another call.
        let is_other =
            |id: &str| calls.get(at).and_then(|call| call["id"].as_str()).is_some_and(|known| known != id);
        if part["id"].as_str().is_some_and(is_other) {
            at = calls.len();
        }
        if at >= MOST {
            return;
        }
        while calls.len() <= at {
            calls.push(json!({"function": {"arguments": ""}}));
        }
        let call = &mut calls[at];
        if let Some(id) = part["id"].as_str() {
            call["id"] = id.into();
        }
        if let Some(name) = part["function"]["name"].as_str() {
            call["function"]["name"] = name.into();
        }
        match &part["function"]["arguments"] {
            Value::String(more) => {
                let so_far = call["function"]["arguments"].as_str().unwrap_or_default();
                call["function"]["arguments"] = format!("{so_far}{more}").into();
            }
            Value::Object(whole) => call["function"]["arguments"] = whole.clone().into(),
            _ => {}
        }
    }

    /// The completion as it would have come whole.
    ///
    /// # Errors
    /// If the stream ended in an error, or before its turn did.
    pub fn whole(self) -> Result<Value, String> {
        if let Some(error) = self.error {
            return Err(format!("the stream ended: {error}"));
        }
        let Some(finish) = self.finish else { return Err("the stream ended before the turn did".into()) };
        Ok(json!({"choices": [{"message": self.message, "finish_reason": finish}], "usage": self.usage}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = r#": a comment

data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}

data: {"choices": [{"delta": {"reasoning": "Hm."}}]}
data: {"choices": [{"delta": {"content": "It is "}}]}
data: {"choices": [{"delta": {"content": "warm. ☀"}}]}
data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": "{\"at\""}}]}}]}
data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ": 7}"}}]}}]}
data: {"choices": [{"delta": {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "list", "arguments": "{}"}}]}}]}
data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": null}
data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
data: [DONE]
"#;

    #[test]
    fn chunks_become_the_whole_completion_wherever_their_bytes_are_cut() {
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "function": {"name": name, "arguments": arguments}});
        let message = json!({
            "content": "It is warm. ☀", "reasoning": "Hm.",
            "tool_calls": [call("a", "look", "{\"at\": 7}"), call("b", "list", "{}")],
        });
        for step in [1, 7, 10_000] {
            let (parts, mut heard) = tokio::sync::mpsc::unbounded_channel();
            let mut growing = Growing::default();
            STREAM.as_bytes().chunks(step).for_each(|bytes| growing.push(bytes, &parts));
            let whole = growing.whole().unwrap();
            assert_eq!(whole["choices"][0]["message"], message);
            assert_eq!(whole["choices"][0]["finish_reason"], "tool_calls");
            assert_eq!(whole["usage"]["completion_tokens"], 4);
            let mut text = String::new();
            while let Ok(added) = heard.try_recv() {
                text += &added.reasoning;
                text += &added.text;
            }
            assert_eq!(text, "Hm.It is warm. ☀");
        }
    }

    #[test]
    fn a_stream_that_breaks_off_or_ends_in_an_error_is_no_reply() {
        for (stream, problem) in [
            ("data: {\"choices\": [{\"delta\": {\"content\": \"It\"}}]}\n", "before the turn did"),
            ("data: {\"error\": {\"message\": \"out of memory\"}}\n", "out of memory"),
            ("", "before the turn did"),
            (
                "data: {\"choices\": 7}\ndata: {\"choices\": [{\"delta\": {\"tool_calls\": [{\"index\": 99999999999}]}}]}\n",
                "before",
            ),
        ] {
            let mut growing = Growing::default();
            growing.push(stream.as_bytes(), &tokio::sync::mpsc::unbounded_channel().0);
            let error = growing.whole().unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
