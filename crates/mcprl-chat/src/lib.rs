//! Converts conversations to tokens and back: templates, tool-call formats, special tokens.
//!
//! The model's own chat template writes the first prompt. When it is loaded, probe conversations show how it writes calls
//! and results. After that a conversation only grows: sampled tokens are kept and the next delta is appended. Nothing is
//! rendered twice, and untrusted text (task, tool descriptions, results) never becomes a special token.
//!
//! The reasoning of earlier turns is kept in the context of later turns or removed ([`HistoryThinking`]). If it is
//! removed, [`Chat::rewritten`] gives the context.
//!
//! It calls no tool and samples nothing, and it never tokenizes again what was sampled.

mod appended;
mod built_in;
mod error;
mod folder;
mod format;
mod growing;
mod guide;
mod history;
mod ids;
mod jinja;
mod learn;
mod literal;
mod plain;
mod python;
mod reading;
mod template;
mod token_bytes;
mod vocabulary;

#[cfg(test)]
pub(crate) mod tests;

use std::{path::Path, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value, json};

pub use built_in::base_template;
pub use error::{ChatError, GuideError};
pub use folder::{TOOL_TEMPLATE, plain_template_source, template_source};
pub use format::type_of;
use format::{Format, Schemas, Tags};
pub use growing::{GrowingText, GrowingTurn};
pub use guide::{Shape, TurnGuide};
use history::ReasoningRemoval;
pub use history::{HistoryThinking, RewrittenHistory};
use learn::{Learned, learn};
pub use literal::python_repr;
pub use mcprl_base::call::{CallForm, ToolCall};
pub use plain::PlainChat;
pub use reading::Reading;
use template::{Template, message};
pub use vocabulary::{TemplateToken, Vocabulary};

/// A parsed model turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Text outside calls and reasoning.
    pub text: String,
    pub reasoning: Option<String>,
    /// Calls in order. A malformed one is an error text for the model.
    pub calls: Vec<Result<ToolCall, String>>,
    /// The calls' ids, one each: as written, or generated if absent.
    pub ids: Vec<String>,
    /// The form in which each call was written.
    pub forms: Vec<CallForm>,
}

/// The prompt of an episode, split where sharing ends. Both parts end at token boundaries.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    /// System prompt and tools: the same for every episode of a run.
    pub shared: Vec<u32>,
    /// The task and the assistant header: the same for every episode of a group.
    pub task: Vec<u32>,
}

/// The variable of templates that turns reasoning on and off.
const SWITCH: &str = "enable_thinking";

/// The value of `enable_thinking` that a template gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// Not set: the template's default applies.
    #[default]
    Template,
    On,
    Off,
}

/// A model's conversation format: tokenizer, chat template and tool-call format. After
/// [`with_tools`](Self::with_tools), also the system text and tools of a run.
#[derive(Clone)]
pub struct Chat {
    vocabulary: Arc<Vocabulary>,
    /// Tags of the template that are ordinary tokens. In a result they are text.
    tags: Vec<String>,
    template_tokens: Vec<TemplateToken>,
    template: Template,
    learned: Learned,
    reading: Reading,
    stop: Vec<u32>,
    notice: Option<String>,
    /// mcprl's template that replaces the model's own, if any.
    own_template: Option<&'static str>,
    /// Set if the reasoning of earlier turns is removed.
    stripping: Option<ReasoningRemoval>,
    setup: Setup,
}

/// System text and tools, common to all episodes of a run.
#[derive(Clone, Default)]
struct Setup {
    system: String,
    /// The system message as the template gets it.
    messages: Vec<Value>,
    tools: Vec<Value>,
    schemas: Schemas,
    prefix: SharedPrefix,
}

/// The beginning that all prompts share.
#[derive(Clone, Default)]
struct SharedPrefix {
    text: String,
    tokens: Vec<u32>,
    /// The end of the text, from its last control token on. What follows is tokenized together with it.
    anchor: String,
    anchor_tokens: Vec<u32>,
}

/// Up to this many bytes between the last control token and the task are not worth sharing.
const HEADER: usize = 64;

impl Turn {
    /// Ids of the calls that no other turn of a conversation has. `salt` differs from turn to turn. Ids that the model wrote
    /// stay.
    pub fn own_ids(&self, salt: u64) -> Vec<String> {
        let own = |(index, (call, id)): (usize, (&Result<ToolCall, String>, &String))| match call {
            Ok(call) if *id == ids::call_id(index, call) => {
                let salted =
                    ToolCall { name: format!("{} {salt}", call.name), arguments: call.arguments.clone() };
                ids::call_id(index, &salted)
            }
            _ => id.clone(),
        };
        self.calls.iter().zip(&self.ids).enumerate().map(own).collect()
    }
}

