//! The spans of a run and of its episodes.
//!
//! Times of single turns exist in no artifact. An episode has the begin and end of its stage, and its turns and calls follow
//! each other in nominal steps of at most a millisecond; the attribute `mcprl.times` says so.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::super::{Log, TrackError, proto::Message};
use crate::{
    data::{self, DataError, EpisodeRow, EpisodeSampled, Tool, TurnTokens},
    eval::Mode,
    hash::{Encoder, hex},
    view::{
        Run, Stage,
        conversation::{self, Called, Turn, conversation, turns},
        episodes::EpisodeTable,
        exam::{Part, parts},
    },
};

/// Bytes of a text that are sent.
const TEXT: usize = 16 << 10;
/// Bytes of a list of tools that are sent.
const TOOLS: usize = 256 << 10;
/// Episodes that are in memory at once.
const CHUNK: usize = 256;
/// Nanoseconds of a nominal step.
const STEP: u64 = 1_000_000;

/// The kind of spans within a program.
const INTERNAL: u64 = 1;

/// Who answers, in the words of the conventions.
const PROVIDER: &str = "mcprl";

/// A value of an attribute.
fn value(value: &Value) -> Option<Message> {
    let message = Message::new();
    Some(match value {
        Value::String(text) => message.bytes(1, clean(text).as_ref()),
        Value::Bool(is) => message.varint(2, u64::from(*is)),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => message.varint(3, whole as u64),
            (None, Some(number)) => message.double(4, number),
            (None, None) => return None,
        },
        Value::Array(items) => {
            let items =
                items.iter().filter_map(self::value).fold(Message::new(), |all, item| all.message(1, item));
            message.message(5, items)
        }
        Value::Null | Value::Object(_) => return None,
    })
}

/// Databases behind some back ends refuse this character.
fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The attributes with a value, as fields of a message.
fn with_attributes(message: Message, field: u32, attributes: &[(&str, Value)]) -> Message {
    attributes.iter().fold(message, |message, (key, attribute)| match value(attribute) {
        Some(value) => message.message(field, Message::new().bytes(1, key).message(2, value)),
        None => message,
    })
}

/// The start of a long text, with a note.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return text.into();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}… [{} bytes in all]", &text[..end], text.len()).into()
}

/// Where a span is.
#[derive(Clone, Copy, Default)]
struct SpanIds {
    trace: [u8; 16],
    span: [u8; 8],
}

/// Ids of a trace and of its root.
fn place(kind: &str, parts: &[&str]) -> SpanIds {
    let mut encoder = Encoder::new("mcprl otlp id v1");
    encoder.text(kind);
    for part in parts {
        encoder.text(part);
    }
    let digest = encoder.finish();
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    trace.copy_from_slice(&digest.as_bytes()[..16]);
    span.copy_from_slice(&digest.as_bytes()[16..24]);
    SpanIds { trace, span }
}

impl SpanIds {
    /// The id of a span in the same trace.
    fn inner(self, name: &str) -> Self {
        let inner = place("inner", &[&hex(&self.trace), &hex(&self.span), name]);
        Self { trace: self.trace, span: inner.span }
    }
}

#[derive(Default)]
struct Span<'a> {
    place: SpanIds,
    parent: Option<SpanIds>,
    name: String,
    /// Nanoseconds since the epoch.
    begin: u64,
    end: u64,
    attributes: Vec<(&'a str, Value)>,
    link: Option<SpanIds>,
    /// Message of an error.
    error: Option<String>,
}

impl Span<'_> {
    fn encode(self) -> Vec<u8> {
        let Self { place, parent, name, begin, end, attributes, link, error } = self;
        let mut span = Message::new().bytes(1, place.trace).bytes(2, place.span);
        if let Some(parent) = parent {
            span = span.bytes(4, parent.span);
        }
        span = span.bytes(5, clean(&name).as_ref()).varint(6, INTERNAL).fixed64(7, begin).fixed64(8, end);
        span = with_attributes(span, 9, &attributes);
        if let Some(link) = link {
            span = span.message(13, Message::new().bytes(1, link.trace).bytes(2, link.span));
        }
        if let Some(error) = error {
            span = span.message(15, Message::new().bytes(2, clean(&error).as_ref()).varint(3, 2));
        }
        span.into_bytes()
    }
}

