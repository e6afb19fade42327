use std::{future::Future, sync::Arc};

use serde_json::{Map, Value, json};

use super::{
    settings::AgentSettings,
    toolbox::{Action, Toolbox},
};
use crate::{
    chat::{CallForm, Chat, ChatError, Prompt, RewrittenHistory, ToolCall, Turn},
    data::{AnswerSource, CallError, End, result_view},
    engine::{EngineError, Sampled, Sequence, Stop},
    mcp::{McpError, Outcome, Session},
};

/// Samples the policy's turns: the engine, or a script in tests.
pub trait PolicyHandle: Send {
    /// Appends tokens to the conversation, then samples until a token of `stop` or `max_new` tokens.
    /// The first turn of an episode appends nothing, because the conversation starts with its prompt.
    fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
    ) -> impl Future<Output = Result<Sampled, EngineError>> + Send;

    /// Continues from another prompt, given in pieces as in [`PromptTokens`].
    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>);
}

impl PolicyHandle for Sequence {
    async fn turn(&mut self, append: &[u32], stop: &[u32], max_new: usize) -> Result<Sampled, EngineError> {
        Sequence::turn(self, append, stop, max_new).await
    }

    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>) {
        Sequence::reopen(self, pieces);
    }
}

/// Answers tool calls: an MCP session, or a script in tests.
pub trait Server: Sync {
    /// Prepares a call of a tool.
    fn ready(&self, _name: &str) -> impl Future<Output = Result<(), McpError>> + Send {
        async { Ok(()) }
    }

    /// Counts a call of a tool. If the tool may not be called more often in the episode, the reason, and it is not called.
    fn refuse(&self, _name: &str) -> Option<String> {
        None
    }

    /// Calls a tool by the server's name for it. An error means that there is no answer, and ends the episode.
    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> impl Future<Output = Result<Outcome, McpError>> + Send;
}

impl Server for Session {
    async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        Session::call(self, name, arguments).await
    }
}

/// The prompt of an episode, as messages and as tokens, split where sharing ends.
#[derive(Debug, Clone)]
pub struct PromptTokens {
    messages: Vec<Value>,
    /// The prompt's tokens.
    pub pieces: Vec<Arc<[u32]>>,
}

impl PromptTokens {
    /// The prompt of a task, with the system text and tools of [`Chat::with_tools`].
    ///
    /// # Errors
    /// If the template cannot write the task.
    pub fn new(chat: &Chat, task: &str) -> Result<Self, ChatError> {
        let Prompt { shared, task: own } = chat.prompt(task)?;
        let mut messages = vec![json!({"role": "user", "content": task})];
        if !chat.system().is_empty() {
            messages.insert(0, json!({"role": "system", "content": chat.system()}));
        }
        let (task, header) = own.split_at(own.len() - chat.header_len(&own));
        let pieces = [&shared, task, header].into_iter().filter(|piece| !piece.is_empty());
        let pieces = pieces.map(Arc::from).collect();
        Ok(Self { messages, pieces })
    }
}

/// Answers the first turn without a call.
pub const REMINDER: &str = "Call one of the tools, or finish with complete_task and your answer.";

/// A call that was not answered, and its error.
#[derive(Debug)]
pub struct LostCall {
    pub call: ToolCall,
    pub cause: McpError,
}

