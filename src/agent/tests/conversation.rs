//! Conversations without a task: several messages of a user, hooks, turns that are cancelled.

use tokio::sync::oneshot;

use super::*;
use crate::{
    agent::{
        Conversation,
        dialogue::{Dialogue as _, Hooks, Refusal, Turned},
    },
    data::CallError,
};

/// Notes what it sees, and decides by the arguments.
#[derive(Default)]
struct Watching {
    tokens: Vec<u32>,
    results: Vec<String>,
}

impl Hooks for Watching {
    const SEES_TOKENS: bool = true;

    fn token(&mut self, token: u32) {
        self.tokens.push(token);
    }

    async fn permit(
        &mut self,
        _: &str,
        arguments: &mut Map<String, Value>,
        _: &History,
    ) -> Result<(), Refusal> {
        match arguments.get("at").and_then(Value::as_str) {
            Some("the safe") => Err(Refusal(CallError::Refused, "the user says no".into())),
            Some("the drawer") => {
                arguments.insert("at".into(), "the upper drawer".into());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn answered(&mut self, messages: &[Message]) {
        self.results.extend(messages.last().map(|last| last.text.clone()));
    }
}

/// A scripted server whose first call never ends.
#[derive(Default)]
struct Hanging {
    server: ScriptedServer,
    called: Mutex<Option<oneshot::Sender<()>>>,
}

impl ToolServer for Hanging {
    async fn call(&self, name: &str, arguments: Map<String, Value>) -> Result<Outcome, McpError> {
        let called = self.called.lock().unwrap().take();
        match called {
            None => self.server.call(name, arguments).await,
            Some(called) => {
                called.send(()).unwrap();
                std::future::pending().await
            }
        }
    }
}

/// A script whose turn with this number never ends.
struct Stuck {
    script: Script,
    at: usize,
    sampling: Option<oneshot::Sender<()>>,
}

impl PolicyHandle for Stuck {
    async fn turn(
        &mut self,
        append: &[u32],
        stop: &[u32],
        max_new: usize,
        tokens: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        if self.script.appended.len() == self.at
            && let Some(sampling) = self.sampling.take()
        {
            sampling.send(()).unwrap();
            std::future::pending::<()>().await;
        }
        self.script.turn(append, stop, max_new, tokens).await
    }

    fn reopen(&mut self, pieces: Vec<Arc<[u32]>>) {
        self.script.reopen(pieces);
    }
}

/// As Qwen2.5 writes it.
fn call(name: &str, arguments: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
}

/// Qwen2.5's template writes the last turn as every other.
fn chat() -> Chat {
    Chat::load(&super::family::path("qwen2_5")).unwrap()
}

fn script(chat: &Chat, lines: &[&str]) -> Script {
    let line = |line: &&str| ([chat.encode_text(line), chat.stop()[..1].to_vec()].concat(), Stop::Token);
    Script { lines: lines.iter().map(line).collect(), appended: Vec::new(), reopened: Vec::new() }
}

fn started<'a>(script: &'a mut Script, chat: &Chat) -> Conversation<&'a mut Script> {
    let prompt = PromptTokens::new(chat, "Where is it?").unwrap();
    Conversation::new(agent(chat.clone(), lenient()), script, prompt)
}

fn brief() -> Chat {
    chat().with_tools("Be brief.", toolbox().functions()).unwrap()
}

/// Turns until one without a call.
async fn reply(
    conversation: &mut Conversation<impl PolicyHandle>,
    server: &impl ToolServer,
    hooks: &mut impl Hooks,
) -> Turned {
    loop {
        match conversation.turn(server, hooks, 1000, usize::MAX).await.unwrap() {
            Turned::Called => {}
            end => return end,
        }
    }
}

fn said(turned: &Turned) -> &str {
    match turned {
        Turned::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_messages_of_a_user_are_one_conversation_with_a_live_server() {
    let server = HttpServer::bind("sqlite", ([127, 0, 0, 1], 0).into()).await.unwrap();
    let transport = Transport::http(server.url().unwrap());
    tokio::spawn(server.serve());
    let session = Session::connect(&ServerSpec::new(transport, State::ReadOnly)).await.unwrap();
    let toolbox = Toolbox::new(&crate::offered::tool_rows(session.describe().await.unwrap().tools)).unwrap();
    let chat = chat().with_tools("", toolbox.functions()).unwrap();
    let agent = Arc::new(Agent { chat: chat.clone(), toolbox, settings: lenient() });

    let count = |table: &str| call("run_query", &format!("{{\"sql\": \"SELECT COUNT(*) FROM {table}\"}}"));
    let (first, second) = (count("departments"), count("nothing"));
    let mut script = script(&chat, &[&first, "There are 8.", &second, "There is no such table."]);
    let prompt = PromptTokens::new(&chat, "How many departments are there?").unwrap();
    let mut conversation = Conversation::new(agent, &mut script, prompt);
    let mut hooks = Watching::default();
    assert_eq!(said(&reply(&mut conversation, &session, &mut hooks).await), "There are 8.");
    // Nobody has asked anything more.
    assert_eq!(said(&conversation.turn(&session, &mut hooks, 1000, usize::MAX).await.unwrap()), "");
    assert!(conversation.say("And how many of nothing?"));
    assert_eq!(said(&reply(&mut conversation, &session, &mut hooks).await), "There is no such table.");

    let history = conversation.into_history();
    assert_eq!((history.turns, history.tools.len(), history.tool_errors), (4, 2, 1));
    // The rows are what the template renders, and the hooks saw every token that was sampled.
    let rendered = chat.rendered(&values(&history.messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&history.tokens));
    let sampled = history.tokens.iter().zip(&history.sampled).filter(|(_, is_sampled)| **is_sampled);
    assert_eq!(hooks.tokens, sampled.map(|(token, _)| *token).collect::<Vec<_>>());
    assert!(hooks.results[0].contains('8') && hooks.results[1].contains("nothing"), "{:?}", hooks.results);
    assert!(script.reopened.is_empty());
}

#[tokio::test]
async fn a_call_that_is_refused_does_not_reach_the_server_and_the_agent_sees_why() {
    let chat = brief();
    let look = |at: &str| call("look", &format!("{{\"at\": \"{at}\"}}"));
    let calls = [look("the safe"), look("the drawer"), look("the box")].join("\n");
    let mut script = script(&chat, &[&calls, "In the drawer."]);
    let server = ScriptedServer::default();
    let mut conversation = started(&mut script, &chat);
    assert_eq!(said(&reply(&mut conversation, &server, &mut Watching::default()).await), "In the drawer.");
    let history = conversation.into_history();
    assert_eq!(
        server.calls.into_inner().unwrap(),
        [r#"wire-look{"at":"the upper drawer"}"#, r#"wire-look{"at":"the box"}"#]
    );
    assert_eq!((history.tools.len(), history.tool_errors), (2, 1));
    let [refused, changed, made] = &history.messages[3..6] else { panic!("{:?}", history.messages) };
    assert_eq!(refused.text, "error: the user says no");
    assert_eq!(refused.error(), Some(CallError::Refused));
    let sent = |message: &Message| message.result.clone().unwrap().arguments.map(Value::from);
    assert_eq!(sent(changed), Some(json!({"at": "the upper drawer"})));
    assert_eq!(sent(made), None);
    // What the agent wrote stays as it was sampled.
    assert_eq!(history.messages[2].calls[1].arguments_json(), r#"{"at":"the drawer"}"#);
    assert!(chat.decode(&script.appended[1]).contains("error: the user says no"));
}

#[tokio::test]
async fn a_turn_that_is_cancelled_leads_back_to_the_users_last_message() {
    let chat = brief();
    let look = call("look", r#"{"at": "x"}"#);
    let lines = ["It is there.", &look, &look, "On the shelf.", "Bye."];
    let mut script = script(&chat, &lines);
    let (called, is_called) = oneshot::channel();
    let server = Hanging { called: Mutex::new(Some(called)), ..Hanging::default() };
    let mut hooks = Watching::default();
    let mut conversation = started(&mut script, &chat);
    assert!(!conversation.say("Hello?"), "the prompt is not answered yet");
    reply(&mut conversation, &server, &mut hooks).await;
    let (tokens, messages) = (conversation.history().tokens.len(), conversation.history().messages.len());
    assert!(conversation.say("Where exactly?"));
    tokio::select! {
        _ = reply(&mut conversation, &server, &mut hooks) => panic!("the call never ends"),
        _ = is_called => {}
    }
    // The same message is answered again.
    assert_eq!(said(&reply(&mut conversation, &server, &mut hooks).await), "On the shelf.");
    let asked: Vec<_> =
        conversation.history().messages[messages..].iter().map(|message| message.role.name()).collect();
    assert_eq!(asked, ["user", "assistant", "tool", "assistant"]);
    let rendered = chat.rendered(&values(&conversation.history().messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&conversation.history().tokens));
    let row = conversation.history().tokens[..tokens].to_vec();

    // A message without an answer gives way to the next one.
    assert!(conversation.say("One more thing."));
    assert!(conversation.say("No, that is all."));
    assert_eq!(said(&reply(&mut conversation, &server, &mut hooks).await), "Bye.");
    let history = conversation.into_history();
    let users: Vec<_> = history.messages.iter().filter(|message| message.role == Role::User).collect();
    assert_eq!(users.len(), 3);
    assert_eq!(users[2].text, "No, that is all.");
    let rendered = chat.rendered(&values(&history.messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&history.tokens));
    assert_eq!(history.tokens.len(), history.sampled.len());
    assert_eq!(history.tokens.len(), history.logprobs.len());

    // The policy forgot the cancelled turn, and nothing else.
    assert_eq!(script.reopened.iter().map(|pieces| pieces.concat()).collect::<Vec<_>>(), [row]);
    assert_eq!(script.appended[1], script.appended[2]);
}

#[tokio::test]
async fn a_turn_that_is_cancelled_while_it_is_sampled_leads_back_as_well() {
    let chat = brief();
    let script = script(&chat, &["It is there.", &call("look", r#"{"at": "x"}"#), "Nothing."]);
    let (sampling, is_sampling) = oneshot::channel();
    let mut policy = Stuck { script, at: 2, sampling: Some(sampling) };
    let (server, mut hooks) = (ScriptedServer::default(), Watching::default());
    let prompt = PromptTokens::new(&chat, "Where is it?").unwrap();
    let mut conversation = Conversation::new(agent(chat.clone(), lenient()), &mut policy, prompt);
    reply(&mut conversation, &server, &mut hooks).await;
    assert!(conversation.say("Where exactly?"));
    tokio::select! {
        _ = reply(&mut conversation, &server, &mut hooks) => panic!("the turn never ends"),
        _ = is_sampling => {}
    }
    assert!(conversation.say("What did I ask?"));
    assert_eq!(said(&reply(&mut conversation, &server, &mut hooks).await), "Nothing.");
    let history = conversation.into_history();
    let said: Vec<_> = history.messages[2..].iter().map(|message| message.text.as_str()).collect();
    assert_eq!(said, ["It is there.", "What did I ask?", "Nothing."]);
    let rendered = chat.rendered(&values(&history.messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&history.tokens));
    // The call was made, and counts.
    assert_eq!((history.turns, history.tools.len(), policy.script.reopened.len()), (3, 1, 1));
}

#[tokio::test]
async fn a_lost_server_leads_back_to_the_prompt() {
    let chat = brief();
    let (crash, look) = (call("crash", "{}"), call("look", r#"{"at": "x"}"#));
    let mut script = script(&chat, &[&look, &crash, "It is there."]);
    let server = ScriptedServer::default();
    let prompt = PromptTokens::new(&chat, "Where is it?").unwrap();
    let mut conversation = started(&mut script, &chat);
    let lost = reply(&mut conversation, &server, &mut Watching::default()).await;
    assert!(matches!(lost, Turned::Lost(LostCall { call, .. }) if call.name == "crash"));
    assert_eq!(said(&reply(&mut conversation, &server, &mut Watching::default()).await), "It is there.");
    let history = conversation.into_history();
    assert_eq!(history.messages.len(), 3);
    assert_eq!(script.reopened, [prompt.pieces]);
    assert_eq!((script.appended.len(), script.appended[2].len()), (3, 0));
}

#[tokio::test]
async fn a_user_may_speak_after_results_and_after_a_turn_that_was_cut() {
    let chat = brief();
    let mut script = script(&chat, &[&call("look", r#"{"at": "x"}"#), "I think that it may be", "There."]);
    let server = ScriptedServer::default();
    let mut conversation = started(&mut script, &chat);
    let mut hooks = Watching::default();
    assert!(matches!(
        conversation.turn(&server, &mut hooks, 1000, usize::MAX).await.unwrap(),
        Turned::Called
    ));
    assert!(conversation.say("And?"));
    assert!(matches!(
        conversation.turn(&server, &mut hooks, 3, usize::MAX).await.unwrap(),
        Turned::Cut { tokens: 3 }
    ));
    assert!(conversation.say("Shorter."));
    assert_eq!(said(&reply(&mut conversation, &server, &mut hooks).await), "There.");
    let history = conversation.into_history();
    let rendered = chat.rendered(&values(&history.messages)).unwrap();
    assert_eq!(rendered.trim_end(), chat.decode(&history.tokens));
    let roles: Vec<_> = history.messages.iter().map(|message| message.role.name()).collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]
    );
}