/// The trace of a run.
pub struct Trace<'a> {
    pub run: &'a Run,
    pub log: &'a Log,
    /// Whether texts of servers, tasks and policies are sent.
    pub content: bool,
}

impl Trace<'_> {
    /// In another cache, another run may have the same id.
    fn place(&self) -> SpanIds {
        place("run", &[&self.run.id, &self.log.began_ms.to_string()])
    }

    fn stage_place(&self, stage: &Stage) -> SpanIds {
        self.place().inner(&stage.id)
    }

    /// A request with these spans.
    pub fn request(&self, spans: Vec<Vec<u8>>) -> Vec<u8> {
        let attributes = [
            ("service.name", json!("mcprl")),
            ("service.version", json!(self.run.versions.last())),
            ("service.instance.id", json!(self.run.id)),
            ("mcprl.run", json!(self.run.id)),
            ("mcprl.run_file", json!(self.log.name)),
        ];
        let scope = Message::new().bytes(1, "mcprl").bytes(2, env!("CARGO_PKG_VERSION"));
        let spans = spans.into_iter().fold(Message::new().message(1, scope), |all, span| all.bytes(2, span));
        let resource = with_attributes(Message::new(), 1, &attributes);
        let spans = Message::new().message(1, resource).message(2, spans);
        Message::new().message(1, spans).into_bytes()
    }

    /// The span of a run that is over.
    pub fn run_span(&self) -> Vec<u8> {
        let state = serde_json::to_value(self.log.state).unwrap_or_default();
        let is_failed = state == "failed";
        let span = Span {
            place: self.place(),
            name: format!("run {}", self.log.name),
            begin: nanoseconds(self.log.began_ms),
            end: nanoseconds(self.log.ended_ms),
            attributes: vec![
                ("mcprl.run", json!(self.run.id)),
                ("mcprl.state", state),
                ("mcprl.seed", json!(self.run.seed)),
                ("error.type", if is_failed { json!("failed") } else { Value::Null }),
            ],
            error: is_failed.then(|| "the run failed".to_owned()),
            ..Span::default()
        };
        span.encode()
    }

    /// The span of a finished stage.
    pub fn stage_span(&self, stage: &Stage) -> Vec<u8> {
        let (begin, end) = self.times(stage);
        let mut attributes = vec![
            ("mcprl.run", json!(self.run.id)),
            ("mcprl.stage", json!(stage.id)),
            ("mcprl.kind", json!(stage.kind)),
            ("mcprl.key", json!(stage.key)),
            ("mcprl.state", json!(stage.state)),
            ("mcprl.iteration", json!(stage.iteration.as_ref().map(|(_, number)| number))),
        ];
        let metrics = stage.metrics.iter();
        let metrics: Vec<_> = metrics.map(|(name, value)| (format!("mcprl.metrics.{name}"), value)).collect();
        attributes.extend(metrics.iter().map(|(name, value)| (name.as_str(), json!(value))));
        if stage.artifact("trajectories").is_some() && self.content {
            let tools = self.run.tools(stage).unwrap_or_default();
            let tool = |tool: &Tool| {
                let parameters: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
                json!({
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": parameters,
                })
            };
            let text = tools.iter().map(tool).collect::<Value>().to_string();
            // A cut list is not JSON.
            if text.len() <= TOOLS {
                attributes.push(("gen_ai.tool.definitions", json!(text)));
            }
        }
        let span = Span {
            place: self.stage_place(stage),
            parent: Some(self.place()),
            name: stage.id.clone(),
            begin,
            end,
            attributes,
            ..Span::default()
        };
        span.encode()
    }

    /// Begin and end of a stage, in nanoseconds.
    fn times(&self, stage: &Stage) -> (u64, u64) {
        let begin = stage.started_ms.or(stage.ended_ms).unwrap_or(self.log.began_ms);
        (nanoseconds(begin), nanoseconds(stage.ended_ms.unwrap_or(begin).max(begin)))
    }
}

