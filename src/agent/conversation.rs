//! A conversation: a policy and its tools, turn by turn, for a user.
//!
//! [`Conversation::turn`] lets the agent write one turn and answers its calls; [`Conversation::say`] adds a further message
//! of the user. Sampled tokens are kept, and only tool results, messages and template text are appended. If earlier turns lose
//! their reasoning, the context changes and the conversation continues in a new row. Every output of the policy gets an
//! answer: a malformed call, an unknown tool and wrong arguments give an error that the policy sees, and do not reach the
//! server.
//!
//! A turn that is not finished is cancelled: its future was dropped, the engine failed, or the server was lost. The
//! conversation then continues from the user's last message as if nothing had followed it. Calls that a server answered stay
//! counted, because they were made.

use std::{pin::pin, sync::Arc};

use tokio::sync::mpsc::unbounded_channel;

use super::{
    answers::Answers,
    dialogue::{Dialogue, Hooks, ToolServer, Turned},
    history::History,
    policy::PolicyHandle,
    settings::AgentSettings,
    toolbox::Toolbox,
};
use crate::{
    chat::{CallForm, Chat, ChatError, Prompt, RewrittenHistory, ToolCall, Turn},
    data::{Message, MessageCall},
    engine::{EngineError, Sampled, Stop},
    error::Result as AnyResult,
};

/// An agent without its policy: how its conversations are written, its tools, and the section `[agent]`.
pub struct Agent {
    pub chat: Chat,
    pub toolbox: Toolbox,
    pub settings: AgentSettings,
}

/// The prompt of a conversation, as messages and as tokens, split where sharing ends.
#[derive(Debug, Clone)]
pub struct PromptTokens {
    messages: Vec<Message>,
    /// The prompt's tokens.
    pub pieces: Vec<Arc<[u32]>>,
}

impl PromptTokens {
    /// The prompt of a task, or another first message, with the system text and tools of [`Chat::with_tools`].
    ///
    /// # Errors
    /// If the template cannot write the task.
    pub fn new(chat: &Chat, task: &str) -> Result<Self, ChatError> {
        let Prompt { shared, task: own } = chat.prompt(task)?;
        let messages = with_system(chat.system(), vec![Message::user(task)]);
        let (task, header) = own.split_at(own.len() - chat.header_len(&own));
        let pieces = [&shared, task, header].into_iter().filter(|piece| !piece.is_empty());
        let pieces = pieces.map(Arc::from).collect();
        Ok(Self { messages, pieces })
    }

    /// The prompt of a conversation in which user and assistant have said these texts, the user last. Earlier turns are as
    /// the template renders them, without their calls.
    ///
    /// # Errors
    /// If the template refuses the conversation.
    pub fn of_messages(chat: &Chat, said: &[Message]) -> Result<Self, ChatError> {
        let messages = with_system(chat.system(), said.to_vec());
        let pieces = chat.conversation(&messages.iter().map(Message::json).collect::<Vec<_>>())?;
        Ok(Self { messages, pieces })
    }
}

/// The context of the next turn.
#[derive(Clone)]
enum Next {
    /// The current row followed by these tokens.
    Append(Vec<u32>),
    /// These pieces, in a new row.
    Reopen(Vec<Arc<[u32]>>),
}

/// Where a conversation was before a message of the user.
#[derive(Default)]
struct Mark {
    /// The message, unless it is the prompt's.
    said: Option<String>,
    messages: usize,
    tokens: usize,
    rows: usize,
    last_turn: usize,
    prompt_pieces: Vec<Arc<[u32]>>,
    next: Option<Next>,
}

/// An agent at work.
pub struct Conversation<P> {
    agent: Arc<Agent>,
    policy: P,
    history: History,
    /// The prompt of the current row.
    prompt_pieces: Vec<Arc<[u32]>>,
    /// The context of the next turn; none if the user has to say something first.
    next: Option<Next>,
    /// Tokens of the last turn, at the end of the history.
    last_turn: usize,
    /// Where an unfinished turn leads back to.
    mark: Mark,
    is_finished: bool,
}

impl<P: PolicyHandle> Conversation<P> {
    /// Starts a conversation with this prompt. The policy was opened with its pieces.
    pub fn new(agent: Arc<Agent>, policy: P, PromptTokens { messages, pieces }: PromptTokens) -> Self {
        let mut history = History { messages, ..History::default() };
        history.append(&pieces.concat());
        let next = Some(Next::Append(Vec::new()));
        let (prompt_pieces, mark) = (pieces, Mark::default());
        let mut conversation =
            Self { agent, policy, history, prompt_pieces, next, last_turn: 0, mark, is_finished: true };
        conversation.mark = conversation.here(None);
        conversation
    }

