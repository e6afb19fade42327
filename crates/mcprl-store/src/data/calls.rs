//! Table that `rollout` and `eval` write beside their episodes: one row per call.
//!
//! The rows follow from [`Trajectory::messages`], so they can be derived for episodes whose stage wrote no such table.

use std::{collections::BTreeSet, iter};

use serde_json::{Map, Value};

use super::{CallError, End, EpisodeRow, Message, MessageCall, Role, Trajectory, table::table};

table! {
    /// One call that a policy made, `complete_task` included.
    Call in "calls" {
        /// Id of the trajectory.
        trajectory_id: String,
        /// Id of its scenario.
        scenario_id: String,
        /// Model turn of the episode, from 0.
        turn: u32,
        /// Position among the calls of the episode, from 0.
        index: u32,
        /// Id that joins the call and its result in `messages`.
        call_id: String,
        /// The agent's name of the tool; empty if the call could not be parsed.
        tool: String,
        /// Arguments as JSON, as the policy wrote them. Null if the call could not be parsed.
        arguments: Option<String>,
        /// Size of the whole result in bytes. Null if there was none.
        result_bytes: Option<u64>,
        /// Whether the agent saw only the beginning and the end of the result.
        clipped: bool,
        /// Whether the call failed.
        is_error: bool,
        /// Why it failed: `unparsable`, `unknown_tool`, `schema` (wrong arguments), `no_calls_left`, `refused` (by a person or a rule), `tool` (the server
        /// answered with an error), `server_down`.
        error: Option<String>,
        /// The form in which the policy wrote the call: `template` (as the chat template writes calls), `bare_json`,
        /// `fenced_json`, `tags`, `python`, `xml`, `other_template`. Null if the call could not be parsed.
        form: Option<String>,
        /// Whether the arguments, after a conversion that the run file asks for, fit the tool's schema. Null if they were not
        /// compared with it.
        fits_schema: Option<bool>,
    }
}

/// A call of a conversation with its result.
#[derive(Debug, Clone, Copy)]
pub struct PairedCall<'m> {
    /// Model turn, from 0.
    pub turn: u32,
    /// None if it could not be parsed.
    pub call: Option<&'m MessageCall>,
    pub result: Option<&'m Message>,
}

impl<'m> PairedCall<'m> {
    /// The name of the tool; empty if the call could not be parsed.
    pub fn tool(&self) -> &'m str {
        let of_result = self.result.map_or("", Message::tool);
        self.call.map_or(of_result, |call| call.name.as_str())
    }

    pub fn error(&self) -> Option<CallError> {
        self.result.and_then(Message::error)
    }

    /// The arguments as the policy wrote them.
    pub fn written(&self) -> Option<&'m Map<String, Value>> {
        self.call.map(|call| &call.arguments).or_else(|| self.changed())
    }

    /// The arguments that the server got.
    pub fn sent(&self) -> Option<&'m Map<String, Value>> {
        self.changed().or_else(|| self.call.map(|call| &call.arguments))
    }

    fn changed(&self) -> Option<&'m Map<String, Value>> {
        self.result?.result.as_ref()?.arguments.as_ref()
    }
}

/// The calls of a conversation in order, each with its result.
pub fn paired_calls(messages: &[Message]) -> Vec<PairedCall<'_>> {
    let mut all = Vec::new();
    let assistants = messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant);
    for (turn, (at, message)) in assistants.enumerate() {
        let turn = turn as u32;
        let results = messages[at + 1..].iter().take_while(|message| message.role == Role::Tool);
        let results: Vec<&Message> = results.collect();
        let is_of = |result: &&Message, call: &MessageCall| result.call_id() == Some(&call.id);
        // Results of calls that are not in the message, because they could not be parsed.
        let is_unread = |result: &&Message| message.calls.iter().all(|call| !is_of(result, call));
        let unread = |result| PairedCall { turn, call: None, result: Some(result) };
        let mut rest = results.iter().copied().peekable();
        for call in &message.calls {
            all.extend(iter::from_fn(|| rest.next_if(is_unread)).map(unread));
            // In order, because a policy may repeat an id.
            let found = rest.next_if(|result| is_of(result, call));
            let result = found.or_else(|| results.iter().copied().find(|result| is_of(result, call)));
            all.push(PairedCall { turn, call: Some(call), result });
        }
        all.extend(rest.filter(is_unread).map(unread));
    }
    all
}

