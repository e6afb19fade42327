//! Table that `rollout` and `eval` write beside their episodes: one row per call.
//!
//! The rows follow from [`Trajectory::messages`], so they can be derived for episodes whose stage wrote no such table.

use std::{collections::BTreeSet, iter};

use serde_json::Value;

use super::{End, EpisodeRow, Trajectory, table::table};

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
        /// Arguments as JSON, as the policy wrote them. Null if unknown: the call, or another one of its turn in a run of an
        /// earlier version, could not be parsed.
        arguments: Option<String>,
        /// Size of the whole result in bytes. Null if there was none; of a result that an earlier version clipped, the size of
        /// the rest.
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

/// Why a call failed.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum CallError {
    /// Its text is not a call.
    Unparsable,
    UnknownTool,
    /// The arguments do not fit the schema.
    Schema,
    /// The episode, or the tool, has no calls left.
    NoCallsLeft,
    /// A person or a rule did not permit it.
    Refused,
    /// The server answered with an error.
    Tool,
    /// The server was lost.
    ServerDown,
}

impl CallError {
    /// The name in [`Call::error`].
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// For results of earlier versions, which have no `error`: recognizes mcprl's own messages.
    fn of_result(text: &str, is_error: bool) -> Option<Self> {
        const OWN: [(&str, CallError); 6] = [
            ("error: the tool call is malformed: ", CallError::Unparsable),
            ("error: no tool named ", CallError::UnknownTool),
            ("error: wrong arguments of ", CallError::Schema),
            ("error: complete_task needs the argument ", CallError::Schema),
            ("error: no calls are left; ", CallError::NoCallsLeft),
            ("error: this tool can be called ", CallError::NoCallsLeft),
        ];
        let own = OWN.into_iter().find(|(start, _)| text.starts_with(start)).map(|(_, error)| error);
        own.or(is_error.then_some(Self::Tool))
    }
}

/// The result of a call, as the message in [`Trajectory::messages`] has it.
struct Answer {
    call_id: String,
    tool: String,
    arguments: Option<String>,
    bytes: u64,
    clipped: bool,
    error: Option<CallError>,
}

impl Answer {
    fn of(message: &Value) -> Self {
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        let content = text("content");
        let recorded = message["error"].as_str().and_then(|name| name.parse().ok());
        let whole = message["bytes"].as_u64();
        Self {
            call_id: text("tool_call_id"),
            tool: text("name"),
            arguments: message.get("arguments").map(Value::to_string),
            bytes: whole.or_else(|| message["repeats"].as_u64()).unwrap_or(content.len() as u64),
            clipped: whole.is_some() || is_clipped(&content),
            error: recorded.or_else(|| CallError::of_result(&content, message["is_error"] == true)),
        }
    }
}