    fn here(&self, said: Option<String>) -> Mark {
        Mark {
            said,
            messages: self.history.messages.len(),
            tokens: self.history.tokens.len(),
            rows: self.history.row_starts.len(),
            last_turn: self.last_turn,
            prompt_pieces: self.prompt_pieces.clone(),
            next: self.next.clone(),
        }
    }

    /// Forgets the user's last message and what followed it; of the prompt's message, what followed it.
    fn return_to_mark(&mut self) {
        let Mark { messages, tokens, rows, last_turn, prompt_pieces, next, .. } = &self.mark;
        self.history.messages.truncate(*messages);
        self.history.row_starts.truncate(*rows);
        (self.last_turn, self.prompt_pieces, self.next) = (*last_turn, prompt_pieces.clone(), next.clone());
        self.is_finished = true;
        if self.history.tokens.len() > *tokens {
            self.history.tokens.truncate(*tokens);
            self.history.sampled.truncate(*tokens);
            self.history.logprobs.truncate(*tokens);
            let mut pieces = self.prompt_pieces.clone();
            let known: usize = pieces.iter().map(|piece| piece.len()).sum();
            let rest = &self.history.row()[known..];
            pieces.extend((!rest.is_empty()).then(|| rest.into()));
            self.policy.reopen(pieces);
        }
    }
}

impl<P: PolicyHandle> Dialogue for Conversation<P> {
    fn history(&self) -> &History {
        &self.history
    }

    fn into_history(self) -> History {
        self.history
    }

