//! The turns that a policy writes for a request: sampled, read as in episodes, and passed on in parts.
//!
//! A whole answer is the sum of its parts, so that it does not depend on whether a client asks for a stream.

use std::{pin::pin, sync::Arc};

use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::mpsc::unbounded_channel;

use super::{error::ApiError, request::ChatRequest};
use crate::{
    agent::answer_of,
    answer::COMPLETE_TASK,
    chat::{CallForm, Chat, GrowingTurn, GuideError, Shape, TurnGuide},
    data::{Message, MessageCall},
    engine::{Sampled, Sampler, Sampling, Stop},
    guide::Guide,
    hash::Encoder,
};

/// A loaded policy.
#[derive(Clone)]
pub struct Model {
    pub sampler: Sampler,
    /// Its conversation format, without system prompt and tools.
    pub chat: Chat,
    /// Tokens of its context.
    pub context: usize,
}

/// A part of an answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnswerPart {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<MessageCall>,
    /// The calls that the agent has made, with their results: `mcprl_calls` of a message.
    pub made: Vec<Value>,
    /// Of the last part.
    pub end: Option<End>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    pub reason: &'static str,
    /// Every sampled token, with its log-probability.
    pub tokens: Vec<(u32, f32)>,
    /// For each, the most likely tokens in its place, if the request asks for them.
    pub likeliest: Vec<Vec<(u32, f32)>>,
}

impl AnswerPart {
    pub fn add(&mut self, part: Self) {
        self.reasoning += &part.reasoning;
        self.text += &part.text;
        self.calls.extend(part.calls);
        self.made.extend(part.made);
        self.end = part.end.or(self.end.take());
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What is sampled for a request.
pub struct SamplingTask {
    sampler: Sampler,
    /// With the request's tools.
    pub chat: Chat,
    prompt: Vec<Arc<[u32]>>,
    pub prompt_tokens: usize,
    most: usize,
    sampling: Sampling,
    seed: u64,
    stop: Vec<String>,
    likeliest: usize,
    tools: Vec<String>,
    one_call: bool,
    /// What the answer may be, if the request limits it.
    guide: Option<TurnGuide>,
    /// Whether parts are wanted before the end.
    stream: bool,
}

impl SamplingTask {
    /// Writes the prompt of a request, on a thread of its own because it takes a while for a long one.
    ///
    /// # Errors
    /// If the template refuses the messages, the context is too short for them, or the answer cannot be limited as wanted.
    pub async fn prepare(model: Model, request: ChatRequest) -> Result<Self, ApiError> {
        let task = tokio::task::spawn_blocking(move || Self::new(&model, &request)).await;
        task.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", error.to_string()))?
    }

    fn new(model: &Model, request: &ChatRequest) -> Result<Self, ApiError> {
        ApiError::check_size(&request.messages, model.context)?;
        let chat = model.chat.offering(&request.tools);
        let prompt = chat.conversation(&request.messages.iter().map(Message::json).collect::<Vec<_>>())?;
        let prompt_tokens: usize = prompt.iter().map(|piece| piece.len()).sum();
        let left = model.context.saturating_sub(prompt_tokens);
        if left == 0 {
            return Err(ApiError::too_long(prompt_tokens, model.context));
        }
        let guide = guide(&chat, prompt.last().map_or(&[], |piece| piece), request)?;
        let name = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
        Ok(Self {
            chat,
            prompt,
            prompt_tokens,
            most: request.max_tokens.map_or(left, |most| most.min(left)),
            sampling: request.sampling(1.0),
            seed: request.seed.unwrap_or_else(super::random),
            stop: request.stop.clone(),
            likeliest: request.top_logprobs,
            tools: request.tools.iter().filter_map(name).collect(),
            one_call: request.one_call,
            guide,
            stream: request.stream,
            sampler: model.sampler.clone(),
        })
    }

    pub fn prompt(&self) -> Vec<u32> {
        self.prompt.concat()
    }

    /// Tokens of an answer at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How many tokens are given beside each.
    pub fn likeliest(&self) -> usize {
        self.likeliest
    }

    /// Samples so, and at most this many tokens, whatever the request says.
    pub fn sampling(mut self, sampling: Sampling, seed: u64, most: usize) -> Self {
        (self.sampling, self.seed, self.most) = (sampling, seed, self.most.min(most));
        self
    }

    /// Samples one answer and sends its parts. If the future is dropped, sampling ends.
    ///
    /// # Errors
    /// If the engine fails.
    pub async fn answer(&self, choice: usize, mut send: impl FnMut(AnswerPart)) -> Result<(), ApiError> {
        let seed = match choice {
            0 => self.seed,
            _ => Encoder::new("mcprl choice v1").number(self.seed).number(choice as u64).finish().seed(),
        };
        let sequence = self.sampler.open(self.prompt.clone(), self.sampling, seed);
        let guide = self.guide.as_ref().map(|guide| Box::new(guide.again()) as Box<dyn Guide>);
        let mut sequence = sequence.with_alternatives(self.likeliest).guided(guide);
        let (sender, mut receiver) = unbounded_channel();
        let mut sampling = pin!(sequence.streamed_turn(&[], self.chat.stop(), self.most, Some(sender)));
        let last = self.prompt.last().map_or(&[][..], |piece| piece);
        let mut answer = Answer {
            turn: GrowingTurn::after(&self.chat, last),
            stops: Stops { strings: &self.stop, searched: 0 },
            logprobs: Vec::new(),
        };
        // Whether a stop string is there.
        let pass = |answer: &mut Answer<'_>, send: &mut dyn FnMut(AnswerPart)| {
            if answer.is_stopped(&self.chat) {
                return true;
            }
            if self.stream {
                let part = answer.more(&self.chat);
                if !part.is_empty() {
                    send(part);
                }
            }
            false
        };
        let sampled = loop {
            tokio::select! {
                biased;
                Some(token) = receiver.recv() => {
                    answer.take(token);
                    // Where a stop string may end the answer, it must not matter how many tokens are there.
                    while self.stop.is_empty() && let Ok(token) = receiver.try_recv() {
                        answer.take(token);
                    }
                    if pass(&mut answer, &mut send) {
                        send(answer.end(self, choice, None));
                        return Ok(());
                    }
                }
                sampled = &mut sampling => break sampled?,
            }
        };
        while let Ok(token) = receiver.try_recv() {
            answer.take(token);
            if answer.is_stopped(&self.chat) {
                send(answer.end(self, choice, None));
                return Ok(());
            }
        }
        send(answer.end(self, choice, Some(&sampled)));
        Ok(())
    }
}

/// What limits the answer to a request.
fn guide(chat: &Chat, prompt: &[u32], request: &ChatRequest) -> Result<Option<TurnGuide>, ApiError> {
    let tools = &request.tools;
    let (param, shape) = match (request.must_call.as_slice(), &request.answer_schema) {
        ([], None) if !request.strict || tools.is_empty() => return Ok(None),
        ([], None) => ("strict", Shape { json: None, calls: tools, text: true }),
        // A call or an answer.
        ([], json) => ("response_format", Shape { json: json.as_ref(), calls: tools, text: false }),
        (calls, _) => ("tool_choice", Shape { json: None, calls, text: false }),
    };
    let refused = |error: GuideError| match error {
        GuideError::Schema { reason } => {
            ApiError::invalid(param, format!("has a schema that cannot be kept: {reason}"))
        }
        error => ApiError::unsupported(param, &format!(" with this model: {error}")),
    };
    chat.guide(prompt, &shape).map(Some).map_err(refused)
}

/// An answer while it is sampled.
struct Answer<'t> {
    turn: GrowingTurn,
    stops: Stops<'t>,
    logprobs: Vec<f32>,
}

