//! A trace as an episode.

use serde_json::{Value, json};

use super::{Prompt, Reasoning, Traces};
use crate::{
    agent::{History, Toolbox, answer_of},
    answer::COMPLETE_TASK,
    chat::{Chat, ToolCall},
    data::{AnswerSource, result_view},
    openai::Rows,
    traces::Trace,
};

/// Writes episodes in the form of a policy.
pub struct Writer<'w> {
    pub chat: &'w Chat,
    /// What the agent has; none if traces bring their tools.
    pub toolbox: Option<&'w Toolbox>,
    /// The agent's system prompt.
    pub system: Option<&'w str>,
    pub settings: &'w Traces,
}

/// An episode.
pub struct Episode {
    pub history: History,
    pub answer: Option<String>,
    pub answer_source: Option<AnswerSource>,
    pub repairs: Vec<String>,
}

impl Writer<'_> {
    /// # Errors
    /// Why the trace cannot be an episode.
    pub fn episode(&self, trace: Trace) -> Result<Episode, String> {
        let Trace { messages, tools, mut repairs, .. } = trace;
        let functions = match self.toolbox {
            Some(toolbox) => toolbox.functions().to_vec(),
            None => tools.unwrap_or_default(),
        };
        let named = functions.iter().map(|tool| tool.get("function").unwrap_or(tool)["name"].as_str());
        let offered: Vec<&str> = named.map(Option::unwrap_or_default).collect();
        let mut messages = self.with_system(messages);
        self.rename(&mut messages, &offered, &mut repairs)?;
        without_nulls(&mut messages, &functions, &mut repairs);
        self.cut_results(&mut messages, &mut repairs);
        if self.settings.reasoning == Reasoning::Drop {
            messages.iter_mut().filter_map(Value::as_object_mut).for_each(|message| {
                message.remove("reasoning_content");
            });
        }
        let mut messages = self.one_call_each(messages, &mut repairs);
        if self.settings.finish && offered.contains(&COMPLETE_TASK) {
            finish(&mut messages)?;
        }
        let chat = self.chat.offering(&functions);
        let (mut rows, mut turns, mut called) = (Rows::default(), 0, Vec::new());
        for (index, message) in messages.iter().enumerate() {
            if message["role"] != "assistant" {
                continue;
            }
            turns += 1;
            let calls = calls_of(message);
            called.extend(calls.iter().map(|call| call.name.clone()).filter(|name| name != COMPLETE_TASK));
            if message["weight"] == 0 {
                repairs.push(format!("turn {turns} is not learned: its weight is 0"));
                continue;
            }
            let problem =
                self.toolbox.and_then(|toolbox| calls.iter().find_map(|call| toolbox.problem(call)));
            if let Some(problem) = problem {
                repairs.push(format!("turn {turns} is not learned: {problem}"));
                continue;
            }
            let before = &messages[..index];
            let refused = |error: crate::chat::ChatError| error.to_string();
            let prompt = chat.conversation(before).map_err(refused)?.concat();
            let tokens = turn(&chat, before, message, &calls).map_err(refused)?;
            let read = chat.parse(&prompt, &tokens);
            if read.calls.len() != calls.len()
                || !read.calls.iter().zip(&calls).all(|(read, call)| read.as_ref() == Ok(call))
            {
                return Err(format!("the chat template cannot write the calls of turn {turns}"));
            }
            let text = message["content"].as_str().unwrap_or_default().trim();
            if !text.is_empty() && read.text.trim() != text {
                repairs.push(format!("the text beside the calls of turn {turns} is lost"));
            }
            let answer: Vec<(u32, f32)> = tokens.into_iter().map(|token| (token, 0.0)).collect();
            rows.add(&prompt, &answer, messages[..=index].to_vec());
        }
        let last = messages.last().cloned().unwrap_or_default();
        let completed = calls_of(&last).into_iter().find(|call| call.name == COMPLETE_TASK);
        let text = last["content"].as_str().filter(|text| !text.is_empty());
        let (answer, answer_source) = match (completed, text) {
            (Some(call), _) => (answer_of(&call.arguments), Some(AnswerSource::Tool)),
            (None, text) => (text.map(str::to_owned), text.map(|_| AnswerSource::Text)),
        };
        repairs.dedup();
        let history = History { messages, turns, tools: called, ..rows.history() };
        Ok(Episode { history, answer, answer_source, repairs })
    }

    fn with_system(&self, mut messages: Vec<Value>) -> Vec<Value> {
        if self.settings.prompt != Prompt::Trace
            && messages.first().is_some_and(|first| first["role"] == "system")
        {
            messages.remove(0);
        }
        if let Some(system) = self.system.filter(|system| !system.is_empty()) {
            messages.insert(0, json!({"role": "system", "content": system}));
        }
        messages
    }

    /// Clients put the name of a server before those of its tools.
    fn rename(
        &self,
        messages: &mut [Value],
        offered: &[&str],
        repairs: &mut Vec<String>,
    ) -> Result<(), String> {
        if offered.is_empty() {
            return match messages.iter().any(|message| message.get("tool_calls").is_some()) {
                true => Err("it has calls and no list of tools; give the stage `tools`".into()),
                false => Ok(()),
            };
        }
        for message in messages {
            for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
                if offered.contains(&name.as_str()) {
                    continue;
                }
                let short = name.rsplit("__").next().filter(|short| offered.contains(short));
                let Some(short) = short else {
                    return Err(format!("it calls `{name}`, which is not offered"));
                };
                repairs.push(format!("`{name}` is `{short}`"));
                call["function"]["name"] = short.into();
            }
            if message["role"] == "tool"
                && let Some(short) = message["name"].as_str().and_then(|name| name.rsplit("__").next())
                && offered.contains(&short)
            {
                message["name"] = short.to_owned().into();
            }
        }
        Ok(())
    }

    /// Results as long as the agent will see them.
    fn cut_results(&self, messages: &mut [Value], repairs: &mut Vec<String>) {
        for message in messages.iter_mut().filter(|message| message["role"] == "tool") {
            let text = message["content"].as_str().unwrap_or_default().to_owned();
            let (text, is_cut) = result_view(text, self.settings.result_chars);
            if is_cut {
                repairs.push(format!("results are cut to {} characters", self.settings.result_chars));
                message["content"] = text.into();
            }
        }
    }

    /// Turns of one call each, where the template writes no more.
    fn one_call_each(&self, messages: Vec<Value>, repairs: &mut Vec<String>) -> Vec<Value> {
        let several = |message: &Value| message["tool_calls"].as_array().is_some_and(|calls| calls.len() > 1);
        if self.chat.has_parallel_calls() || !messages.iter().any(several) {
            return messages;
        }
        repairs.push(
            "calls of one turn are turns of their own, because the chat template has one call in a turn"
                .into(),
        );
        let mut split = Vec::new();
        let mut rest = messages.into_iter();
        while let Some(mut message) = rest.next() {
            if !several(&message) {
                split.push(message);
                continue;
            }
            let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
            for call in calls {
                message["tool_calls"] = json!([call]);
                split.push(message.clone());
                message["content"] = "".into();
                message.as_object_mut().map(|fields| fields.remove("reasoning_content"));
                split.extend(rest.next());
            }
        }
        split
    }
}