impl Chat {
    /// Loads tokenizer and chat template of a Hugging Face folder.
    ///
    /// A template that refuses tools, or hides tools, calls or results from the model, is replaced by one of mcprl's if it
    /// writes turns as a known family does. [`notice`](Self::notice) then gives the reason.
    ///
    /// # Errors
    /// If such a template has no replacement, if a template cannot be rendered, or if a file is missing or broken.
    pub fn load(folder: &Path) -> Result<Self, ChatError> {
        Self::load_with(folder, Thinking::Template)
    }

    /// Whether the template of this folder has a switch for reasoning, which [`Thinking`] sets.
    pub fn knows_thinking(folder: &Path) -> bool {
        let config = folder::read_json(&folder.join("tokenizer_config.json")).unwrap_or_default();
        folder::template_source(folder, &config).is_ok_and(|source| source.contains(SWITCH))
    }

    /// The same, with a value for `enable_thinking`.
    pub fn load_with(folder: &Path, thinking: Thinking) -> Result<Self, ChatError> {
        Self::load_over(Arc::new(Vocabulary::of(folder)?), folder, thinking)
    }

    /// The same, with the folder's vocabulary already loaded, because loading it is the slowest part.
    pub fn load_over(
        vocabulary: Arc<Vocabulary>,
        folder: &Path,
        thinking: Thinking,
    ) -> Result<Self, ChatError> {
        let config: Map<String, Value> = folder::read_json(&folder.join("tokenizer_config.json"))?;
        let named = folder::named_tokens(&config);
        let eos = named.get("eos_token").and_then(Value::as_str);

        let mut constants = named.clone();
        if thinking != Thinking::Template {
            constants.insert(SWITCH.into(), (thinking == Thinking::On).into());
        }
        let source = folder::template_source(folder, &config)?;
        let mut template = Template::new(&source, constants.clone())?;
        let (mut notice, mut own_template) = (None, None);
        let learned = match learn(&template, eos) {
            Err(why @ (ChatError::HidesTools { .. } | ChatError::Refused { .. })) => {
                let Some(built_in) = built_in::find(&vocabulary, &template.plain()) else { return Err(why) };
                template = Template::new(built_in.template, constants)?;
                own_template = Some(built_in.template);
                notice = Some(format!("{why}; using mcprl's own template for {}", built_in.family));
                learn(&template, eos)?
            }
            learned => learned?,
        };
        let notice = notice.or(learned.rewrites.map(|what| {
            format!("the chat template {what} when a conversation continues; episodes keep the first prompt")
        }));

        if vocabulary.id(&learned.end).is_none() {
            return Err(ChatError::NoEndOfTurn { token: learned.end });
        }
        let ends = [learned.end.as_str()].into_iter().chain(eos).chain(learned.format.ends().iter().copied());
        let stop = vocabulary.stops(ends, folder)?;
        let template_tokens = vocabulary.tokens_in(own_template.unwrap_or(&source));
        let tags =
            template_tokens.iter().filter(|token| token.is_tag).map(|token| token.text.clone()).collect();
        Ok(Self {
            vocabulary,
            tags,
            template_tokens,
            template,
            learned,
            reading: Reading::default(),
            stop,
            notice,
            own_template,
            stripping: None,
            setup: Setup::default(),
        })
    }

    /// The part of [`Chat::load`] that needs no tokenizer, for a preflight check of a folder.
    ///
    /// # Errors
    /// If `load` will certainly fail. A template that hides tools may be replaced by one of mcprl's.
    pub fn preflight(folder: &Path) -> Result<(), ChatError> {
        let tokenizer = folder.join("tokenizer.json");
        folder::begins_as_json(&tokenizer)?;
        let config: Map<String, Value> = folder::read_json(&folder.join("tokenizer_config.json"))?;
        folder::generation_stops(folder)?;
        let named = folder::named_tokens(&config);
        preflight_template(&folder::template_source(folder, &config)?, &named)
    }