/// Whether the text has the note that stands for the middle of a long result.
fn is_clipped(content: &str) -> bool {
    content.lines().any(|line| {
        let count = line.strip_prefix('[').and_then(|line| line.strip_suffix(" tokens left out]"));
        count.is_some_and(|count| !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// The part of an episode that its calls follow from.
#[derive(Debug, Clone, Copy)]
pub struct CallSource<'a> {
    pub trajectory_id: &'a str,
    pub scenario_id: &'a str,
    /// As in [`Trajectory::messages`].
    pub messages: &'a str,
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

/// The calls of an episode, in order. `unchecked`: tools whose schema cannot be used to check arguments. Messages that are not
/// as `rollout` writes them give no calls.
///
/// Results of runs before mcprl marked errors in `messages` do not tell whether the server answered with an error; see
/// [`unmarked_errors`].
pub fn calls(of: &CallSource<'_>, unchecked: &BTreeSet<String>) -> Vec<Call> {
    let messages: Vec<Value> = serde_json::from_str(of.messages).unwrap_or_default();
    let mut rows: Vec<Call> = Vec::new();
    let mut turn = 0;
    let assistants = messages.iter().enumerate().filter(|(_, message)| message["role"] == "assistant");
    for (at, message) in assistants {
        let results = messages[at + 1..].iter().take_while(|message| message["role"] == "tool");
        let answers: Vec<Answer> = results.map(Answer::of).collect();
        let made = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        // Results of calls that are not in the message: they could not be parsed, or in earlier versions others of their turn.
        let is_unread = |answer: &&Answer| made.iter().all(|call| call["id"] != answer.call_id.as_str());
        let row = |tool: &str, call_id: &str, answer: Option<&Answer>| {
            let error = answer.and_then(|answer| answer.error);
            let is_checked = answer.is_some() && !tool.is_empty() && !unchecked.contains(tool);
            Call {
                trajectory_id: of.trajectory_id.to_owned(),
                scenario_id: of.scenario_id.to_owned(),
                turn,
                call_id: call_id.to_owned(),
                tool: tool.to_owned(),
                result_bytes: answer.map(|answer| answer.bytes),
                clipped: answer.is_some_and(|answer| answer.clipped),
                is_error: error.is_some(),
                error: error.map(|error| error.to_string()),
                fits_schema: match error {
                    Some(CallError::Schema) => Some(false),
                    Some(CallError::Unparsable | CallError::UnknownTool) => None,
                    _ => is_checked.then_some(true),
                },
                ..Call::default()
            }
        };
        let unread = |answer: &Answer| {
            let arguments = answer.arguments.clone();
            Call { arguments, ..row(&answer.tool, &answer.call_id, Some(answer)) }
        };
        let mut rest = answers.iter().peekable();
        for call in made {
            rows.extend(iter::from_fn(|| rest.next_if(is_unread)).map(unread));
            let id = call["id"].as_str().unwrap_or_default();
            // In order, because a policy may repeat an id.
            let found = rest.next_if(|answer| answer.call_id == id);
            let found = found.or_else(|| answers.iter().find(|answer| answer.call_id == id));
            let function = &call["function"];
            let tool = function["name"].as_str().unwrap_or_default();
            let form = Some(call["form"].as_str().unwrap_or("template").to_owned());
            let arguments = function.get("arguments").map(Value::to_string);
            rows.push(Call { arguments, form, ..row(tool, id, found) });
        }
        rows.extend(rest.filter(is_unread).map(unread));
        turn += 1;
    }
    // The call that ended the episode has no result.
    let unanswered = rows.iter_mut().find(|row| row.turn + 1 == turn && row.result_bytes.is_none());
    match (of.end, unanswered) {
        (Some(End::ServerDown), Some(row)) => {
            (row.is_error, row.error) = (true, Some(CallError::ServerDown.to_string()));
            row.fits_schema = (!unchecked.contains(&row.tool)).then_some(true);
        }
        (Some(End::Completed), Some(row)) => row.fits_schema = Some(true),
        _ => {}
    }
    for (index, row) in rows.iter_mut().enumerate() {
        row.index = index as u32;
    }
    rows
}

/// Errors of the server that the rows do not show, because an earlier version did not mark them in `messages`.
/// `tool_errors`: as the episode counted them.
pub fn unmarked_errors(tool_errors: u32, rows: &[Call]) -> u32 {
    use CallError::{NoCallsLeft, Refused, Schema, Tool, UnknownTool};

    const COUNTED: [CallError; 5] = [Tool, Schema, UnknownTool, NoCallsLeft, Refused];
    let is_counted = |row: &&Call| {
        row.error.as_deref().is_some_and(|error| COUNTED.iter().any(|counted| counted.name() == error))
    };
    tool_errors.saturating_sub(rows.iter().filter(is_counted).count() as u32)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn episode(messages: &Value, end: End) -> Trajectory {
        Trajectory {
            id: "t".into(),
            scenario_id: "s".into(),
            messages: messages.to_string(),
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
    fn messages_of_earlier_versions_give_what_their_texts_tell() {
        let messages = json!([
            assistant(&[("1", "find", json!({}))]),
            {"role": "tool", "tool_call_id": "1", "name": "find", "content": "error: no tool named find; there is x"},
            assistant(&[("2", "look", json!({}))]),
            {"role": "tool", "tool_call_id": "2", "name": "look", "content": "a\n[12 tokens left out]\nb"},
        ]);
        let trajectory = episode(&messages, End::NoCall);
        assert_eq!(
            shown(&trajectory),
            ["0.0 find Some(\"unknown_tool\") Some(37) false None", "1.1 look None Some(24) true Some(true)"]
        );
        assert_eq!(unmarked_errors(2, &calls(&(&trajectory).into(), &BTreeSet::new())), 1);
    }

    #[test]
    fn messages_of_any_shape_are_read() {
        for messages in
            [json!(null), json!([1, "a", {"role": "tool"}, {"role": "assistant", "tool_calls": [null, {}]}])]
        {
            let rows = calls(&(&episode(&messages, End::NoCall)).into(), &BTreeSet::new());
            assert!(rows.iter().all(|row| row.tool.is_empty()));
        }
    }
}