/// Leaves out arguments that are null and that their tool does not take so: a table of Arrow has all members of all calls in each.
fn without_nulls(messages: &mut [Value], functions: &[Value], repairs: &mut Vec<String>) {
    let calls =
        messages.iter_mut().filter_map(|message| message.get_mut("tool_calls")?.as_array_mut()).flatten();
    for call in calls {
        let name = call["function"]["name"].clone();
        let tool = functions
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool))
            .find(|tool| tool["name"] == name);
        let Some(known) = tool.and_then(|tool| tool.pointer("/parameters/properties")?.as_object()) else {
            continue;
        };
        let Some(arguments) = call["function"]["arguments"].as_object_mut() else { continue };
        let before = arguments.len();
        arguments.retain(|name, value| !value.is_null() || known.get(name).is_some_and(takes_null));
        if arguments.len() < before {
            repairs.push("arguments that are null, which their tool does not take, are left out".into());
        }
    }
}

fn takes_null(schema: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null";
    let of_type = match schema.get("type") {
        None => schema.get("enum").is_none(),
        Some(Value::Array(kinds)) => kinds.iter().any(is_null),
        Some(kind) => is_null(kind),
    };
    let list = |name: &str| schema.get(name).and_then(Value::as_array);
    let alternatives = list("anyOf").or(list("oneOf"));
    schema["nullable"] == true
        || list("enum").is_some_and(|values| values.iter().any(Value::is_null))
        || alternatives.map_or(of_type, |alternatives| alternatives.iter().any(takes_null))
}

/// Gives the last text to `complete_task`.
fn finish(messages: &mut [Value]) -> Result<(), String> {
    let Some(last) = messages.last_mut().filter(|last| last["role"] == "assistant") else {
        return Err("it ends with a result and without an answer".into());
    };
    match calls_of(last).last() {
        Some(call) if call.name == COMPLETE_TASK => Ok(()),
        Some(_) => Err("it ends with a call and without an answer".into()),
        None => {
            let answer = last["content"].take();
            last["content"] = "".into();
            let function = json!({"name": COMPLETE_TASK, "arguments": {"answer": answer}});
            last["tool_calls"] = json!([{"id": "call_complete", "type": "function", "function": function}]);
            Ok(())
        }
    }
}

fn calls_of(message: &Value) -> Vec<ToolCall> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.filter_map(|call| serde_json::from_value(call["function"].clone()).ok()).collect()
}

/// The tokens of a turn, with its reasoning if it has some.
fn turn(
    chat: &Chat,
    before: &[Value],
    message: &Value,
    calls: &[ToolCall],
) -> Result<Vec<u32>, crate::chat::ChatError> {
    if message.get("reasoning_content").is_some()
        && let Some(tokens) = chat.written_turn(before, message)?
    {
        return Ok(tokens);
    }
    Ok(chat.assistant(message["content"].as_str().unwrap_or_default(), calls))
}
