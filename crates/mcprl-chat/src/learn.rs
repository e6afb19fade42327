//! Learns what a template writes around calls and results, by rendering a conversation of probe words.

use serde_json::{Map, Value, json};

use super::{
    ChatError, ToolCall,
    appended::{IDS, ResultText, TextStyle, UserText},
    format::{Format, Schemas},
    template::{Template, message},
};

const SYSTEM: &str = "probe system";
pub(super) const QUESTION: &str = "probe question";
const VALUE: &str = "probe value";
/// Quotes and spaces at the ends show whether a template escapes or trims.
const RESULTS: [&str; 2] = [" probe \"result\" one\n", " probe \"result\" two\n"];
pub(super) const TEXT: &str = "probe saying";
const REMINDER: &str = " probe \"reminder\"\n";
const REASONING: &str = "probe reasoning";
const OPENED: &str = "<think>";
const CLOSED: &str = "</think>";
/// End-of-turn tokens of the model families.
pub(super) const ENDS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
];

/// What is learned of a template.
#[derive(Clone)]
pub(super) struct Learned {
    pub format: Format,
    /// The end-of-turn token.
    pub end: String,
    pub result_text: ResultText,
    /// The text around a further user message, if the template can carry one.
    pub user_text: Option<UserText>,
    /// What a model writes before a turn without reasoning if the prompt has opened reasoning.
    pub empty_reasoning: String,
    /// Whether the template can write several calls in one turn.
    pub parallel: bool,
    /// How earlier turns are rendered, if the template shows it.
    pub earlier_turn: Option<RenderedTurn>,
    /// How the template changes the beginning of a conversation when it continues, if it does.
    pub rewrites: Option<&'static str>,
}

/// What a template writes around an earlier turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RenderedTurn {
    /// Text before a turn to be sampled.
    pub header: String,
    /// Text before an earlier turn without reasoning, in place of `header`.
    pub bare: String,
    /// Whether the template drops the reasoning of earlier turns.
    pub drops: bool,
}

impl RenderedTurn {
    /// Renders a probe with an earlier turn. `None` if the template rewrites a conversation when it continues.
    fn learn(template: &Template, probe: &Probe, format: Format) -> Option<Self> {
        let prompt = template.render(&Probe::opening(), &probe.tools, true).ok()?;
        let without_header = template.render(&Probe::opening(), &probe.tools, false).ok()?;
        let header = prompt.strip_prefix(&without_header)?;
        let (field, within) = (Some(REASONING), format!("<think>\n{REASONING}\n</think>\n\n{TEXT}"));
        let earlier = |text: &str, reasoning| probe.earlier(template, text, reasoning);
        let rendered = earlier(TEXT, None).or_else(|_| earlier("", None)).ok()?;
        let turn = rendered.strip_prefix(&without_header)?;
        let call = format.assistant("", std::slice::from_ref(&probe.call));
        let at = turn.find(TEXT).or_else(|| turn.find(&call))?;
        let shown = |text: Result<String, ChatError>| text.is_ok_and(|text| text.contains(REASONING));
        Some(Self {
            header: header.to_owned(),
            bare: turn[..at].to_owned(),
            drops: !shown(earlier(TEXT, field)) && !shown(earlier(&within, None)),
        })
    }
}

/// The call and tools of the probe conversations.
struct Probe {
    call: ToolCall,
    tools: [Value; 1],
}