impl Answer<'_> {
    fn take(&mut self, (token, logprob): (u32, f32)) {
        self.turn.tokens.push(token);
        self.logprobs.push(logprob);
    }

    fn ended(&self, reason: &'static str) -> End {
        let tokens = self.turn.tokens.iter().copied().zip(self.logprobs.iter().copied());
        End { reason, tokens: tokens.collect(), likeliest: Vec::new() }
    }

    /// Whether the answer has a stop string, before which it ends then.
    fn is_stopped(&mut self, chat: &Chat) -> bool {
        if self.stops.strings.is_empty() {
            return false;
        }
        let found = self.turn.answer(chat).and_then(|answer| self.stops.find(answer));
        found.inspect(|at| self.turn.cut(*at)).is_some()
    }

    /// What became certain.
    fn more(&mut self, chat: &Chat) -> AnswerPart {
        let held = match self.stops.strings {
            [] => 0,
            _ => self.turn.answer(chat).map_or(0, |answer| self.stops.begun(answer)),
        };
        let more = self.turn.more_without(chat, held);
        AnswerPart { reasoning: more.reasoning, text: more.text, ..AnswerPart::default() }
    }

    /// What is left at the end of the turn. None was sampled to its end if a stop string has ended it.
    fn end(mut self, task: &SamplingTask, choice: usize, sampled: Option<&Sampled>) -> AnswerPart {
        let is_stopped = sampled.is_none();
        let is_cut = sampled.is_none_or(|sampled| sampled.stop != Stop::Token);
        let turn = self.turn.parsed(&task.chat);
        let ids = turn.own_ids((task.prompt_tokens * 64 + choice) as u64);
        let is_offered = |name: &str| task.tools.iter().any(|tool| tool == name);
        let (mut calls, mut answer, mut is_text) = (Vec::new(), None, false);
        // What a client that wants one call does not see, the model has not said: its next prompt has one.
        let most = if task.one_call { 1 } else { usize::MAX };
        for (call, id) in turn.calls.into_iter().zip(ids).take(most) {
            match call {
                // The policy ends episodes so. A client that does not offer it gets the answer.
                Ok(call) if call.name == COMPLETE_TASK && !is_offered(COMPLETE_TASK) => {
                    answer = answer_of(&call.arguments);
                    break;
                }
                // Of an answer whose form is required, JSON that looks like a call is one only if it names a tool.
                Ok(call) if !task.tools.is_empty() && (task.guide.is_none() || is_offered(&call.name)) => {
                    calls.push(MessageCall::new(&id, call, CallForm::Template));
                }
                // The rest of a call that was cut is no text.
                Err(_) if is_cut && !task.tools.is_empty() => {}
                _ => is_text = true,
            }
        }
        let mut text = turn.text;
        if is_text {
            (text, calls) = (self.turn.written(&task.chat), Vec::new());
        } else if let Some(answer) = answer.filter(|answer| calls.is_empty() && *answer != text) {
            text += if text.is_empty() { "" } else { "\n\n" };
            text += &answer;
        }
        let reasoning = self.turn.reasoning.take(&turn.reasoning.unwrap_or_default());
        let text = self.turn.text.take(&text);
        let reason = match () {
            () if is_cut && !is_stopped => "length",
            () if calls.is_empty() => "stop",
            () => "tool_calls",
        };
        let likeliest = sampled.map(|sampled| sampled.alternatives.clone()).unwrap_or_default();
        let end = Some(End { likeliest, ..self.ended(reason) });
        AnswerPart { reasoning, text, calls, end, ..AnswerPart::default() }
    }
}