/// A finished episode. `tokens`, `sampled` and `logprobs` have equal length.
#[derive(Debug)]
pub struct Episode {
    /// The conversation as a template expects it: {role, content, tool_calls?}, with ids on calls and results. A result also
    /// has `is_error` and `error` (a [`CallError`]) if the call failed, `bytes` (of the whole result) if it is clipped, and
    /// `arguments` if the message of its turn has no calls, because one of them could not be parsed.
    pub messages: Vec<Value>,
    pub tokens: Vec<u32>,
    /// True if the policy sampled the token.
    pub sampled: Vec<bool>,
    /// Natural log-probability of each sampled token; 0 for other tokens.
    pub logprobs: Vec<f32>,
    /// Starts of further rows, as in [`Trajectory::row_starts`](crate::data::Trajectory::row_starts).
    pub row_starts: Vec<usize>,
    pub turns: u32,
    /// Names of the tools whose calls reached the server, in order.
    pub tools: Vec<String>,
    /// Calls that returned an error, from the server or from mcprl.
    pub tool_errors: u32,
    /// Turns with a call that could not be parsed.
    pub parse_failures: u32,
    /// Calls that are not in the form of the chat template.
    pub loose_calls: u32,
    pub end: End,
    pub answer: Option<String>,
    /// How the answer was given, if there is one.
    pub answer_source: Option<AnswerSource>,
    /// The call during which the server was lost, if that ended the episode.
    pub lost: Option<LostCall>,
}

/// Runs one episode to its end.
///
/// # Errors
/// Only if the engine fails. Failures of the server are part of the episode.
pub async fn episode(
    policy: &mut impl PolicyHandle,
    server: &impl Server,
    chat: &Chat,
    toolbox: &Toolbox,
    prompt_tokens: &PromptTokens,
    settings: &AgentSettings,
) -> Result<Episode, EngineError> {
    let episode = Episode::new(prompt_tokens);
    let prompt_pieces = prompt_tokens.pieces.clone();
    let mut run = EpisodeRun { server, chat, toolbox, settings, prompt_pieces, is_reminded: false, episode };
    let end = run.run(policy).await?;
    Ok(Episode { end, ..run.episode })
}

impl Episode {
    fn new(prompt_tokens: &PromptTokens) -> Self {
        let tokens = prompt_tokens.pieces.concat();
        Self {
            messages: prompt_tokens.messages.clone(),
            sampled: vec![false; tokens.len()],
            logprobs: vec![0.0; tokens.len()],
            tokens,
            row_starts: Vec::new(),
            turns: 0,
            tools: Vec::new(),
            tool_errors: 0,
            parse_failures: 0,
            loose_calls: 0,
            end: End::OutOfTurns,
            answer: None,
            answer_source: None,
            lost: None,
        }
    }

    /// The current row, to which turns are appended.
    fn row(&self) -> &[u32] {
        &self.tokens[self.row_starts.last().copied().unwrap_or(0)..]
    }

    fn append(&mut self, given: &[u32]) {
        self.tokens.extend(given);
        self.sampled.resize(self.tokens.len(), false);
        self.logprobs.resize(self.tokens.len(), 0.0);
    }

    fn append_turn(&mut self, turn: &Sampled) {
        self.turns += 1;
        self.tokens.extend(&turn.tokens);
        self.sampled.resize(self.tokens.len(), true);
        self.logprobs.extend(&turn.logprobs);
    }
}

/// What the policy gets for a call.
struct Answer {
    text: String,
    error: Option<CallError>,
    /// Size of the whole result if the text is a part of it.
    bytes: Option<usize>,
}

impl Answer {
    fn error(error: CallError, text: String) -> Self {
        Self { text, error: Some(error), bytes: None }
    }
}

/// A running episode.
struct EpisodeRun<'a, S> {
    server: &'a S,
    chat: &'a Chat,
    toolbox: &'a Toolbox,
    settings: &'a AgentSettings,
    /// The prompt of the current row.
    prompt_pieces: Vec<Arc<[u32]>>,
    /// Whether a turn without a call was answered with the reminder.
    is_reminded: bool,
    episode: Episode,
}

/// The context of the next turn.
enum Next {
    /// The current row followed by these tokens.
    Append(Vec<u32>),
    /// These pieces, in a new row.
    Reopen(Vec<Arc<[u32]>>),
}

