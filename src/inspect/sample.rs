//! One episode as a sample.

use serde_json::{Map, Value, json};

use super::{Common, Log, id, time};
use crate::{
    data::{EpisodeRow, EpisodeSampled, TurnTokens},
    text::start_of,
    view::{
        conversation::{Called, Message, Turn, conversation, turns},
        episode::components,
    },
};

/// Longest text in an event that is no attachment, in characters.
const INLINE: usize = 100;
/// Longest text of a summary, in characters.
const SUMMARY: usize = 1000;
/// Largest list of tools that every model event repeats, in bytes of JSON. A larger one is in the first event of a sample.
const REPEATED_TOOLS: usize = 16 << 10;

pub struct Sample {
    /// From 1.
    pub epoch: u32,
    pub json: Value,
    /// Turns of the policy.
    pub turns: usize,
    /// Tokens of all turns.
    pub usage: TurnTokens,
    /// Values of the scores by name.
    pub scores: Vec<(String, f64)>,
}

/// Tokens as an endpoint counts them: the context anew at every turn.
pub fn add_usage(sum: &mut TurnTokens, more: TurnTokens) {
    sum.context += more.context;
    sum.sampled += more.sampled;
}

/// Tokens as Inspect's `ModelUsage`.
pub fn usage_json(TurnTokens { context, sampled }: TurnTokens) -> Value {
    json!({ "input_tokens": context, "output_tokens": sampled, "total_tokens": context + sampled })
}

impl Sample {
    pub fn new(
        log: &Log<'_>,
        common: &Common,
        row: usize,
        episode: &EpisodeRow,
        sampled: &EpisodeSampled,
    ) -> Self {
        let indexed = &log.table.episodes[row];
        let scenario = log.table.scenarios.get(&episode.scenario_id);
        let epoch = 1 + episode.sample.saturating_sub(log.part.first_sample);
        let spoken = conversation(episode);
        let turns = turns(&spoken);
        let messages = messages(&spoken, &turns, &episode.id, &common.model);
        let tokens = sampled.turns();
        // Without a run of sampled tokens for each turn, the episode's tokens belong to no turn.
        let by_turn = tokens.len() == turns.len();
        let mut usage = TurnTokens::default();
        tokens.iter().for_each(|turn| add_usage(&mut usage, *turn));

        let task =
            || spoken.iter().find(|message| message.role == "user").map(|message| message.text.clone());
        let input = scenario.map(|scenario| scenario.task.clone()).or_else(task).unwrap_or_default();
        let target = scenario.and_then(|scenario| scenario.answer.clone()).unwrap_or_default();
        let (scores, values) = scores(common, episode);
        let metadata = without_nulls(json!({
            "family": episode.family,
            "split": episode.split,
            "policy": log.part.policy,
            "cluster": common.clusters.get(&episode.scenario_id),
            "server": scenario.and_then(|scenario| scenario.server.as_ref()),
            "checks": scenario.and_then(|scenario| scenario.checks.as_ref()).map(|checks| &checks.0),
            "end": episode.end,
            "turns": episode.turns,
            "calls": episode.calls,
            "tool_errors": episode.tool_errors,
            "parse_failures": episode.parse_failures,
            "advantage": indexed.advantage.and_then(Result::ok),
            "no_signal": indexed.advantage.and_then(Result::err),
            "episode": episode.id,
        }));

        let last = messages.iter().rfind(|message| message["role"] == "assistant");
        let stop = stop_reason(episode, turns.last().is_some_and(|turn| !turn.calls.is_empty()));
        let mut output = json!({ "model": common.model, "choices": [] });
        if let Some(message) = last {
            output["choices"] = json!([{ "message": message, "stop_reason": stop }]);
            let text =
                spoken.iter().rfind(|message| message.role == "assistant").map(|message| &message.text);
            output["completion"] = json!(episode.answer.as_ref().or(text));
            if let Some(turn) = tokens.last().filter(|_| by_turn) {
                output["usage"] = usage_json(*turn);
            }
        }
        let mut attachments = Map::new();
        let pool: Vec<Value> = messages.iter().map(|message| condensed(message, &mut attachments)).collect();
        let mut events = Events { common, episode: &episode.id, row, list: Vec::new() };
        events.add("sample_init", json!({
            "sample": { "input": input, "target": target, "id": episode.scenario_id, "metadata": metadata },
        }));
        let repeats = common.tools.iter().map(|tool| tool.to_string().len()).sum::<usize>() <= REPEATED_TOOLS;
        for (number, turn) in turns.iter().enumerate() {
            let is_last = number + 1 == turns.len();
            let reason = match (is_last, turn.calls.is_empty()) {
                (true, _) => stop,
                (false, true) => "stop",
                (false, false) => "tool_calls",
            };
            let mut output = json!({
                "model": common.model,
                "choices": [{ "message": pool[turn.at], "stop_reason": reason }],
            });
            if by_turn {
                output["usage"] = usage_json(tokens[number]);
            }
            events.add(
                "model",
                json!({
                    "model": common.model,
                    "input": [],
                    "input_refs": [[0, turn.at]],
                    "tools": if repeats || number == 0 { common.tools.as_slice() } else { &[] },
                    "tool_choice": "auto",
                    "config": {},
                    "output": output,
                }),
            );
            for called in &turn.calls {
                let Some(at) = called.result else { continue };
                let mut event = tool_call(called);
                if let Some(fields) = event.as_object_mut() {
                    fields.remove("parse_error");
                }
                event["result"] = messages[at]["content"].clone();
                event["message_id"] = messages[at]["id"].clone();
                if let Some(error) = messages[at].get("error") {
                    event["error"] = error.clone();
                }
                if let Some(bytes) = spoken[at].bytes.filter(|_| spoken[at].clipped) {
                    event["truncated"] = json!([bytes, spoken[at].text.len()]);
                }
                events.add("tool", event);
            }
        }
        for (name, score) in &scores {
            events.add("score", json!({ "score": score, "target": target, "scorer": name }));
        }
        let events = events.list;

        let mut json = json!({
            "id": episode.scenario_id,
            "epoch": epoch,
            "input": input,
            "target": target,
            "messages": messages,
            "output": output,
            "scores": scores,
            "metadata": metadata,
            "store": {},
            "events": events,
            "model_usage": { common.model.as_str(): usage_json(usage) },
            "role_usage": {},
            "uuid": id("sample", &[&log.run.id, &log.stage.id, &log.part.policy, &episode.id]),
            "error_retries": [],
            "attachments": attachments,
            "events_data": { "messages": pool, "calls": [] },
            "turn_count": turns.len(),
        });
        if let Some(limit) = limit(log, &episode.end) {
            json["limit"] = limit;
        }
        Self { epoch, json, turns: turns.len(), usage, scores: values }
    }

