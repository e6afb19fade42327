//! A trace as an episode.

use serde_json::Value;

use super::{Prompt, Reasoning, Traces};
use crate::{
    agent::{History, Toolbox, answer_of},
    answer::COMPLETE_TASK,
    chat::{Chat, ToolCall},
    data::{AnswerSource, Message, MessageCall, Role, result_view},
    openai::Rows,
    recorded::Trace,
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
            messages.iter_mut().for_each(|message| message.reasoning = None);
        }
        let mut messages = self.one_call_each(messages, &mut repairs);
        if self.settings.finish && offered.contains(&COMPLETE_TASK) {
            finish(&mut messages)?;
        }
        let chat = self.chat.offering(&functions);
        let said: Vec<Value> = messages.iter().map(Message::json).collect();
        let (mut rows, mut turns, mut called) = (Rows::default(), 0, Vec::new());
        for (index, message) in messages.iter().enumerate() {
            if message.role != Role::Assistant {
                continue;
            }
            turns += 1;
            let calls: Vec<ToolCall> = message.calls.iter().map(MessageCall::tool_call).collect();
            called.extend(calls.iter().map(|call| call.name.clone()).filter(|name| name != COMPLETE_TASK));
            if message.unlearned {
                repairs.push(format!("turn {turns} is not learned: its weight is 0"));
                continue;
            }
            let problem =
                self.toolbox.and_then(|toolbox| calls.iter().find_map(|call| toolbox.problem(call)));
            if let Some(problem) = problem {
                repairs.push(format!("turn {turns} is not learned: {problem}"));
                continue;
            }
            let before = &said[..index];
            let refused = |error: crate::chat::ChatError| error.to_string();
            let prompt = chat.conversation(before).map_err(refused)?.concat();
            let tokens = turn(&chat, before, message, &calls).map_err(refused)?;
            let read = chat.parse(&prompt, &tokens);
            if read.calls.len() != calls.len()
                || !read.calls.iter().zip(&calls).all(|(read, call)| read.as_ref() == Ok(call))
            {
                return Err(format!("the chat template cannot write the calls of turn {turns}"));
            }
            let text = message.text.trim();
            if !text.is_empty() && read.text.trim() != text {
                repairs.push(format!("the text beside the calls of turn {turns} is lost"));
            }
            let answer: Vec<(u32, f32)> = tokens.into_iter().map(|token| (token, 0.0)).collect();
            rows.add(&prompt, &answer, messages[..=index].to_vec());
        }
        let last = messages.last();
        let completed = last.and_then(|last| last.calls.iter().find(|call| call.name == COMPLETE_TASK));
        let text = last.map(|last| &last.text).filter(|text| !text.is_empty());
        let (answer, answer_source) = match (completed, text) {
            (Some(call), _) => (answer_of(&call.arguments), Some(AnswerSource::Tool)),
            (None, text) => (text.cloned(), text.map(|_| AnswerSource::Text)),
        };
        repairs.dedup();
        let history = History { messages, turns, tools: called, ..rows.history() };
        Ok(Episode { history, answer, answer_source, repairs })
    }

    fn with_system(&self, mut messages: Vec<Message>) -> Vec<Message> {
        if self.settings.prompt != Prompt::Trace
            && messages.first().is_some_and(|first| first.role == Role::System)
        {
            messages.remove(0);
        }
        if let Some(system) = self.system.filter(|system| !system.is_empty()) {
            messages.insert(0, Message::system(system));
        }
        messages
    }

    /// Clients put the name of a server before those of its tools.
    fn rename(
        &self,
        messages: &mut [Message],
        offered: &[&str],
        repairs: &mut Vec<String>,
    ) -> Result<(), String> {
        if offered.is_empty() {
            return match messages.iter().any(|message| !message.calls.is_empty()) {
                true => Err("it has calls and no list of tools; give the stage `tools`".into()),
                false => Ok(()),
            };
        }
        for message in messages {
            for call in &mut message.calls {
                let name = call.name.clone();
                if offered.contains(&name.as_str()) {
                    continue;
                }
                let short = name.rsplit("__").next().filter(|short| offered.contains(short));
                let Some(short) = short else {
                    return Err(format!("it calls `{name}`, which is not offered"));
                };
                repairs.push(format!("`{name}` is `{short}`"));
                call.name = short.to_owned();
            }
            if message.role == Role::Tool
                && let Some(short) = message.tool().rsplit("__").next()
                && offered.contains(&short)
            {
                message.name = Some(short.to_owned());
            }
        }
        Ok(())
    }

    /// Results as long as the agent will see them.
    fn cut_results(&self, messages: &mut [Message], repairs: &mut Vec<String>) {
        for message in messages.iter_mut().filter(|message| message.role == Role::Tool) {
            let (text, is_cut) = result_view(std::mem::take(&mut message.text), self.settings.result_chars);
            message.text = text;
            if is_cut {
                repairs.push(format!("results are cut to {} characters", self.settings.result_chars));
            }
        }
    }

    /// Turns of one call each, where the template writes no more.
    fn one_call_each(&self, messages: Vec<Message>, repairs: &mut Vec<String>) -> Vec<Message> {
        let several = |message: &Message| message.calls.len() > 1;
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
            for call in std::mem::take(&mut message.calls) {
                message.calls = vec![call];
                split.push(message.clone());
                message.text.clear();
                message.reasoning = None;
                split.extend(rest.next());
            }
        }
        split
    }
}

/// Leaves out arguments that are null and that their tool does not take so: a table of Arrow has all members of all calls in each.
fn without_nulls(messages: &mut [Message], functions: &[Value], repairs: &mut Vec<String>) {
    for call in messages.iter_mut().flat_map(|message| &mut message.calls) {
        let tool = functions
            .iter()
            .map(|tool| tool.get("function").unwrap_or(tool))
            .find(|tool| tool["name"] == call.name.as_str());
        let Some(known) = tool.and_then(|tool| tool.pointer("/parameters/properties")?.as_object()) else {
            continue;
        };
        let before = call.arguments.len();
        call.arguments.retain(|name, value| !value.is_null() || known.get(name).is_some_and(takes_null));
        if call.arguments.len() < before {
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
fn finish(messages: &mut [Message]) -> Result<(), String> {
    let Some(last) = messages.last_mut().filter(|last| last.role == Role::Assistant) else {
        return Err("it ends with a result and without an answer".into());
    };
    match last.calls.last() {
        Some(call) if call.name == COMPLETE_TASK => Ok(()),
        Some(_) => Err("it ends with a call and without an answer".into()),
        None => {
            let answer = std::mem::take(&mut last.text);
            last.calls = vec![MessageCall {
                id: "call_complete".into(),
                name: COMPLETE_TASK.into(),
                arguments: [("answer".to_owned(), answer.into())].into_iter().collect(),
                ..MessageCall::default()
            }];
            Ok(())
        }
    }
}

/// The tokens of a turn, with its reasoning if it has some.
fn turn(
    chat: &Chat,
    before: &[Value],
    message: &Message,
    calls: &[ToolCall],
) -> Result<Vec<u32>, crate::chat::ChatError> {
    if message.reasoning.is_some()
        && let Some(tokens) = chat.written_turn(before, &message.json())?
    {
        return Ok(tokens);
    }
    Ok(chat.assistant(&message.text, calls))
}
