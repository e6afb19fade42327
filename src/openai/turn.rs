//! The turns that a policy writes for a request: sampled, read as in episodes, and passed on in parts.
//!
//! A whole answer is the sum of its parts, so that it does not depend on whether a client asks for a stream.

use std::{pin::pin, sync::Arc};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::{error::ApiError, request::ChatRequest};
use crate::{
    agent::answer_of,
    answer::COMPLETE_TASK,
    chat::{Chat, GrowingTurn, GuideError, Shape, TurnGuide},
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
pub struct Part {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
    /// The calls that the agent has made, with their results: `mcprl_calls` of a message.
    pub made: Vec<Value>,
    /// Of the last part.
    pub end: Option<End>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    /// As JSON.
    pub arguments: String,
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

impl Part {
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
pub struct Task {
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

impl Task {
    /// Writes the prompt of a request, on a thread of its own because it takes a while for a long one.
    ///
    /// # Errors
    /// If the template refuses the messages, the context is too short for them, or the answer cannot be limited as wanted.
    pub async fn prepare(model: Model, request: ChatRequest) -> Result<Self, ApiError> {
        let task = tokio::task::spawn_blocking(move || Self::new(&model, &request)).await;
        task.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", error.to_string()))?
    }

    fn new(model: &Model, request: &ChatRequest) -> Result<Self, ApiError> {
        let chat = model.chat.offering(&request.tools);
        let prompt = chat.conversation(&request.messages)?;
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

    /// Samples so, and at most this many tokens, whatever the request says.
    pub fn sampling(mut self, sampling: Sampling, seed: u64, most: usize) -> Self {
        (self.sampling, self.seed, self.most) = (sampling, seed, self.most.min(most));
        self
    }

    /// Samples one answer and sends its parts. If the future is dropped, sampling ends.
    ///
    /// # Errors
    /// If the engine fails.
    pub async fn answer(&self, choice: usize, mut send: impl FnMut(Part)) -> Result<(), ApiError> {
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
            stops: Stops { strings: &self.stop, held: String::new() },
            logprobs: Vec::new(),
        };
        let mut pass = |answer: &mut Answer<'_>| {
            if !self.stream && self.stop.is_empty() {
                return false;
            }
            let part = answer.more(&self.chat);
            let is_stopped = part.end.is_some();
            if !part.is_empty() {
                send(part);
            }
            is_stopped
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
                    if pass(&mut answer) {
                        return Ok(());
                    }
                }
                sampled = &mut sampling => break sampled?,
            }
        };
        while let Ok(token) = receiver.try_recv() {
            answer.take(token);
            if !self.stop.is_empty() && pass(&mut answer) {
                return Ok(());
            }
        }
        send(answer.end(self, choice, &sampled));
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

    /// What became certain; the end if a stop string was written.
    fn more(&mut self, chat: &Chat) -> Part {
        let more = self.turn.more(chat);
        let (text, is_stopped) = self.stops.pass(&more.text, false);
        let end = is_stopped.then(|| self.ended("stop"));
        Part { reasoning: more.reasoning, text, end, ..Part::default() }
    }

    /// What is left at the end of the turn.
    fn end(mut self, task: &Task, choice: usize, sampled: &Sampled) -> Part {
        let is_cut = sampled.stop != Stop::Token;
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
                    let arguments = json!(call.arguments).to_string();
                    calls.push(Call { id, name: call.name, arguments });
                }
                // The rest of a call that was cut is no text.
                Err(_) if is_cut => {}
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
        let more = self.turn.text.take(&text);
        let (text, is_stopped) = self.stops.pass(&more, true);
        if is_stopped {
            calls.clear();
        }
        let reason = match () {
            () if is_stopped => "stop",
            () if is_cut => "length",
            () if calls.is_empty() => "stop",
            () => "tool_calls",
        };
        let end = Some(End { likeliest: sampled.alternatives.clone(), ..self.ended(reason) });
        Part { reasoning, text, calls, end, ..Part::default() }
    }
}

/// Finds stop strings in a text that comes in parts, and holds back what may begin one.
struct Stops<'s> {
    strings: &'s [String],
    held: String,
}

impl Stops<'_> {
    /// The text up to the stop string that is complete first, and whether there is one.
    fn pass(&mut self, more: &str, is_whole: bool) -> (String, bool) {
        self.held += more;
        let found = self.strings.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.len())));
        if let Some((start, _)) = found.min_by_key(|(start, length)| (start + length, *start)) {
            return (self.held[..start].to_owned(), true);
        }
        let may_begin = |(at, _): &(usize, char)| {
            let rest = &self.held[*at..];
            self.strings.iter().any(|stop| stop.starts_with(rest))
        };
        let end = match is_whole {
            true => self.held.len(),
            false => self.held.char_indices().find(may_begin).map_or(self.held.len(), |(at, _)| at),
        };
        let rest = self.held.split_off(end);
        (std::mem::replace(&mut self.held, rest), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_is_found_wherever_the_text_is_cut_and_is_not_part_of_it() {
        let strings = ["END".to_owned(), "\n\n".to_owned()];
        for (parts, expected) in [
            (vec!["one E", "N", "D two"], ("one ", true)),
            (vec!["one E", "N", "T two"], ("one ENT two", false)),
            (vec!["one\n", "\nENDS"], ("one", true)),
            (vec!["é", "\n", ""], ("é\n", false)),
            (vec!["EENDD"], ("E", true)),
        ] {
            for step in [1, 2, 100] {
                let text = parts.concat();
                let letters: Vec<char> = text.chars().collect();
                let cut: Vec<String> = letters.chunks(step).map(|part| part.iter().collect()).collect();
                let mut stops = Stops { strings: &strings, held: String::new() };
                let (mut passed, mut stopped) = (String::new(), false);
                for (at, part) in cut.iter().enumerate() {
                    let (text, is_stopped) = stops.pass(part, at + 1 == cut.len());
                    passed += &text;
                    stopped = is_stopped;
                    if is_stopped {
                        break;
                    }
                }
                assert_eq!((passed.as_str(), stopped), expected, "{text:?} by {step}");
            }
        }
    }
}
