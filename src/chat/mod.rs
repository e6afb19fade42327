//! Conversation to tokens and back: templates, tool-call formats, special tokens.
//!
//! The model's own chat template writes the first prompt and, once at loading, shows how results are handed back.
//! After that a conversation only grows: sampled tokens are kept as they are and the next delta is appended. Nothing
//! is ever rendered twice, and no text from outside (task, tool descriptions, results) becomes a special token.

mod error;
mod format;
mod python;
mod template;
mod vocabulary;

#[cfg(test)]
mod tests;

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

pub use error::ChatError;
use format::Format;
use template::{Template, message};
use vocabulary::Vocabulary;

/// One tool call as the model means it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub name: String,
    pub arguments: Map<String, Value>,
}

/// What a model turn says.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Text outside calls and reasoning.
    pub text: String,
    pub reasoning: Option<String>,
    /// Calls in order; a malformed one says what is wrong with it, for the model to read.
    pub calls: Vec<Result<ToolCall, String>>,
}

/// The opening of an episode, cut where sharing ends. All end at token boundaries.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// System prompt and tools: the same for every episode of a run.
    pub shared: Vec<u32>,
    /// The task and the assistant header: the same for every episode of a group.
    pub task: Vec<u32>,
}

/// A model's way of writing conversations: tokenizer, chat template and tool-call format.
pub struct Chat {
    vocabulary: Vocabulary,
    template: Template,
    format: Format,
    handover: Handover,
    stop: Vec<u32>,
}

/// The template's text around tool results, between one model turn and the next.
struct Handover {
    /// From behind the end-of-turn token to the first result.
    before: String,
    between: String,
    /// From the last result to the next sampled token.
    after: String,
}

impl Chat {
    /// Loads `tokenizer.json`, `tokenizer_config.json` (and `chat_template.jinja`) of a Hugging Face folder.
    ///
    /// A template that would hide tools, calls or results from the model is refused here.
    pub fn load(folder: &Path) -> Result<Self, ChatError> {
        let config: Map<String, Value> = read_json(&folder.join("tokenizer_config.json"))?;
        let named = named_tokens(&config);
        let contents: Vec<String> =
            named.values().filter_map(|text| text.as_str().map(str::to_owned)).collect();
        let vocabulary = Vocabulary::load(&folder.join("tokenizer.json"), &contents)?;
        let template = Template::new(&template_source(folder, &config)?, named.clone())?;
        let (format, handover) = learn(&template)?;
        let token = format.end_of_turn();
        let end_of_turn = vocabulary.id(token).ok_or(ChatError::NoEndOfTurn { token })?;
        let mut stop = vec![end_of_turn];
        let end_of_text =
            named.get("eos_token").and_then(Value::as_str).and_then(|token| vocabulary.id(token));
        for id in end_of_text.into_iter().chain(generation_stops(folder)?) {
            if !stop.contains(&id) {
                stop.push(id);
            }
        }
        Ok(Self { vocabulary, template, format, handover, stop })
    }

    /// Renders system text, tools (OpenAI-style function schemas) and task with the model's own template.
    pub fn prompt(&self, system: &str, tools: &[Value], task: &str) -> Result<Prompt, ChatError> {
        let system = self.vocabulary.mask(system);
        let tools: Vec<Value> = tools.iter().map(|tool| self.masked(&declared(tool))).collect();
        let render = |task: &str| {
            let mut messages = vec![message::user(task)];
            if !system.is_empty() {
                messages.insert(0, message::system(&system));
            }
            self.template.render(&messages, &tools, true)
        };
        let rendered = render(&self.vocabulary.mask(task))?;
        // Two tasks that differ from their first letter on show where sharing ends, whatever this task begins with.
        let (one, other) = (render("one task")?, render("some other task")?);
        let sharing = common_prefix(&one, &other);
        let sharing = &sharing[..self.vocabulary.last_control_end(sharing)];
        let own = rendered.strip_prefix(sharing).unwrap_or(&rendered);
        let shared = &rendered[..rendered.len() - own.len()];

        let whole = self.vocabulary.encode(&rendered);
        let (shared, task) = (self.vocabulary.encode(shared), self.vocabulary.encode(own));
        if whole.strip_prefix(shared.as_slice()) == Some(task.as_slice()) {
            Ok(Prompt { shared, task })
        } else {
            Ok(Prompt { shared: Vec::new(), task: whole })
        }
    }

    /// What the model would have sampled to say this turn, its end-of-turn token included.
    pub fn assistant(&self, text: &str, calls: &[ToolCall]) -> Vec<u32> {
        let written = self.format.assistant(text, calls);
        let mut tokens = self.vocabulary.encode(&self.vocabulary.mask(&written));
        tokens.extend(self.stop.first());
        tokens
    }

    /// Everything between one sampled turn's end-of-turn token and the next sampled token: results and assistant header.
    pub fn results(&self, results: &[String]) -> Vec<u32> {
        let results: Vec<_> = results.iter().map(|result| self.vocabulary.mask(result)).collect();
        let Handover { before, between, after } = &self.handover;
        self.vocabulary.encode(&format!("{before}{}{after}", results.join(between)))
    }

    /// Reads a sampled turn. Total: any tokens give a turn.
    pub fn parse(&self, tokens: &[u32]) -> Turn {
        let said = match tokens.split_last() {
            Some((last, said)) if self.stop.contains(last) => said,
            _ => tokens,
        };
        self.format.parse(&self.decode(said))
    }