    /// The sample without its conversation, and with the start of long texts.
    pub fn summary(&self) -> Value {
        let mut summary = Map::new();
        let names =
            ["id", "epoch", "input", "target", "metadata", "scores", "model_usage", "role_usage", "uuid"];
        for name in names {
            summary.insert(name.into(), thin(&self.json[name]));
        }
        if let Some(limit) = self.json.get("limit") {
            summary.insert("limit".into(), limit["type"].clone());
        }
        summary.insert("completed".into(), true.into());
        summary.insert("message_count".into(), self.json["messages"].as_array().map_or(0, Vec::len).into());
        summary.insert("turn_count".into(), self.turns.into());
        Value::Object(summary)
    }
}

/// The value with the start of each long text.
fn thin(value: &Value) -> Value {
    match value {
        Value::String(text) => start_of(text, SUMMARY).into(),
        Value::Array(items) => items.iter().map(thin).collect(),
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), thin(value))).collect(),
        value => value.clone(),
    }
}

/// The message with long texts moved to the attachments, by digest. Inspect resolves them in contents alone.
fn condensed(message: &Value, attachments: &mut Map<String, Value>) -> Value {
    let mut move_text = |text: &mut Value| {
        let Some(long) = text.as_str().filter(|text| text.chars().nth(INLINE).is_some()) else { return };
        let key = id("attachment", &[long]);
        let moved = std::mem::replace(text, format!("attachment://{key}").into());
        attachments.insert(key, moved);
    };
    let mut message = message.clone();
    match &mut message["content"] {
        Value::Array(parts) => {
            for part in parts {
                let field = if part["type"] == "reasoning" { "reasoning" } else { "text" };
                move_text(&mut part[field]);
            }
        }
        content => move_text(content),
    }
    message
}

/// Events of a sample, a nominal millisecond apart.
struct Events<'a> {
    common: &'a Common,
    episode: &'a str,
    row: usize,
    list: Vec<Value>,
}

impl Events<'_> {
    fn add(&mut self, kind: &str, fields: Value) {
        let number = self.list.len();
        let mut event = json!({
            "uuid": id("event", &[self.episode, &self.row.to_string(), &number.to_string()]),
            "timestamp": time(self.common.begin + number as u64),
            "working_start": number as f64 / 1000.0,
            "event": kind,
        });
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.list.push(event);
    }
}