fn nanoseconds(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

/// The episodes of a stage.
pub struct Episodes<'a> {
    trace: &'a Trace<'a>,
    stage: &'a Stage,
    table: &'a EpisodeTable,
    parts: Vec<Part>,
}

impl<'a> Episodes<'a> {
    /// At most `limit` episodes: those of the first scenarios, whole groups if possible.
    pub fn new(trace: &'a Trace<'a>, stage: &'a Stage, table: &'a EpisodeTable, limit: usize) -> Self {
        let mut left = limit;
        let mut parts = parts(stage, table);
        for part in &mut parts {
            part.rows.truncate(left);
            left -= part.rows.len();
        }
        Self { trace, stage, table, parts }
    }

    /// The spans of all episodes.
    ///
    /// # Errors
    /// If an episode cannot be read, or if `send` fails.
    pub fn each(&self, mut send: impl FnMut(Vec<u8>) -> Result<(), TrackError>) -> Result<(), TrackError> {
        for part in &self.parts {
            for rows in part.rows.chunks(CHUNK) {
                let path = &self.table.source.path;
                let episodes = data::read_part::<EpisodeRow>(path, Some(rows)).map_err(unreadable)?;
                let sampled = data::read_part::<EpisodeSampled>(path, Some(rows)).map_err(unreadable)?;
                for ((row, episode), sampled) in rows.iter().zip(&episodes).zip(&sampled) {
                    let episode = Episode { of: self, part, row: *row, episode };
                    for span in episode.spans(&sampled.turns()) {
                        send(span.encode())?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn unreadable(source: DataError) -> TrackError {
    TrackError::Episodes(Box::new(source))
}

/// One episode.
struct Episode<'a> {
    of: &'a Episodes<'a>,
    part: &'a Part,
    row: usize,
    episode: &'a EpisodeRow,
}

impl Episode<'_> {
    /// A text of the server, the task or the policy, if those are sent.
    fn text(&self, text: &str) -> Value {
        if self.of.trace.content { json!(cut(text, TEXT)) } else { Value::Null }
    }

    fn json(&self, value: &Value) -> Value {
        if self.of.trace.content { json!(value.to_string()) } else { Value::Null }
    }

    /// The root first, then turns and calls in order.
    fn spans(&self, tokens: &[TurnTokens]) -> Vec<Span<'static>> {
        let Self { of: Episodes { trace, stage, table, .. }, part, episode, .. } = self;
        let spoken = conversation(episode);
        let turns = turns(&spoken);
        // Without a run of sampled tokens for each turn, the tokens belong to no turn.
        let by_turn = tokens.len() == turns.len();
        let mode = part.mode.map(Mode::name);
        let of_run = hex(&trace.place().trace);
        let root =
            place("episode", &[&of_run, &stage.id, &part.policy, mode.unwrap_or_default(), &episode.id]);
        let steps = turns.iter().map(|turn| 1 + turn.calls.len() as u64).sum::<u64>().max(1);
        let (begin, end) = trace.times(stage);
        let step = ((end - begin) / steps).clamp(1, STEP);
        let end = end.max(begin + step * steps);
        let mut at = begin;
        let mut next = || {
            at += step;
            (at - step, at)
        };

        let found = &table.episodes[self.row];
        let scenario = table.scenarios.get(&episode.scenario_id);
        let sum = |count: fn(&TurnTokens) -> usize| tokens.iter().map(count).sum::<usize>();
        let is_error = !["completed", "no_call"].contains(&episode.end.as_str());
        let common = || {
            vec![
                ("gen_ai.provider.name", json!(PROVIDER)),
                ("gen_ai.request.model", json!(part.policy)),
                ("gen_ai.conversation.id", json!(episode.id)),
            ]
        };
        let mut attributes = common();
        attributes.extend([
            ("gen_ai.operation.name", json!("invoke_agent")),
            ("gen_ai.agent.name", json!(part.policy)),
            ("gen_ai.agent.version", json!(episode.policy.chars().take(12).collect::<String>())),
            ("gen_ai.usage.input_tokens", json!(sum(|turn| turn.context))),
            ("gen_ai.usage.output_tokens", json!(sum(|turn| turn.sampled))),
            ("mcprl.run", json!(trace.run.id)),
            ("mcprl.stage", json!(stage.id)),
            ("mcprl.episode", json!(episode.id)),
            ("mcprl.scenario", json!(episode.scenario_id)),
            ("mcprl.family", json!(episode.family)),
            ("mcprl.split", json!(episode.split)),
            ("mcprl.sample", json!(episode.sample)),
            ("mcprl.mode", json!(mode)),
            ("mcprl.server", json!(scenario.and_then(|scenario| scenario.server.as_ref()))),
            ("mcprl.end", json!(episode.end)),
            ("mcprl.correct", json!(episode.correct)),
            ("mcprl.reward", json!(found.reward)),
            ("mcprl.advantage", json!(found.advantage.and_then(Result::ok))),
            ("mcprl.no_signal", json!(found.advantage.and_then(Result::err))),
            ("mcprl.turns", json!(episode.turns)),
            ("mcprl.calls", json!(episode.calls)),
            ("mcprl.tool_errors", json!(episode.tool_errors)),
            ("mcprl.parse_failures", json!(episode.parse_failures)),
            ("mcprl.times", json!("the stage's; those within the episode are nominal")),
            ("error.type", if is_error { json!(episode.end) } else { Value::Null }),
        ]);
        let first = turns.first().map_or(spoken.len(), |turn| turn.at);
        let (system, input): (Vec<_>, Vec<_>) =
            spoken[..first].iter().partition(|message| message.role == "system");
        let text = |text: &str| json!({ "type": "text", "content": cut(text, TEXT) });
        let system: Value = system.iter().map(|message| text(&message.text)).collect();
        let answer = episode.answer.as_deref().or(spoken.last().map(|message| message.text.as_str()));
        let output = json!([{
            "role": "assistant",
            "parts": [text(answer.unwrap_or_default())],
            "finish_reason": "stop",
        }]);
        let input: Value = input.iter().map(|message| message_json(message, &[])).collect();
        let expected = scenario.and_then(|scenario| scenario.answer.as_deref());
        attributes.extend([
            ("gen_ai.system_instructions", self.json(&system)),
            ("gen_ai.input.messages", self.json(&input)),
            ("gen_ai.output.messages", self.json(&output)),
            ("mcprl.answer", self.text(episode.answer.as_deref().unwrap_or_default())),
            ("mcprl.expected", self.text(expected.unwrap_or_default())),
        ]);
        let mut spans = vec![Span {
            place: root,
            parent: None,
            name: format!("invoke_agent {}", part.policy),
            begin,
            end,
            attributes,
            link: Some(trace.stage_place(stage)),
            error: is_error.then(|| format!("the episode ended {}", episode.end)),
        }];
        let mut read = 0;
        for (number, turn) in turns.iter().enumerate() {
            let (begin, end) = next();
            let input = spoken[read..turn.at].iter().filter(|message| message.role != "system");
            let input: Value = input.map(|message| message_json(message, &[])).collect();
            let reason = self.finish_reason(turn, number + 1 == turns.len());
            let mut output = message_json(&spoken[turn.at], &turn.calls);
            output["finish_reason"] = json!(reason);
            let mut attributes = common();
            attributes.extend([
                ("gen_ai.operation.name", json!("chat")),
                ("gen_ai.response.model", json!(part.policy)),
                ("gen_ai.response.finish_reasons", json!([reason])),
                ("mcprl.turn", json!(number)),
                ("gen_ai.input.messages", self.json(&input)),
                ("gen_ai.output.messages", self.json(&json!([output]))),
            ]);
            if by_turn {
                attributes.push(("gen_ai.usage.input_tokens", json!(tokens[number].context)));
                attributes.push(("gen_ai.usage.output_tokens", json!(tokens[number].sampled)));
            }
            let place = root.inner(&number.to_string());
            spans.push(Span {
                place,
                parent: Some(root),
                name: format!("chat {}", part.policy),
                begin,
                end,
                attributes,
                ..Span::default()
            });
            read = turn.at + 1;
            for (index, called) in turn.calls.iter().enumerate() {
                let (begin, end) = next();
                let place = place.inner(&index.to_string());
                spans.push(self.call(called, &spoken, number, (place, root), (begin, end)));
            }
        }
        spans
    }

    fn call(
        &self,
        called: &Called,
        spoken: &[conversation::Message],
        turn: usize,
        (place, parent): (SpanIds, SpanIds),
        (begin, end): (u64, u64),
    ) -> Span<'static> {
        let result = called.result.map(|at| &spoken[at]);
        // The call that ended the episode has no result.
        let ended = (result.is_none() && self.episode.end == "server_down").then_some("server_down");
        let error = result.and_then(|result| result.error.as_deref()).or(ended).map(error_type);
        let bytes = result.map(|result| result.bytes.unwrap_or(result.text.len() as u64));
        let arguments = Some(&called.arguments).filter(|arguments| !arguments.is_null());
        let attributes = vec![
            ("gen_ai.operation.name", json!("execute_tool")),
            ("gen_ai.provider.name", json!(PROVIDER)),
            ("gen_ai.conversation.id", json!(self.episode.id)),
            ("gen_ai.tool.name", json!(called.tool)),
            ("gen_ai.tool.type", json!("function")),
            ("gen_ai.tool.call.id", json!(called.id)),
            ("mcprl.turn", json!(turn)),
            ("mcprl.result_bytes", json!(bytes)),
            ("mcprl.clipped", json!(result.map(|result| result.clipped))),
            ("gen_ai.tool.call.arguments", json!(arguments.map(|given| self.text(&given.to_string())))),
            ("gen_ai.tool.call.result", json!(result.map(|result| self.text(&result.text)))),
            ("error.type", json!(error)),
        ];
        let failed = error.map(|error| match result.filter(|_| self.of.trace.content) {
            Some(result) => cut(&result.text, 1000).into_owned(),
            None => error.to_owned(),
        });
        Span {
            place,
            parent: Some(parent),
            name: format!("execute_tool {}", called.tool),
            begin,
            end,
            attributes,
            error: failed,
            ..Span::default()
        }
    }

    fn finish_reason(&self, turn: &Turn, is_last: bool) -> &'static str {
        match (is_last, self.episode.end.as_str(), turn.calls.is_empty()) {
            (true, "out_of_tokens", _) => "length",
            (_, _, false) => "tool_call",
            (_, _, true) => "stop",
        }
    }
}

/// The value of `error.type` for a failed call. The conventions for MCP name the server's own errors.
fn error_type(error: &str) -> &str {
    if error == "tool" { "tool_error" } else { error }
}

/// A message as the conventions have it.
fn message_json(message: &conversation::Message, calls: &[Called]) -> Value {
    let mut parts = Vec::new();
    if let Some(reasoning) = &message.reasoning {
        parts.push(json!({ "type": "reasoning", "content": cut(reasoning, TEXT) }));
    }
    if message.role == "tool" {
        let id = message.call_id.as_deref();
        parts.push(json!({ "type": "tool_call_response", "id": id, "response": cut(&message.text, TEXT) }));
    } else if !message.text.is_empty() {
        parts.push(json!({ "type": "text", "content": cut(&message.text, TEXT) }));
    }
    for called in calls {
        let arguments = called.arguments.to_string();
        let arguments =
            if arguments.len() <= TEXT { called.arguments.clone() } else { json!(cut(&arguments, TEXT)) };
        parts.push(
            json!({ "type": "tool_call", "id": called.id, "name": called.tool, "arguments": arguments }),
        );
    }
    json!({ "role": message.role, "parts": parts })
}