impl Probe {
    fn new() -> Self {
        let call = ToolCall {
            name: "probe_tool".into(),
            arguments: Map::from_iter([("probe_argument".to_owned(), Value::from(VALUE))]),
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
        Self { call, tools }
    }

    fn opening() -> Vec<Value> {
        vec![message::system(SYSTEM), message::user(QUESTION)]
    }

    fn render(&self, template: &Template, calls: usize, results: usize) -> Result<String, ChatError> {
        let mut messages = Self::opening();
        let calls: Vec<_> = IDS.iter().take(calls).map(|id| (*id, &self.call)).collect();
        messages.push(message::assistant("", &calls));
        let ids = IDS.iter().zip(RESULTS).take(results);
        messages.extend(ids.map(|(id, result)| message::tool(id, &self.call.name, result)));
        template.render(&messages, &self.tools, true)
    }

    /// A conversation that continues after one turn, which has this text, a call, and optionally reasoning.
    fn earlier(&self, template: &Template, text: &str, reasoning: Option<&str>) -> Result<String, ChatError> {
        let mut turn = message::assistant(text, &[(IDS[0], &self.call)]);
        if let Some(reasoning) = reasoning {
            turn["reasoning_content"] = reasoning.into();
        }
        let mut messages = Self::opening();
        messages.extend([turn, message::tool(IDS[0], &self.call.name, RESULTS[0])]);
        template.render(&messages, &self.tools, true)
    }
}

/// Renders probe conversations and learns the template's text from where the probe words appear. `end` is the
/// tokenizer's own end-of-sequence token.
///
/// # Errors
/// If the template cannot be rendered, hides tools, calls or results, or writes calls in an unknown format.
pub(super) fn learn(template: &Template, end: Option<&str>) -> Result<Learned, ChatError> {
    let probe = Probe::new();
    let call = &probe.call;
    let prompt = template.render(&Probe::opening(), &probe.tools, true)?;
    let rendered = probe.render(template, 1, 1)?;
    let answered = rendered.rsplit_once(QUESTION).map_or(rendered.as_str(), |(_, answered)| answered);
    let shown = TextStyle::ALL.into_iter().find(|shown| answered.contains(&shown.text(RESULTS[0])));
    let turn = match shown {
        Some(shown) => answered.split_once(&shown.text(RESULTS[0])).map_or(answered, |(turn, _)| turn),
        None => answered,
    };
    let seen = [
        (prompt.contains(QUESTION), "the task"),
        (prompt.contains(&call.name), "the tools"),
        (prompt.contains("probe_argument"), "the arguments of the tools"),
        (turn.contains(&call.name), "the names of its own calls"),
        (turn.contains("probe_argument") && turn.contains(VALUE), "the arguments of its own calls"),
        (shown.is_some(), "the results of its calls"),
    ];
    let missing: Vec<&str> = seen.into_iter().filter(|(shown, _)| !shown).map(|(_, what)| what).collect();
    let Some(shown) = shown.filter(|_| missing.is_empty()) else {
        return Err(ChatError::HidesTools { missing });
    };

    let unknown = || ChatError::UnknownFormat { shown: turn.to_owned() };
    let sampled = sampled(&prompt, &rendered);
    let ends: Vec<&str> = ENDS.into_iter().chain(end).collect();
    let (model_text, end) = ended(sampled, &ends).ok_or_else(unknown)?;
    let format = Format::detect(model_text, call, IDS[0], &Schemas::new(&probe.tools)).ok_or_else(unknown)?;
    let written = format.assistant("", std::slice::from_ref(call));
    let empty_reasoning = match model_text.find(&written) {
        Some(at) if rendered.starts_with(&prompt) && model_text[..at].contains(CLOSED) => &model_text[..at],
        // The prompt opens reasoning, and the conversation writes empty reasoning differently.
        _ if prompt.trim_end().ends_with(OPENED) => "\n</think>\n\n",
        _ => "",
    };

    let two = |calls: usize| {
        let rendered = probe.render(template, calls, 2).ok()?;
        let (_, answered) = rendered.rsplit_once(QUESTION)?;
        result_text(answered, end, shown)
    };
    let parallel = two(2);
    let is_parallel = parallel.is_some();
    let result_text = parallel.or_else(|| two(1)).ok_or_else(unknown)?;
    let user_text = user_text(template, &probe, &prompt, &ends);
    let parts = [&result_text.before, &result_text.between, &result_text.after];
    if parts.iter().any(|part| part.contains(&call.name)) {
        // No known format writes the tool's name next to a result.
        return Err(unknown());
    }
    let beginning = |text: &str| text.split_once(QUESTION).map(|(before, _)| before.to_owned());
    let rewrites = match (beginning(&prompt), beginning(&rendered)) {
        (Some(first), Some(later)) if first == later => None,
        _ if prompt.contains(SYSTEM) && !rendered.contains(SYSTEM) => Some("omits the system text"),
        _ => Some("changes the beginning"),
    };
    Ok(Learned {
        rewrites,
        earlier_turn: RenderedTurn::learn(template, &probe, format),
        format,
        end: end.to_owned(),
        result_text,
        user_text,
        empty_reasoning: empty_reasoning.to_owned(),
        parallel: is_parallel,
    })
}

/// What the model would have sampled: the part of a conversation after the prompt. If the conversation does not repeat
/// the whole prompt (such as empty reasoning), the part after the last line or token they share.
fn sampled<'a>(prompt: &str, rendered: &'a str) -> &'a str {
    if let Some(sampled) = rendered.strip_prefix(prompt) {
        return sampled;
    }
    let same = super::common_prefix(rendered, prompt);
    let shared = same.rfind(['\n', '>', ']']).map_or(0, |at| at + 1);
    &rendered[shared..]
}