/// A call as Inspect's `ToolCall`.
fn tool_call(called: &Called) -> Value {
    let mut call = json!({ "id": called.id, "function": called.tool, "arguments": {}, "type": "function" });
    match &called.arguments {
        Value::Object(_) => call["arguments"] = called.arguments.clone(),
        Value::Null => {}
        other => {
            call["arguments"] = json!({ "value": other });
            call["parse_error"] = "the arguments are not an object".into();
        }
    }
    if let Some(error) = &called.parse_error {
        call["parse_error"] = error.as_str().into();
    }
    call
}

/// The messages as Inspect's `ChatMessage`.
pub(super) fn messages(spoken: &[Message], turns: &[Turn], episode: &str, model: &str) -> Vec<Value> {
    let mut of_turn = turns.iter();
    let mut calls: &[Called] = &[];
    let message = |(at, message): (usize, &Message)| {
        let mut json = json!({ "id": id("message", &[episode, &at.to_string()]), "role": message.role });
        json["content"] = message.text.as_str().into();
        match message.role.as_str() {
            "system" => {}
            "user" => json["source"] = "input".into(),
            "assistant" => {
                calls = of_turn.next().map_or(&[], |turn| turn.calls.as_slice());
                if let Some(reasoning) = &message.reasoning {
                    let mut parts = vec![json!({ "type": "reasoning", "reasoning": reasoning })];
                    if !message.text.is_empty() {
                        parts.push(json!({ "type": "text", "text": message.text }));
                    }
                    json["content"] = parts.into();
                }
                json["source"] = "generate".into();
                json["model"] = model.into();
                if !calls.is_empty() {
                    json["tool_calls"] = calls.iter().map(tool_call).collect();
                }
            }
            "tool" => {
                let call = calls.iter().find(|called| called.result == Some(at));
                let id = call.map(|called| called.id.as_str()).or(message.call_id.as_deref());
                json["tool_call_id"] = id.unwrap_or_default().into();
                json["function"] = message.tool.as_deref().unwrap_or_default().into();
                if let Some(error) = &message.error {
                    json["error"] = json!({ "type": error_type(error), "message": message.text });
                }
                if message.clipped {
                    json["metadata"] = json!({ "clipped_from_bytes": message.bytes });
                }
            }
            // Another program's episode.
            role => {
                json["metadata"] = json!({ "role": role });
                json["role"] = "user".into();
            }
        }
        json
    };
    spoken.iter().enumerate().map(message).collect()
}

/// Inspect's name of a call's error.
fn error_type(error: &str) -> &'static str {
    match error {
        // Inspect also reports an unknown tool and wrong arguments so.
        "unparsable" | "unknown_tool" | "schema" => "parsing",
        "no_calls_left" => "limit",
        "refused" => "approval",
        _ => "unknown",
    }
}

fn stop_reason(episode: &EpisodeRow, called: bool) -> &'static str {
    match (episode.end.as_str(), called) {
        ("out_of_tokens" | "out_of_turn_tokens", _) => "max_tokens",
        (_, true) => "tool_calls",
        (_, false) => "stop",
    }
}

/// The limit that ended the episode.
fn limit(log: &Log<'_>, end: &str) -> Option<Value> {
    let (kind, param) = match end {
        "out_of_turns" => ("turn", "max_turns"),
        "out_of_turn_tokens" => ("token", "max_turn_tokens"),
        "out_of_tokens" => ("token", "max_episode_tokens"),
        _ => return None,
    };
    let limit = log.stage.params.get(param).and_then(Value::as_f64).unwrap_or_default();
    Some(json!({ "type": kind, "limit": limit, "reason": format!("ended {end}") }))
}

/// Scores of an episode by name, and their values as numbers.
fn scores(common: &Common, episode: &EpisodeRow) -> (Map<String, Value>, Vec<(String, f64)>) {
    let (mut scores, mut values) = (Map::new(), Vec::new());
    let explanation = (episode.end != "completed").then(|| format!("the episode ended {}", episode.end));
    if let Some(right) = episode.correct {
        let value = if right { "C" } else { "I" };
        let score = json!({ "value": value, "answer": episode.answer, "explanation": explanation });
        scores.insert("correct".into(), without_nulls(score));
        values.push(("correct".to_owned(), f64::from(u8::from(right))));
    }
    for (name, rewards) in &common.rewards {
        let Some(reward) = rewards.get(&episode.id).filter(|reward| reward.reward.is_finite()) else {
            continue;
        };
        let parts = components(&reward.components).into_iter();
        let parts: Map<String, Value> = parts.map(|part| (part.name, part.value.into())).collect();
        let score = json!({
            "value": reward.reward,
            "answer": episode.answer,
            "explanation": reward.explanation,
            "metadata": parts,
        });
        scores.insert(name.clone(), without_nulls(score));
        values.push((name.clone(), reward.reward.into()));
    }
    (scores, values)
}

fn without_nulls(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    value
}
