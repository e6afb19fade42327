//! Conversations with an agent outside a stage, one after another: what the user says, and what comes of it.

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    dialogue::{Dialogue, Hooks, LostCall, ToolServer},
    episode::{Ending, answer},
    history::History,
    settings::AgentSettings,
};
use crate::{
    data::{End, Message, paired_calls},
    error::{Diagnostic, Result},
    mcp::McpError,
};

/// Where conversations come from: the engine or an endpoint with servers, or a script in tests.
pub trait ConversationSource {
    type Prompt;
    type Dialogue: Dialogue;
    type Server: ToolServer;

    fn settings(&self) -> &AgentSettings;

    /// The prompt of a first message.
    ///
    /// # Errors
    /// If the template cannot write it.
    fn prompt(&self, text: &str) -> Result<Self::Prompt>;

    fn begin(&self, prompt: Self::Prompt) -> Self::Dialogue;

    /// Sessions in a fresh state.
    fn server(&self) -> Self::Server;
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("the chat template cannot carry a second message of the user")]
#[diagnostic(code = "talk::one_message")]
#[hint = "start another conversation; `/reset` does so in a chat"]
pub struct OneMessage;

/// A call as it was made or refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallRecord {
    pub tool: String,
    pub arguments: Value,
    pub result: String,
    /// Why it failed, a name of [`CallError`](crate::data::CallError).
    pub error: Option<String>,
}

/// What the agent did about a message.
#[derive(Debug)]
pub struct Reply {
    pub end: End,
    pub answer: Option<String>,
    pub calls: Vec<CallRecord>,
    /// Tokens that were sampled for it, and those of the context afterwards.
    pub sampled: usize,
    pub context: usize,
    /// Why the server was lost.
    pub lost: Option<McpError>,
}

impl CallRecord {
    /// The last call of these messages.
    pub fn last(messages: &[Message]) -> Option<Self> {
        calls(messages).pop()
    }
}

impl Reply {
    pub fn json(&self) -> Value {
        json!({
            "answer": self.answer, "calls": self.calls, "end": self.end.to_string(),
            "tokens": {"sampled": self.sampled, "context": self.context},
        })
    }
}

pub struct Talk<S: ConversationSource> {
    source: S,
    server: S::Server,
    conversation: Option<S::Dialogue>,
    /// Whether a message was answered, so that there is something to continue.
    is_answered: bool,
}

impl<S: ConversationSource> Talk<S> {
    pub fn new(source: S) -> Self {
        Self { server: source.server(), source, conversation: None, is_answered: false }
    }

    /// Connects to the servers of these tools.
    ///
    /// # Errors
    /// If one cannot be reached.
    pub async fn connect<'t>(&self, wire_names: impl Iterator<Item = &'t str>) -> Result<(), McpError> {
        for name in wire_names {
            self.server.ready(name).await?;
        }
        Ok(())
    }

    /// Forgets the conversation. The next one has new sessions.
    pub fn reset(&mut self) {
        self.conversation = None;
        self.is_answered = false;
        self.server = self.source.server();
    }

    pub fn history(&self) -> Option<&History> {
        self.conversation.as_ref().map(Dialogue::history)
    }

    /// Says a message, and lets the agent answer. If the future is dropped, the message is taken back by the next one.
    ///
    /// # Errors
    /// If the template cannot carry the message, or the engine fails.
    pub async fn reply<H: Hooks>(&mut self, text: &str, reminds: bool, hooks: &mut H) -> Result<Reply> {
        let Some(conversation) = self.conversation.as_mut().filter(|_| self.is_answered) else {
            return self.begin(self.source.prompt(text)?, reminds, hooks).await;
        };
        if !conversation.say(text) {
            return Err(OneMessage.into());
        }
        self.answered(reminds, hooks).await
    }

    /// Begins a conversation with this prompt in place of the last one, and lets the agent answer.
    ///
    /// # Errors
    /// If the engine fails.
    pub async fn begin<H: Hooks>(
        &mut self,
        prompt: S::Prompt,
        reminds: bool,
        hooks: &mut H,
    ) -> Result<Reply> {
        // Frees the context of what was taken back.
        self.conversation = None;
        self.conversation = Some(self.source.begin(prompt));
        self.answered(reminds, hooks).await
    }

    async fn answered<H: Hooks>(&mut self, reminds: bool, hooks: &mut H) -> Result<Reply> {
        let settings = self.source.settings();
        let Some(conversation) = &mut self.conversation else { return Err(OneMessage.into()) };
        let (said, before) = (conversation.history().messages.len(), conversation.sampled_tokens());
        let Ending { end, answer, lost } =
            answer(conversation, &self.server, settings, reminds, hooks).await?;
        let reply = Reply {
            end,
            answer: answer.map(|(text, _)| text),
            calls: calls(&conversation.history().messages[said..]),
            sampled: conversation.sampled_tokens() - before,
            context: conversation.context_tokens(),
            lost: lost.map(|LostCall { cause, .. }| cause),
        };
        match reply.lost {
            Some(_) => self.server = self.source.server(),
            None => self.is_answered = true,
        }
        Ok(reply)
    }
}