    /// Sets the system text and tools (OpenAI-style function schemas) of all following prompts and calls.
    ///
    /// # Errors
    /// If the template cannot write them.
    pub fn with_tools(mut self, system: &str, tools: &[Value]) -> Result<Self, ChatError> {
        let masked = self.vocabulary.mask(system);
        let messages = if masked.is_empty() { Vec::new() } else { vec![message::system(&masked)] };
        self.setup = Setup { system: system.to_owned(), messages, ..self.offered(tools) };
        // Two tasks with different first letters show where sharing ends for any task.
        let (one, other) = (self.render("one task")?, self.render("some other task")?);
        let common = common_prefix(&one, &other);
        let control = self.vocabulary.last_control_end(common);
        // If a template lists the tools in the task's message, the shared part goes beyond the last control token.
        let end = match common.rfind('\n') {
            Some(line) if common.len() - control > HEADER => line + 1,
            _ => control,
        };
        let text = &common[..end.max(control)];
        let anchor = &text[self.vocabulary.last_control_start(text)..];
        self.setup.prefix = SharedPrefix {
            tokens: self.vocabulary.encode(text),
            anchor_tokens: self.vocabulary.encode(anchor),
            anchor: anchor.to_owned(),
            text: text.to_owned(),
        };
        Ok(self)
    }

    /// The same conversation format with these tools, for [conversations](Self::conversation) that others write.
    pub fn offering(&self, tools: &[Value]) -> Self {
        Self { setup: self.offered(tools), ..self.clone() }
    }

    /// These tools, and no system text.
    fn offered(&self, tools: &[Value]) -> Setup {
        let declared = tools.iter().map(|tool| self.masked(&declared(tool))).collect();
        Setup { tools: declared, schemas: Schemas::new(tools), ..Setup::default() }
    }

    /// Names of the tools.
    fn tool_names(&self) -> Vec<&str> {
        self.setup.schemas.names().collect()
    }