    /// Tokens that end a turn, the format's own first.
    pub fn stop(&self) -> &[u32] {
        &self.stop
    }

    pub fn decode(&self, tokens: &[u32]) -> String {
        self.vocabulary.decode(tokens)
    }

    /// Tokens of untrusted text: never any special token.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        self.vocabulary.encode_text(text)
    }

    /// A JSON value whose texts cannot spell a control token.
    fn masked(&self, value: &Value) -> Value {
        let text = |text: &str| self.vocabulary.mask(text).into_owned();
        match value {
            Value::String(string) => text(string).into(),
            Value::Array(items) => items.iter().map(|item| self.masked(item)).collect(),
            Value::Object(fields) => {
                Value::Object(fields.iter().map(|(name, item)| (text(name), self.masked(item))).collect())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

/// Shows the template a conversation of words it cannot know, and learns from where they come out.
fn learn(template: &Template) -> Result<(Format, Handover), ChatError> {
    const QUESTION: &str = "probe question";
    const RESULTS: [&str; 2] = ["probe result one", "probe result two"];
    let call = ToolCall {
        name: "probe_tool".into(),
        arguments: Map::from_iter([("probe_argument".to_owned(), Value::from("probe value"))]),
    };
    let tools = [json!({"type": "function", "function": {
        "name": call.name,
        "description": "Probes.",
        "parameters": {
            "type": "object",
            "properties": {"probe_argument": {"type": "string", "description": "What to probe."}},
            "required": ["probe_argument"],
        },
    }})];
    let opening = [message::system("probe system"), message::user(QUESTION)];
    let mut conversation = opening.to_vec();
    conversation.push(message::assistant("", std::slice::from_ref(&call)));
    conversation.extend(RESULTS.map(|result| message::tool(&call.name, result)));

    let prompt = template.render(&opening, &tools, true)?;
    let rendered = template.render(&conversation, &tools, true)?;
    let (_, answered) = rendered.rsplit_once(QUESTION).unwrap_or(("", &rendered));
    let (turn, results) = answered.split_once(RESULTS[0]).unwrap_or((answered, ""));
    let seen = [
        (prompt.contains(QUESTION), "the task"),
        (prompt.contains(&call.name), "the tools"),
        (prompt.contains("probe_argument"), "the arguments of the tools"),
        (turn.contains(&call.name), "the names of its own calls"),
        (turn.contains("probe_argument") && turn.contains("probe value"), "the arguments of its own calls"),
        (results.contains(RESULTS[1]), "the results of its calls"),
    ];
    let missing: Vec<&str> = seen.into_iter().filter(|(shown, _)| !shown).map(|(_, what)| what).collect();
    if !missing.is_empty() {
        return Err(ChatError::Blind { missing });
    }
    let unknown = || ChatError::UnknownFormat { shown: turn.to_owned() };
    let format = Format::detect(turn, &call).ok_or_else(unknown)?;
    let (_, behind_call) = turn.rsplit_once("probe value").ok_or_else(unknown)?;
    let (_, before) = behind_call.split_once(format.end_of_turn()).ok_or_else(unknown)?;
    let (between, after) = results.split_once(RESULTS[1]).ok_or_else(unknown)?;
    Ok((format, Handover { before: before.into(), between: between.into(), after: after.into() }))
}

/// A function schema as templates expect it: `{"type": "function", "function": …}`.
fn declared(tool: &Value) -> Value {
    match tool.get("function") {
        Some(_) => tool.clone(),
        None => json!({"type": "function", "function": tool}),
    }
}

fn common_prefix<'a>(one: &'a str, other: &str) -> &'a str {
    let same = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    same.map_or(one, |((at, _), _)| &one[..at])
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ChatError> {
    let text = std::fs::read(path).map_err(|source| ChatError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

/// `bos_token`, `eos_token`, …: written as a string or as an object with its `content`.
fn named_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let names = ["bos_token", "eos_token", "pad_token", "unk_token"];
    let content = |name: &str| {
        let token = config.get(name)?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(Value::from)
    };
    names.into_iter().filter_map(|name| Some((name.to_owned(), content(name)?))).collect()
}

/// `chat_template.jinja`, or the template in the tokenizer's configuration; of several, the one for tools.
fn template_source(folder: &Path, config: &Map<String, Value>) -> Result<String, ChatError> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(source) => return Ok(source),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(ChatError::Read { path, source }),
    }
    let named = |name: &str| {
        let templates = config.get("chat_template")?.as_array()?;
        let template = templates.iter().find(|template| template.get("name").is_some_and(|n| n == name))?;
        template.get("template")?.as_str()
    };
    let single = config.get("chat_template").and_then(Value::as_str);
    single
        .or_else(|| named("tool_use"))
        .or_else(|| named("default"))
        .map(str::to_owned)
        .ok_or_else(|| ChatError::NoTemplate { folder: folder.to_owned() })
}

/// `eos_token_id` of `generation_config.json`: a number, a list, or nothing.
fn generation_stops(folder: &Path) -> Result<Vec<u32>, ChatError> {
    let path = folder.join("generation_config.json");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let config: Map<String, Value> = read_json(&path)?;
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    Ok(match config.get("eos_token_id") {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    })
}