/// The calls of these messages that have results.
fn calls(messages: &[Message]) -> Vec<CallRecord> {
    let made = paired_calls(messages).into_iter();
    made.filter_map(|call| {
        Some(CallRecord {
            tool: call.tool().to_owned(),
            arguments: call.sent().cloned().unwrap_or_default().into(),
            result: call.result?.text.clone(),
            error: call.error().map(|error| error.name().to_owned()),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use tokio::sync::oneshot;

    use super::{
        super::testing::{Line, Scripted, call},
        *,
    };
    use crate::{agent::Refusal, data::CallError};

    /// Notes what it sees, and refuses calls of `add_note`.
    #[derive(Default)]
    struct Noted {
        tokens: usize,
        results: Vec<Message>,
    }

    impl Hooks for Noted {
        const SEES_TOKENS: bool = true;

        fn token(&mut self, _: u32) {
            self.tokens += 1;
        }

        async fn permit(
            &mut self,
            tool: &str,
            _: &mut Map<String, Value>,
            _: &History,
        ) -> Result<(), Refusal> {
            match tool {
                "add_note" => Err(Refusal(CallError::Refused, "the user did not allow this call".into())),
                _ => Ok(()),
            }
        }

        fn answered(&mut self, messages: &[Message]) {
            self.results.extend(messages.last().cloned());
        }
    }

    #[test]
    fn a_call_has_its_own_arguments_if_ids_are_repeated() {
        let call = |n: u32| json!([{"id": "call_0", "function": {"name": "get", "arguments": {"n": n}}}]);
        let result = |n: u32| json!({"role": "tool", "tool_call_id": "call_0", "name": "get", "content": n.to_string()});
        let turn = |n: u32| [json!({"role": "assistant", "tool_calls": call(n)}), result(n)];
        let made =
            calls(&serde_json::from_value::<Vec<Message>>([turn(1), turn(2)].concat().into()).unwrap());
        assert_eq!(made.iter().map(|made| made.arguments["n"].clone()).collect::<Vec<_>>(), [1, 2]);
    }

    #[tokio::test]
    async fn a_call_that_is_not_permitted_is_an_error_that_the_model_sees() {
        let lines =
            [call("add_note", r#"{"text": "milk"}"#), call("complete_task", r#"{"answer": "I may not."}"#)];
        let mut talk = Talk::new(Scripted::new(lines));
        let mut hooks = Noted::default();
        let reply = talk.reply("Note milk.", false, &mut hooks).await.unwrap();
        assert_eq!((reply.end, reply.answer.as_deref()), (End::Completed, Some("I may not.")));
        let made = CallRecord {
            tool: "add_note".into(),
            arguments: json!({"text": "milk"}),
            result: "error: the user did not allow this call".into(),
            error: Some("refused".into()),
        };
        assert_eq!(reply.calls, [made]);
        assert!(talk.source.calls().is_empty(), "it does not reach the server");
        assert_eq!(hooks.results[0].error(), Some(CallError::Refused));
        assert!(talk.source.seen().contains("the user did not allow this call"));
        assert_eq!(hooks.tokens, reply.sampled);
    }

    #[tokio::test]
    async fn each_message_has_turns_and_calls_of_its_own() {
        let look = || call("get_note", "{}");
        let lines = [look(), look(), look(), Line::text("Done.")];
        let mut talk = Talk::new(Scripted::new(lines));
        let limited = talk.reply("Look.", false, &mut Noted::default()).await.unwrap();
        assert_eq!((limited.end, limited.calls.len()), (End::OutOfTurns, 3));
        let next = talk.reply("And now?", false, &mut Noted::default()).await.unwrap();
        assert_eq!((next.answer.as_deref(), next.calls.len()), (Some("Done."), 0));
        assert_eq!(talk.history().unwrap().turns, 4);
    }

    #[tokio::test]
    async fn a_cancelled_message_is_taken_back_by_the_next_one() {
        let lines = [Line::text("Hello."), call("get_note", "{}"), Line::text("Good."), Line::text("Again.")];
        let mut talk = Talk::new(Scripted::new(lines));
        talk.reply("Hi", false, &mut Noted::default()).await.unwrap();
        let before = talk.history().unwrap().tokens.len();
        let (called, hangs) = oneshot::channel();
        talk.source.hang(called);
        let mut hooks = Noted::default();
        tokio::select! {
            _ = talk.reply("Look.", false, &mut hooks) => panic!("the call is answered"),
            _ = hangs => {}
        }
        let reply = talk.reply("Never mind.", false, &mut Noted::default()).await.unwrap();
        assert_eq!(reply.answer.as_deref(), Some("Good."));
        let history = talk.history().unwrap();
        let said: Vec<&str> = history.messages.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(said[said.len() - 4..], ["Hi", "Hello.", "Never mind.", "Good."]);
        assert!(history.tokens.len() > before);
        talk.reset();
        talk.reply("Hi", false, &mut Noted::default()).await.unwrap();
        assert_eq!(talk.history().unwrap().turns, 1, "another conversation");
    }

    #[tokio::test]
    async fn a_first_message_that_was_cancelled_is_as_if_it_had_not_been_said() {
        let mut talk = Talk::new(Scripted::new([call("get_note", "{}"), Line::text("Hello.")]));
        let (called, hangs) = oneshot::channel();
        talk.source.hang(called);
        let mut hooks = Noted::default();
        tokio::select! {
            _ = talk.reply("Look.", false, &mut hooks) => panic!("the call is answered"),
            _ = hangs => {}
        }
        let reply = talk.reply("Hi", false, &mut Noted::default()).await.unwrap();
        assert_eq!(reply.answer.as_deref(), Some("Hello."));
        assert!(!talk.history().unwrap().messages.iter().any(|message| message.text == "Look."));
    }

    #[tokio::test]
    async fn after_a_lost_server_the_conversation_goes_on_with_new_sessions() {
        let lines = [Line::text("Hello."), call("crash", "{}"), call("get_note", "{}"), Line::text("Fine.")];
        let mut talk = Talk::new(Scripted::new(lines));
        talk.reply("Hi", false, &mut Noted::default()).await.unwrap();
        let lost = talk.reply("Crash.", false, &mut Noted::default()).await.unwrap();
        assert_eq!((lost.end, lost.lost.is_some()), (End::ServerDown, true));
        let sessions = talk.source.sessions();
        let next = talk.reply("Look.", false, &mut Noted::default()).await.unwrap();
        assert_eq!((next.answer.as_deref(), sessions), (Some("Fine."), 2));
        let messages = &talk.history().unwrap().messages;
        assert!(!messages.iter().any(|message| message.text == "Crash."));
    }

    #[tokio::test]
    async fn a_full_context_is_an_end_and_another_conversation_begins() {
        let mut talk =
            Talk::new(Scripted::new([Line::text("Hello."), Line::text("Again.")]).with_context(60));
        let full = talk.reply(&"word ".repeat(400), false, &mut Noted::default()).await.unwrap();
        assert_eq!((full.end, full.sampled), (End::OutOfTokens, 0));
    }
}