    /// The tokens of a conversation up to the model's next turn, as the template renders it with the tools. A message is
    /// as a template expects it: {role, content, tool_calls?, reasoning_content?}, with arguments as objects; a system
    /// prompt is one of them. In pieces that longer conversations of this beginning share: a piece ends where a turn does.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn conversation(&self, messages: &[Value]) -> Result<Vec<Arc<[u32]>>, ChatError> {
        /// Fewer tokens are no piece of their own.
        const PIECE: usize = 64;
        let masked = |message: &Value| {
            let mut masked = self.masked(message);
            if let (Some("tool"), Some(text)) = (message["role"].as_str(), message["content"].as_str()) {
                masked["content"] = self.vocabulary.mask_with(text, &self.tags).into();
            }
            masked
        };
        let messages: Vec<Value> = messages.iter().map(masked).collect();
        let rendered = self.template.render(&messages, &self.setup.tools, true)?;
        let tokens = self.vocabulary.encode(&rendered);
        let (mut pieces, mut start) = (Vec::new(), 0);
        for (at, token) in tokens.iter().enumerate() {
            if self.stop.first() == Some(token) && at - start >= PIECE && at + 1 < tokens.len() {
                pieces.push(tokens[start..=at].into());
                start = at + 1;
            }
        }
        pieces.push(tokens[start..].into());
        Ok(pieces)
    }

    /// The tokens of a turn behind a conversation, with its reasoning, as the template writes them, including the end-of-turn
    /// token. `None` if the template does not write the turn behind the conversation's prompt.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn written_turn(&self, before: &[Value], turn: &Value) -> Result<Option<Vec<u32>>, ChatError> {
        let mut messages: Vec<Value> = before.iter().map(|message| self.masked(message)).collect();
        let prompt = self.template.render(&messages, &self.setup.tools, true)?;
        messages.push(self.masked(turn));
        let whole = self.template.render(&messages, &self.setup.tools, false)?;
        let Some(written) = whole.strip_prefix(prompt.as_str()) else { return Ok(None) };
        let mut tokens = self.vocabulary.encode(written);
        let Some(end) = tokens.iter().position(|token| self.stop.contains(token)) else { return Ok(None) };
        tokens.truncate(end + 1);
        Ok(Some(tokens))
    }

    /// The tags of reasoning if a prompt ends within that of the next turn.
    fn opened(&self, prompt: &[u32]) -> Option<Tags> {
        /// More than an opening tag takes.
        const TAIL: usize = 16;
        let tail = self.decode(&prompt[prompt.len().saturating_sub(TAIL)..]);
        growing::TAGS.into_iter().find(|[open, _]| tail.trim_end().ends_with(open))
    }

    fn render(&self, task: &str) -> Result<String, ChatError> {
        let Setup { messages, tools, .. } = &self.setup;
        let mut messages = messages.clone();
        messages.push(message::user(task));
        self.template.render(&messages, tools, true)
    }

    /// A conversation rendered by the template with the tools of [`with_tools`](Self::with_tools).
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn rendered(&self, messages: &[Value]) -> Result<String, ChatError> {
        self.template.render(messages, &self.setup.tools, false)
    }

    /// The tokens of a rendered conversation.
    pub fn encode(&self, rendered: &str) -> Vec<u32> {
        self.vocabulary.encode(rendered)
    }

    /// The system text of the prompts.
    pub fn system(&self) -> &str {
        &self.setup.system
    }

    /// A note for people about the template: that mcprl's own template replaces it and why, or that it changes the
    /// beginning of a conversation that continues.
    pub fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// mcprl's template that replaces the model's own, if any.
    pub fn own_template(&self) -> Option<&'static str> {
        self.own_template
    }

    /// The control tokens and tags that the template writes.
    pub fn template_tokens(&self) -> &[TemplateToken] {
        &self.template_tokens
    }

    /// Ids below `size` that no token has.
    pub fn unused_ids(&self, size: usize) -> Vec<u32> {
        self.vocabulary.unused(size)
    }

    /// Whether the template can write several calls in one turn.
    pub fn has_parallel_calls(&self) -> bool {
        self.learned.parallel
    }

    /// Renders the prompt of a task, with system text and tools.
    pub fn prompt(&self, task: &str) -> Result<Prompt, ChatError> {
        let rendered = self.render(&self.vocabulary.mask(task))?;
        let SharedPrefix { text, tokens, anchor, anchor_tokens } = &self.setup.prefix;
        if let Some(own) = rendered.strip_prefix(text.as_str()) {
            // Text before a control token does not affect the tokens after it.
            let after = self.vocabulary.encode(&format!("{anchor}{own}"));
            if let Some(task) = after.strip_prefix(anchor_tokens.as_slice()) {
                return Ok(Prompt { shared: tokens.clone(), task: task.to_vec() });
            }
        }
        Ok(Prompt { shared: Vec::new(), task: self.vocabulary.encode(&rendered) })
    }

    /// The tokens that the model would have sampled for this turn, including the end-of-turn token. If a template writes
    /// one call per turn, the model has never seen several.
    pub fn assistant(&self, text: &str, calls: &[ToolCall]) -> Vec<u32> {
        let mask = |text: String| self.vocabulary.mask(&text).into_owned();
        let calls: Vec<ToolCall> = calls.iter().map(|call| call_with_texts(call.clone(), &mask)).collect();
        let Learned { format, empty_reasoning, .. } = &self.learned;
        let written = format.assistant(&self.vocabulary.mask(text), &calls);
        let mut tokens = self.vocabulary.encode(&format!("{empty_reasoning}{written}"));
        tokens.extend(self.stop.first());
        tokens
    }

    /// The tokens between one sampled turn's end-of-turn token and the next sampled token: results and assistant
    /// header. `ids` are [those of the turn](Turn::ids).
    pub fn results(&self, ids: &[String], results: &[String]) -> Vec<u32> {
        let mask = |text: &str| self.vocabulary.mask_with(text, &self.tags).into_owned();
        self.vocabulary.encode(&self.learned.result_text.text(ids, results, mask))
    }

    /// The tokens between a sampled turn's end-of-turn token and the next sampled token if the user writes this text in
    /// between. `None` if the template cannot carry a further user message: it refuses it, or changes what comes before.
    ///
    /// The text is masked as a task is. Reasoning of earlier turns stays in the context.
    pub fn user_message(&self, text: &str) -> Option<Vec<u32>> {
        let user_text = self.learned.user_text.as_ref()?;
        Some(self.vocabulary.encode(&user_text.text(&self.vocabulary.mask(text))))
    }

    /// Sets how sampled turns are read. By default, [strictly](Reading::Strict).
    pub fn with_reading(mut self, reading: Reading) -> Self {
        self.reading = reading;
        self
    }

    /// Parses a turn that was sampled behind this context. Any tokens give a turn. Reasoning that the context has opened lasts
    /// until it is closed.
    pub fn parse(&self, context: &[u32], tokens: &[u32]) -> Turn {
        self.parse_opened(tokens, self.opened(context))
    }

    fn parse_opened(&self, tokens: &[u32], opened: Option<Tags>) -> Turn {
        let text = self.vocabulary.masked_text(self.without_end(tokens));
        let (format, tools) = (self.learned.format, &self.setup.schemas);
        let turn = format.parse_opened(&text, tools, opened);
        let turn = if vocabulary::is_masked(&text) { unmasked(turn) } else { turn };
        match self.reading {
            Reading::Strict => turn,
            Reading::Lenient => format.parse_leniently(turn, &vocabulary::unmask(text), tools, opened),
        }
    }

    /// The same of a text, in which tags are tags.
    fn parse_text(&self, text: &str, opened: Option<Tags>) -> Turn {
        let (format, tools) = (self.learned.format, &self.setup.schemas);
        let turn = format.parse_opened(text, tools, opened);
        match self.reading {
            Reading::Strict => turn,
            Reading::Lenient => format.parse_leniently(turn, text, tools, opened),
        }
    }

    /// The text of a sampled turn, without the end-of-turn token.
    pub fn written(&self, tokens: &[u32]) -> String {
        self.decode(self.without_end(tokens))
    }

    /// A sampled turn without the end-of-turn token.
    fn without_end<'t>(&self, tokens: &'t [u32]) -> &'t [u32] {
        vocabulary::without_end(tokens, &self.stop)
    }

    /// The value of vLLM's `--tool-call-parser` that reads the model's calls.
    pub fn vllm_parser(&self) -> &'static str {
        self.learned.format.vllm_parser()
    }

    /// Tokens that end a turn, the format's own first.
    pub fn stop(&self) -> &[u32] {
        &self.stop
    }

    /// The text of each token. Where several tokens make one character, the first has it.
    pub fn token_texts(&self, tokens: &[u32]) -> Vec<String> {
        self.vocabulary.pieces(tokens)
    }

    pub fn decode(&self, tokens: &[u32]) -> String {
        self.vocabulary.decode(tokens)
    }

    /// Tokens of untrusted text, without special tokens.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        self.vocabulary.encode_text(text)
    }

    /// A JSON value with all texts masked.
    fn masked(&self, value: &Value) -> Value {
        with_texts(value.clone(), &|text| self.vocabulary.mask(&text).into_owned())
    }
}

