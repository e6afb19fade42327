//! A scripted agent for tests.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex},
};

use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

use super::{policy::PolicyHandle, talk::ConversationSource};
use crate::{
    agent::{Agent, AgentSettings, Conversation, PromptTokens, Repeats, ToolServer, Toolbox},
    chat::{Chat, HistoryThinking, Thinking, ToolCall},
    data::Tool,
    engine::{EngineError, Sampled, Stop, TokenSender},
    error::Result,
    mcp::{McpError, Outcome},
};

pub fn tool(name: &str) -> Tool {
    let properties = json!({"text": {"type": "string"}});
    Tool {
        name: name.into(),
        server_name: name.into(),
        description: String::new(),
        input_schema: json!({"type": "object", "properties": properties}).to_string(),
        output_schema: None,
        annotations: None,
        function: json!({"type": "function", "function": {"name": name}}).to_string(),
        synthetic: false,
        listed: None,
    }
}

pub fn tools() -> Vec<Tool> {
    let mut tools = ["get_note", "add_note", "crash"].map(tool).to_vec();
    tools.push(Tool { synthetic: true, ..tool("complete_task") });
    tools
}

fn agent_with(max_episode_tokens: usize) -> Arc<Agent> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/chat/qwen3");
    let toolbox = Toolbox::new(&tools()).unwrap();
    let chat = Chat::load(&folder).unwrap().with_tools("s", toolbox.functions()).unwrap();
    let settings = AgentSettings {
        system: None,
        max_turns: 3,
        max_turn_tokens: 200,
        max_episode_tokens,
        max_calls: 3,
        result_chars: 100,
        thinking: Thinking::Template,
        history_thinking: HistoryThinking::Keep,
        strict_calls: true,
        reminder: true,
        text_answers: true,
        repeats: Repeats::Tell,
        harness: Vec::new(),
        harness_timeout_s: 600.0,
    };
    Arc::new(Agent { chat, toolbox, settings })
}

pub fn agent() -> Arc<Agent> {
    agent_with(4000)
}

/// A turn of the policy.
#[derive(Clone)]
pub struct Line {
    text: String,
    call: Option<ToolCall>,
}

impl Line {
    pub fn text(text: &str) -> Self {
        Self { text: text.into(), call: None }
    }
}

pub fn call(tool: &str, arguments: &str) -> Line {
    let call = ToolCall { name: tool.into(), arguments: serde_json::from_str(arguments).unwrap() };
    Line { text: String::new(), call: Some(call) }
}

#[derive(Default)]
struct World {
    lines: VecDeque<Vec<u32>>,
    appended: Vec<u32>,
    calls: Vec<String>,
    sessions: usize,
    /// The next call is never answered, and says here that it was made.
    hangs: Option<oneshot::Sender<()>>,
}

/// Says these lines, in whichever conversation, and answers calls.
pub struct Scripted {
    agent: Arc<Agent>,
    world: Arc<Mutex<World>>,
}

impl Scripted {
    pub fn new(lines: impl IntoIterator<Item = Line>) -> Self {
        let agent = agent();
        let tokens = |line: Line| agent.chat.assistant(&line.text, line.call.as_slice());
        let world = World { lines: lines.into_iter().map(tokens).collect(), ..World::default() };
        Self { world: Arc::new(Mutex::new(world)), agent }
    }

    pub fn with_context(mut self, tokens: usize) -> Self {
        self.agent = agent_with(tokens);
        self
    }

    pub fn hang(&self, called: oneshot::Sender<()>) {
        self.world.lock().unwrap().hangs = Some(called);
    }

    pub fn calls(&self) -> Vec<String> {
        self.world.lock().unwrap().calls.clone()
    }

    pub fn sessions(&self) -> usize {
        self.world.lock().unwrap().sessions
    }

    /// What the policy got behind its prompts.
    pub fn seen(&self) -> String {
        self.agent.chat.decode(&self.world.lock().unwrap().appended)
    }
}

impl ConversationSource for Scripted {
    type Prompt = PromptTokens;
    type Dialogue = Conversation<ScriptedPolicy>;
    type Server = ScriptedServer;

    fn settings(&self) -> &AgentSettings {
        &self.agent.settings
    }

    fn prompt(&self, text: &str) -> Result<PromptTokens> {
        Ok(PromptTokens::new(&self.agent.chat, text)?)
    }

    fn begin(&self, prompt: PromptTokens) -> Self::Dialogue {
        Conversation::new(self.agent.clone(), ScriptedPolicy(self.world.clone()), prompt)
    }

    fn server(&self) -> ScriptedServer {
        self.world.lock().unwrap().sessions += 1;
        ScriptedServer(self.world.clone())
    }
}

pub struct ScriptedPolicy(Arc<Mutex<World>>);

impl PolicyHandle for ScriptedPolicy {
    async fn turn(
        &mut self,
        append: &[u32],
        _: &[u32],
        max_new: usize,
        sender: Option<TokenSender>,
    ) -> Result<Sampled, EngineError> {
        let mut world = self.0.lock().unwrap();
        world.appended.extend(append);
        let mut tokens = world.lines.pop_front().expect("the script has a line for every turn");
        let stop = if tokens.len() > max_new { Stop::Length } else { Stop::Token };
        tokens.truncate(max_new);
        if let Some(sender) = sender {
            tokens.iter().for_each(|token| sender.send((*token, 0.0)).unwrap());
        }
        Ok(Sampled { logprobs: vec![0.0; tokens.len()], tokens, stop, ..Sampled::default() })
    }

    fn reopen(&mut self, _: Vec<Arc<[u32]>>) {}
}

pub struct ScriptedServer(Arc<Mutex<World>>);

impl ToolServer for ScriptedServer {
    async fn call(&self, name: &str, _: Map<String, Value>) -> Result<Outcome, McpError> {
        let hangs = {
            let mut world = self.0.lock().unwrap();
            world.calls.push(name.to_owned());
            world.hangs.take()
        };
        if let Some(called) = hangs {
            called.send(()).unwrap();
            return std::future::pending().await;
        }
        match name {
            "crash" => Err(McpError::PoolClosed),
            _ => Ok(Outcome { text: "milk".into(), is_error: false }),
        }
    }
}