/// The part of an episode that its calls follow from.
#[derive(Debug, Clone, Copy)]
pub struct CallSource<'a> {
    pub trajectory_id: &'a str,
    pub scenario_id: &'a str,
    pub messages: &'a [Message],
    pub end: Option<End>,
}

impl<'a> From<&'a Trajectory> for CallSource<'a> {
    fn from(Trajectory { id, scenario_id, messages, end, .. }: &'a Trajectory) -> Self {
        Self { trajectory_id: id, scenario_id, messages, end: End::parse(end) }
    }
}

impl<'a> From<&'a EpisodeRow> for CallSource<'a> {
    fn from(EpisodeRow { id, scenario_id, messages, end, .. }: &'a EpisodeRow) -> Self {
        Self { trajectory_id: id, scenario_id, messages, end: End::parse(end) }
    }
}

/// The calls of an episode, in order. `unchecked`: tools whose schema cannot be used to check arguments.
pub fn calls(of: &CallSource<'_>, unchecked: &BTreeSet<String>) -> Vec<Call> {
    let row = |(index, paired): (usize, PairedCall<'_>)| {
        let PairedCall { turn, call, result } = paired;
        let (tool, error) = (paired.tool(), paired.error());
        let call_id = call.map(|call| call.id.as_str()).or_else(|| result?.call_id());
        let known = result.and_then(|message| message.result.as_ref());
        let whole = known.and_then(|known| known.bytes);
        let shown = |message: &Message| message.text.len() as u64;
        let bytes = whole.or(known.and_then(|known| known.repeats)).or(result.map(shown));
        let is_checked = result.is_some() && !tool.is_empty() && !unchecked.contains(tool);
        Call {
            trajectory_id: of.trajectory_id.to_owned(),
            scenario_id: of.scenario_id.to_owned(),
            turn,
            index: index as u32,
            call_id: call_id.unwrap_or_default().to_owned(),
            tool: tool.to_owned(),
            arguments: paired.written().and_then(|written| serde_json::to_string(written).ok()),
            result_bytes: bytes,
            clipped: whole.is_some(),
            is_error: error.is_some(),
            error: error.map(|error| error.to_string()),
            form: call.map(|call| call.form.name().to_owned()),
            fits_schema: match error {
                Some(CallError::Schema) => Some(false),
                Some(CallError::Unparsable | CallError::UnknownTool) => None,
                _ => is_checked.then_some(true),
            },
        }
    };
    let mut rows: Vec<Call> = paired_calls(of.messages).into_iter().enumerate().map(row).collect();
    // The call that ended the episode has no result.
    let turns = of.messages.iter().filter(|message| message.role == Role::Assistant).count();
    let unanswered = rows.iter_mut().find(|row| row.turn as usize + 1 == turns && row.result_bytes.is_none());
    match (of.end, unanswered) {
        (Some(End::ServerDown), Some(row)) => {
            (row.is_error, row.error) = (true, Some(CallError::ServerDown.to_string()));
            row.fits_schema = (!unchecked.contains(&row.tool)).then_some(true);
        }
        (Some(End::Completed), Some(row)) => row.fits_schema = Some(true),
        _ => {}
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn episode(messages: &Value, end: End) -> Trajectory {
        Trajectory {
            id: "t".into(),
            scenario_id: "s".into(),
            messages: serde_json::from_value(messages.clone()).unwrap(),
            end: end.name().into(),
            ..Trajectory::default()
        }
    }

    fn assistant(calls: &[(&str, &str, Value)]) -> Value {
        let call = |(id, name, arguments): &(&str, &str, Value)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        json!({"role": "assistant", "content": "", "tool_calls": calls.iter().map(call).collect::<Vec<_>>()})
    }

    /// Tool, error, size, clipped and `fits_schema` of each call.
    fn shown(trajectory: &Trajectory) -> Vec<String> {
        let rows = calls(&trajectory.into(), &["free".to_owned()].into());
        let row = |row: &Call| {
            let Call { turn, index, tool, error, result_bytes, clipped, fits_schema, .. } = row;
            format!("{turn}.{index} {tool} {error:?} {result_bytes:?} {clipped} {fits_schema:?}")
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn every_call_has_a_row_with_its_result_and_kind_of_error() {
        let messages = json!([
            {"role": "user", "content": "?"},
            assistant(&[("1", "find", json!({"a": 1})), ("2", "find", json!({}))]),
            {"role": "tool", "tool_call_id": "1", "name": "find", "content": "abc"},
            {"role": "tool", "tool_call_id": "2", "name": "find", "content": "error: wrong arguments of find: …", "is_error": true, "error": "schema"},
            {"role": "assistant", "content": "<tool_call>{broken"},
            {"role": "tool", "tool_call_id": "3", "name": "", "content": "error: …", "is_error": true, "error": "unparsable"},
            {"role": "tool", "tool_call_id": "4", "name": "find", "content": "x", "bytes": 900, "arguments": {"b": 2}},
            assistant(&[("5", "free", json!({}))]),
            {"role": "tool", "tool_call_id": "5", "name": "free", "content": "no", "is_error": true, "error": "tool"},
            assistant(&[("6", "complete_task", json!({"answer": "x"})), ("7", "find", json!({}))]),
        ]);
        let trajectory = episode(&messages, End::Completed);
        assert_eq!(
            shown(&trajectory),
            [
                "0.0 find None Some(3) false Some(true)",
                "0.1 find Some(\"schema\") Some(35) false Some(false)",
                "1.2  Some(\"unparsable\") Some(10) false None",
                "1.3 find None Some(900) true Some(true)",
                "2.4 free Some(\"tool\") Some(2) false None",
                "3.5 complete_task None None false Some(true)",
                "3.6 find None None false None",
            ]
        );
        let rows = calls(&(&trajectory).into(), &BTreeSet::new());
        assert_eq!(rows[3].arguments.as_deref(), Some("{\"b\":2}"));
        assert_eq!(rows[0].arguments.as_deref(), Some("{\"a\":1}"));
    }

    #[test]
    fn the_call_that_ended_the_episode_has_failed() {
        let messages = json!([assistant(&[("1", "find", json!({}))])]);
        assert_eq!(
            shown(&episode(&messages, End::ServerDown)),
            ["0.0 find Some(\"server_down\") None false Some(true)"]
        );
    }

    #[test]
    fn a_call_has_the_form_in_which_it_was_written() {
        let mut messages = json!([
            assistant(&[("1", "find", json!({})), ("2", "find", json!({}))]),
            {"role": "tool", "tool_call_id": "1", "content": "a"},
            {"role": "tool", "tool_call_id": "2", "content": "b"},
        ]);
        messages[0]["tool_calls"][1]["form"] = "bare_json".into();
        let rows = calls(&(&episode(&messages, End::OutOfTurns)).into(), &BTreeSet::new());
        let forms: Vec<_> = rows.iter().map(|row| row.form.as_deref()).collect();
        assert_eq!(forms, [Some("template"), Some("bare_json")]);
    }

    #[test]
    fn unmarked_results_give_what_their_texts_tell() {
        let messages = json!([
            assistant(&[("1", "find", json!({}))]),
            {"role": "tool", "tool_call_id": "1", "name": "find", "content": "error: no tool named find; there is x"},
            assistant(&[("2", "look", json!({}))]),
            {"role": "tool", "tool_call_id": "2", "name": "look", "content": "a"},
        ]);
        assert_eq!(
            shown(&episode(&messages, End::NoCall)),
            ["0.0 find Some(\"unknown_tool\") Some(37) false None", "1.1 look None Some(1) false Some(true)"]
        );
    }
}