/// Checks a template's source, with `bos_token` and its like.
///
/// # Errors
/// If [`Chat::load`] will certainly fail.
pub fn preflight_template(source: &str, named: &Map<String, Value>) -> Result<(), ChatError> {
    let eos = named.get("eos_token").and_then(Value::as_str);
    match Template::new(source, named.clone()).and_then(|template| learn(&template, eos)) {
        Ok(_) | Err(ChatError::HidesTools { .. } | ChatError::Refused { .. }) => Ok(()),
        Err(why) => Err(why),
    }
}

/// A JSON value whose texts and names are changed.
fn with_texts(value: Value, change: &impl Fn(String) -> String) -> Value {
    match value {
        Value::String(text) => change(text).into(),
        Value::Array(items) => items.into_iter().map(|item| with_texts(item, change)).collect(),
        Value::Object(fields) => Value::Object(fields_with_texts(fields, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

fn fields_with_texts(fields: Map<String, Value>, change: &impl Fn(String) -> String) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (change(name), with_texts(value, change))).collect()
}

fn call_with_texts(call: ToolCall, change: &impl Fn(String) -> String) -> ToolCall {
    ToolCall { name: change(call.name), arguments: fields_with_texts(call.arguments, change) }
}

/// A turn with all masks removed.
fn unmasked(turn: Turn) -> Turn {
    let call = |call| call_with_texts(call, &vocabulary::unmask);
    let calls = turn.calls.into_iter().map(|read| read.map(call).map_err(vocabulary::unmask));
    Turn {
        text: vocabulary::unmask(turn.text),
        reasoning: turn.reasoning.map(vocabulary::unmask),
        calls: calls.collect(),
        ids: turn.ids.into_iter().map(vocabulary::unmask).collect(),
        forms: turn.forms,
    }
}

/// A function schema as templates expect it: `{"type": "function", "function": …}`.
pub fn declared(tool: &Value) -> Value {
    match tool.get("function") {
        Some(_) => tool.clone(),
        None => json!({"type": "function", "function": tool}),
    }
}

/// Reads a turn that comes as text: calls of these tools in the most common form, `<tool_call>` around JSON, or in any other.
pub fn turn_of_text(text: &str, tools: &[Value]) -> Turn {
    let schemas = Schemas::new(tools);
    let strict = Format::Hermes.parse(text, &schemas);
    Format::Hermes.parse_leniently(strict, text, &schemas, None)
}

fn common_prefix<'a>(one: &'a str, other: &str) -> &'a str {
    let same = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    same.map_or(one, |((at, _), _)| &one[..at])
}