/// Finds stop strings in a text that grows.
struct Stops<'s> {
    strings: &'s [String],
    /// Bytes that are known to have none.
    searched: usize,
}

impl Stops<'_> {
    fn longest(&self) -> usize {
        self.strings.iter().map(String::len).max().unwrap_or_default()
    }

    /// The first byte from here on where a character begins.
    fn boundary(text: &str, from: usize) -> usize {
        (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
    }

    /// Where the stop string begins that is complete first. `text` begins with that of the last time.
    fn find(&mut self, text: &str) -> Option<usize> {
        let from = Self::boundary(text, self.searched.saturating_sub(self.longest()));
        self.searched = text.len();
        let found =
            self.strings.iter().filter_map(|stop| Some((from + text[from..].find(stop)?, stop.len())));
        found.min_by_key(|(start, length)| (start + length, *start)).map(|(start, _)| start)
    }

    /// Bytes at the end of a text that may begin a stop string.
    fn begun(&self, text: &str) -> usize {
        let from = Self::boundary(text, text.len().saturating_sub(self.longest()));
        let may_begin = |(at, _): &(usize, char)| {
            let rest = &text[from + at..];
            self.strings.iter().any(|stop| stop.starts_with(rest))
        };
        text[from..].char_indices().find(may_begin).map_or(0, |(at, _)| text.len() - from - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_is_found_wherever_the_text_is_cut_and_nothing_of_it_is_passed_on() {
        let strings = ["END".to_owned(), "\n\n".to_owned(), "é!".to_owned()];
        for (text, expected) in [
            ("one END two", Some(4)),
            ("one ENT two", None),
            ("one\n\nENDS", Some(3)),
            ("é\n", None),
            ("EENDD", Some(1)),
            ("caf\u{e9}\u{e9}!", Some(5)),
        ] {
            for step in [1, 2, 100] {
                let letters: Vec<char> = text.chars().collect();
                let mut stops = Stops { strings: &strings, searched: 0 };
                let (mut so_far, mut passed, mut found) = (String::new(), 0, None);
                for part in letters.chunks(step) {
                    so_far.extend(part);
                    found = stops.find(&so_far);
                    if found.is_some() {
                        break;
                    }
                    passed = so_far.len() - stops.begun(&so_far);
                }
                assert_eq!(found, expected, "{text:?} by {step}");
                assert!(passed <= found.unwrap_or(text.len()), "{text:?} by {step}");
            }
        }
    }
}