/// A turn without its end-of-turn token, and that token.
fn ended<'a, 'b>(sampled: &'a str, ends: &[&'b str]) -> Option<(&'a str, &'b str)> {
    let value = sampled.find(VALUE)? + VALUE.len();
    let first = ends.iter().filter_map(|end| sampled[value..].find(end).map(|at| (at, *end)));
    let (at, end) = first.min_by_key(|(at, end)| (*at, std::cmp::Reverse(end.len())))?;
    Some((&sampled[..value + at], end))
}

fn result_text(answered: &str, end: &str, shown: TextStyle) -> Option<ResultText> {
    let (turn, results) = answered.split_once(&shown.text(RESULTS[0]))?;
    let (_, behind_call) = turn.rsplit_once(VALUE)?;
    let (_, before) = behind_call.split_once(end)?;
    let (between, after) = results.split_once(&shown.text(RESULTS[1]))?;
    Some(ResultText { before: before.into(), between: between.into(), after: after.into(), shown })
}

/// Renders a probe in which the user writes again, at once and after a call. `None` if the template refuses it, changes what
/// comes before, or writes it differently in the two cases.
fn user_text(template: &Template, probe: &Probe, prompt: &str, ends: &[&str]) -> Option<UserText> {
    let says = [message::assistant(TEXT, &[]), message::user(REMINDER)];
    let called = [
        message::assistant("", &[(IDS[0], &probe.call)]),
        message::tool(IDS[0], &probe.call.name, RESULTS[0]),
    ];
    let learned = |before: &[Value]| {
        let messages = [&Probe::opening(), before, &says].concat();
        let rendered = template.render(&messages, &probe.tools, true).ok()?;
        user_text_between(&rendered, prompt, ends)
    };
    learned(&[]).filter(|user_text| learned(&called).as_ref() == Some(user_text))
}

fn user_text_between(rendered: &str, prompt: &str, ends: &[&str]) -> Option<UserText> {
    let (beginning, answered) = rendered.split_once(QUESTION)?;
    if prompt.split_once(QUESTION)?.0 != beginning {
        return None;
    }
    let (_, behind) = answered.split_once(TEXT)?;
    let shown = TextStyle::ALL.into_iter().find(|shown| behind.contains(&shown.text(REMINDER)))?;
    let (before, after) = behind.split_once(&shown.text(REMINDER))?;
    let ends = ends.iter().filter_map(|end| before.trim_start().strip_prefix(end));
    let before = ends.min_by_key(|rest| rest.len())?;
    Some(UserText { before: before.to_owned(), after: after.to_owned(), shown })
}