impl<S: Server> EpisodeRun<'_, S> {
    async fn run(&mut self, policy: &mut impl PolicyHandle) -> Result<End, EngineError> {
        let mut next = Next::Append(Vec::new());
        while self.episode.turns < self.settings.max_turns {
            let used = match &next {
                Next::Append(delta) => self.episode.row().len() + delta.len(),
                Next::Reopen(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            };
            let left = self.settings.max_episode_tokens.saturating_sub(used);
            let budget = left.min(self.settings.max_turn_tokens);
            if budget == 0 {
                return Ok(End::OutOfTokens);
            }
            let delta = match &next {
                Next::Append(delta) => delta.as_slice(),
                Next::Reopen(pieces) => {
                    policy.reopen(pieces.clone());
                    &[]
                }
            };
            let sampled = match policy.turn(delta, self.chat.stop(), budget).await {
                Ok(sampled) => sampled,
                Err(EngineError::Context { .. }) => return Ok(End::OutOfTokens),
                Err(error) => return Err(error),
            };
            match next {
                Next::Append(delta) => self.episode.append(&delta),
                Next::Reopen(pieces) => {
                    self.episode.row_starts.push(self.episode.tokens.len());
                    self.episode.append(&pieces.concat());
                    self.prompt_pieces = pieces;
                }
            }
            self.episode.append_turn(&sampled);
            let turn = self.chat.parse(&sampled.tokens);
            self.record_turn(&sampled.tokens, &turn);
            if sampled.stop != Stop::Token {
                let is_turns_own = budget < left && sampled.tokens.len() >= budget;
                return Ok(if is_turns_own { End::OutOfTurnTokens } else { End::OutOfTokens });
            }
            let answered = match turn.calls.is_empty() {
                true => self.answer_text(turn.text),
                false => self.answer_calls(turn.calls, &turn.ids).await,
            };
            match answered {
                Ok(delta) => next = self.next_context(&sampled.tokens, delta),
                Err(end) => return Ok(end),
            }
        }
        Ok(End::OutOfTurns)
    }

    /// The context after a turn and its results.
    fn next_context(&self, sampled: &[u32], results: Vec<u32>) -> Next {
        let row = self.episode.row();
        let before = &row[..row.len() - sampled.len()];
        let Some(RewrittenHistory { kept, turn, header }) = self.chat.rewritten(before, sampled, &results)
        else {
            return Next::Append(results);
        };
        // Pieces that are kept whole are not recomputed.
        let mut pieces: Vec<Arc<[u32]>> = Vec::new();
        let mut end = 0;
        for piece in self.prompt_pieces.iter().take_while(|piece| {
            end += piece.len();
            end <= kept
        }) {
            pieces.push(piece.clone());
        }
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        pieces.push([&before[whole..kept], &turn].concat().into());
        pieces.extend((!header.is_empty()).then(|| header.into()));
        Next::Reopen(pieces)
    }

    /// Answers a turn without a call: with the reminder, once. Otherwise the turn ends the episode.
    fn answer_text(&mut self, text: String) -> Result<Vec<u32>, End> {
        let has_turns = self.episode.turns < self.settings.max_turns;
        if self.settings.reminder
            && !self.is_reminded
            && has_turns
            && let Some(tokens) = self.chat.reminder(REMINDER)
        {
            self.is_reminded = true;
            self.episode.messages.push(json!({"role": "user", "content": REMINDER}));
            return Ok(tokens);
        }
        if !self.settings.text_answers || text.is_empty() {
            return Err(End::NoCall);
        }
        self.complete(text, AnswerSource::Text)
    }

    /// Ends the episode with an answer.
    fn complete<T>(&mut self, answer: String, source: AnswerSource) -> Result<T, End> {
        (self.episode.answer, self.episode.answer_source) = (Some(answer), Some(source));
        Err(End::Completed)
    }

    /// Answers the calls of one turn in order: the tokens of the results. `Err` if one of them ends the episode.
    async fn answer_calls(
        &mut self,
        calls: Vec<Result<ToolCall, String>>,
        ids: &[String],
    ) -> Result<Vec<u32>, End> {
        let is_raw = calls.iter().any(Result::is_err);
        self.episode.parse_failures += u32::from(is_raw);
        let mut results = Vec::with_capacity(calls.len());
        for (call, id) in calls.into_iter().zip(ids) {
            let (name, arguments) = match &call {
                Ok(call) => (call.name.clone(), is_raw.then(|| call.arguments.clone())),
                Err(_) => (String::new(), None),
            };
            let Answer { text, error, bytes } = match call {
                Ok(call) => self.answer_call(call).await?,
                Err(why) => {
                    Answer::error(CallError::Unparsable, format!("error: the tool call is malformed: {why}"))
                }
            };
            let mut message = json!({"role": "tool", "tool_call_id": id, "name": name, "content": text});
            if let Some(error) = error {
                message["is_error"] = true.into();
                message["error"] = error.name().into();
            }
            if let Some(bytes) = bytes {
                message["bytes"] = bytes.into();
            }
            if let Some(arguments) = arguments {
                message["arguments"] = arguments.into();
            }
            self.episode.messages.push(message);
            results.push(text);
        }
        Ok(self.chat.results(ids, &results))
    }

    async fn answer_call(&mut self, call: ToolCall) -> Result<Answer, End> {
        let (wire_name, arguments) = match self.toolbox.action(&call) {
            Action::Complete { answer } => return self.complete(answer, AnswerSource::Tool),
            Action::Refuse(error, why) => return Ok(self.refuse(error, &why)),
            Action::Call { wire_name, arguments } => (wire_name, arguments.into_owned()),
        };
        if self.episode.tools.len() >= self.settings.max_calls as usize {
            return Ok(self.refuse(CallError::NoCallsLeft, "no calls are left; complete the task"));
        }
        if let Some(why) = self.server.refuse(wire_name) {
            return Ok(self.refuse(CallError::NoCallsLeft, &why));
        }
        let answered = match self.server.ready(wire_name).await {
            Ok(()) => self.server.call(wire_name, arguments).await,
            Err(cause) => Err(cause),
        };
        let outcome = match answered {
            Ok(outcome) => outcome,
            Err(cause) => {
                self.episode.lost = Some(LostCall { call, cause });
                return Err(End::ServerDown);
            }
        };
        self.episode.tools.push(call.name);
        self.episode.tool_errors += u32::from(outcome.is_error);
        let whole = outcome.text.len();
        let (text, is_clipped) = result_view(outcome.text, self.settings.result_chars);
        let error = outcome.is_error.then_some(CallError::Tool);
        Ok(Answer { text, error, bytes: is_clipped.then_some(whole) })
    }

    fn refuse(&mut self, error: CallError, why: &str) -> Answer {
        self.episode.tool_errors += 1;
        Answer::error(error, format!("error: {why}"))
    }

    /// Adds a turn to the messages. A turn that could not be parsed is added as raw text.
    fn record_turn(&mut self, tokens: &[u32], turn: &Turn) {
        let calls: Option<Vec<&ToolCall>> = turn.calls.iter().map(|call| call.as_ref().ok()).collect();
        let is_loose = |(call, form): &(&Result<ToolCall, String>, &CallForm)| {
            call.is_ok() && **form != CallForm::Template
        };
        self.episode.loose_calls += turn.calls.iter().zip(&turn.forms).filter(is_loose).count() as u32;
        let mut message = Map::from_iter([("role".to_owned(), Value::from("assistant"))]);
        match calls {
            Some(calls) => {
                message.insert("content".into(), turn.text.clone().into());
                if let Some(reasoning) = &turn.reasoning {
                    message.insert("reasoning_content".into(), reasoning.clone().into());
                }
                if !calls.is_empty() {
                    let call = |((call, id), form): ((&ToolCall, &String), &CallForm)| {
                        let mut call = json!({"id": id, "type": "function", "function": call});
                        if *form != CallForm::Template {
                            call["form"] = form.name().into();
                        }
                        call
                    };
                    let calls: Value = calls.into_iter().zip(&turn.ids).zip(&turn.forms).map(call).collect();
                    message.insert("tool_calls".into(), calls);
                }
            }
            // Without the end-of-turn token, which the template writes.
            None => _ = message.insert("content".into(), self.chat.written(tokens).into()),
        }
        self.episode.messages.push(message.into());
    }
}