    fn context_tokens(&self) -> usize {
        match &self.next {
            None => self.history.row().len(),
            Some(Next::Append(tokens)) => self.history.row().len() + tokens.len(),
            Some(Next::Reopen(pieces)) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// False, too, if the prompt is not answered yet.
    fn say(&mut self, text: &str) -> bool {
        let Some(tokens) = self.agent.chat.user_message(text) else { return false };
        if !self.is_finished || self.history.tokens.len() == self.mark.tokens {
            self.return_to_mark();
        }
        if self.last_turn == 0 {
            return false;
        }
        self.mark = self.here(Some(text.to_owned()));
        let end = self.agent.chat.stop().first().copied();
        let behind_end = || end.into_iter().chain(tokens.iter().copied());
        let is_ended = self.history.tokens.last().is_some_and(|last| self.agent.chat.stop().contains(last));
        let next = match self.next.take() {
            // Results that the agent has not seen: it says nothing about them.
            Some(mut next) => {
                self.history.messages.push(Message::assistant("", Vec::new()));
                match &mut next {
                    Next::Append(results) => results.extend(behind_end()),
                    Next::Reopen(pieces) => pieces.push(behind_end().collect()),
                }
                next
            }
            None => match self.next_context(tokens.clone()) {
                Next::Append(_) if !is_ended => Next::Append(behind_end().collect()),
                next => next,
            },
        };
        self.next = Some(next);
        self.history.messages.push(Message::user(text));
        true
    }

    /// Without a message to answer, the agent writes nothing.
    async fn turn<H: Hooks>(
        &mut self,
        server: &impl ToolServer,
        hooks: &mut H,
        max_tokens: usize,
        max_calls: usize,
    ) -> AnyResult<Turned> {
        if !self.is_finished {
            self.return_to_mark();
            if let Some(text) = self.mark.said.clone() {
                self.say(&text);
            }
        }
        let sampled = match self.sample_turn(hooks, max_tokens).await? {
            Ok(sampled) => sampled,
            Err(turned) => return Ok(turned),
        };
        let Turn { text, calls, ids, .. } = self.record_turn(&sampled);
        let turned = if sampled.stop != Stop::Token {
            Turned::Cut { tokens: sampled.tokens.len() }
        } else if calls.is_empty() {
            Turned::Text(text)
        } else {
            match self.answer_calls(calls, &ids, server, hooks, max_calls).await {
                Ok(()) => {
                    self.prepare_context(&ids);
                    Turned::Called
                }
                Err(turned) => turned,
            }
        };
        self.is_finished = !matches!(turned, Turned::Lost(_));
        Ok(turned)
    }
}

/// The steps of a turn, in their order.
impl<P: PolicyHandle> Conversation<P> {
    /// Samples in the next context, which stays the next until the turn is recorded. `Err` if nothing can be sampled.
    async fn sample_turn<H: Hooks>(
        &mut self,
        hooks: &mut H,
        max_tokens: usize,
    ) -> AnyResult<Result<Sampled, Turned>> {
        let Agent { chat, settings, .. } = &*self.agent;
        let budget = max_tokens.min(settings.max_turn_tokens);
        if budget == 0 {
            return Ok(Err(Turned::NoRoom));
        }
        let delta = match &self.next {
            None => return Ok(Err(Turned::Text(String::new()))),
            Some(Next::Append(delta)) => delta.as_slice(),
            Some(Next::Reopen(pieces)) => {
                self.policy.reopen(pieces.clone());
                &[]
            }
        };
        self.is_finished = false;
        match sample(&mut self.policy, delta, chat.stop(), budget, hooks).await {
            Ok(sampled) => Ok(Ok(sampled)),
            Err(EngineError::Context { .. }) => {
                self.is_finished = true;
                Ok(Err(Turned::NoRoom))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the context and the turn that was sampled in it to the history.
    fn record_turn(&mut self, sampled: &Sampled) -> Turn {
        match self.next.take() {
            None => {}
            Some(Next::Append(delta)) => self.history.append(&delta),
            Some(Next::Reopen(pieces)) => {
                self.history.row_starts.push(self.history.tokens.len());
                self.history.append(&pieces.concat());
                self.prompt_pieces = pieces;
            }
        }
        let turn = self.agent.chat.parse(self.history.row(), &sampled.tokens);
        self.history.append_turn(sampled);
        self.last_turn = sampled.tokens.len();
        self.record_message(&sampled.tokens, &turn);
        turn
    }

    /// Adds a turn to the messages, with its calls that can be read. If there are others, its text is all that was written.
    fn record_message(&mut self, tokens: &[u32], turn: &Turn) {
        let calls = turn.calls.iter().zip(&turn.ids).zip(&turn.forms);
        let read =
            calls.filter_map(|((call, id), form)| Some(MessageCall::new(id, call.clone().ok()?, *form)));
        let read: Vec<MessageCall> = read.collect();
        let loose = read.iter().filter(|call| call.form != CallForm::Template).count();
        self.history.loose_calls += loose as u32;
        // Without the end-of-turn token, which the template writes.
        let written = turn.calls.iter().any(Result::is_err).then(|| self.agent.chat.written(tokens));
        let (text, reasoning) = match &written {
            Some(written) => (written, None),
            None => (&turn.text, turn.reasoning.clone()),
        };
        self.history.messages.push(Message { reasoning, ..Message::assistant(text, read) });
    }

    /// Adds a message for each call to the history. `Err` if one of the calls ends the turn.
    async fn answer_calls<H: Hooks>(
        &mut self,
        calls: Vec<Result<ToolCall, String>>,
        ids: &[String],
        server: &impl ToolServer,
        hooks: &mut H,
        max_calls: usize,
    ) -> Result<(), Turned> {
        let Agent { toolbox, settings, .. } = &*self.agent;
        let history = &mut self.history;
        Answers { toolbox, settings, max_calls, history, server, hooks }.calls(calls, ids).await
    }

    /// The next turn is sampled behind the answers to the calls with these ids, which are the last messages.
    fn prepare_context(&mut self, ids: &[String]) {
        let messages = &self.history.messages;
        let answers = &messages[messages.len() - ids.len()..];
        let results: Vec<String> = answers.iter().map(|answer| answer.text.clone()).collect();
        self.next = Some(self.next_context(self.agent.chat.results(ids, &results)));
    }

    /// The context after the last turn and these tokens, of its results or of a message.
    fn next_context(&self, results: Vec<u32>) -> Next {
        let row = self.history.row();
        let (before, sampled) = row.split_at(row.len() - self.last_turn);
        let Some(RewrittenHistory { kept, turn, header }) =
            self.agent.chat.rewritten(before, sampled, &results)
        else {
            return Next::Append(results);
        };
        // Pieces that are kept whole are not recomputed.
        let mut end = 0;
        let is_kept = |piece: &&Arc<[u32]>| {
            end += piece.len();
            end <= kept
        };
        let mut pieces: Vec<Arc<[u32]>> = self.prompt_pieces.iter().take_while(is_kept).cloned().collect();
        let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
        pieces.push([&before[whole..kept], &turn].concat().into());
        pieces.extend((!header.is_empty()).then(|| header.into()));
        Next::Reopen(pieces)
    }
}

/// These messages behind the system prompt, if there is one.
pub(super) fn with_system(system: &str, mut messages: Vec<Message>) -> Vec<Message> {
    if !system.is_empty() {
        messages.insert(0, Message::system(system));
    }
    messages
}

/// A turn of the policy, whose tokens the hooks may follow.
async fn sample<H: Hooks>(
    policy: &mut impl PolicyHandle,
    append: &[u32],
    stop: &[u32],
    max_new: usize,
    hooks: &mut H,
) -> Result<Sampled, EngineError> {
    if !H::SEES_TOKENS {
        return policy.turn(append, stop, max_new, None).await;
    }
    let (sender, mut tokens) = unbounded_channel();
    let mut turn = pin!(policy.turn(append, stop, max_new, Some(sender)));
    let sampled = loop {
        tokio::select! {
            biased;
            Some((token, _)) = tokens.recv() => hooks.token(token),
            sampled = &mut turn => break sampled,
        }
    };
    while let Ok((token, _)) = tokens.try_recv() {
        hooks.token(token);
    }
    sampled
}
