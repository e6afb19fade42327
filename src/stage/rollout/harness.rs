//! A program of the user plays episodes in place of mcprl's own loop.
//!
//! It is started once per episode, in an empty folder, with the task as its last argument. Its environment names endpoints
//! that are the episode's alone: `OPENAI_BASE_URL` and `OPENAI_API_KEY`, where the policy answers chat completions, and
//! `MCPRL_MCP_URL`, an MCP server with the tools of the run, in the sessions of the episode. The last line that it prints is
//! its answer. The tokens that were sampled for it are the episode's ([`Rows`]).
//!
//! Requests are sampled as the episode is, whatever temperature and seed they ask for, so that the same requests get the same
//! answers.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
    serve::ListenerExt,
};
use parking_lot::Mutex;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    net::TcpListener,
    process::Command,
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::AbortHandle,
};

use super::{error::PlayError, records::RolloutSpec};
use crate::{
    agent::{Agent, AgentSettings, Episode, History, LazySessions, LostCall, ToolServer},
    answer::COMPLETE_TASK,
    chat::{ToolCall, declared},
    child,
    data::{AnswerSource, End, Message, paired_calls, result_view},
    engine::Sampling,
    hash::{Digest, Encoder},
    mcp::McpError,
    openai::{
        Answers, ApiError, CHOICES, ChatRequest, Head, Keep, Model, Rows, SamplingTask, random, read_body,
        respond,
    },
};

/// The name of the policy at the endpoint.
const MODEL: &str = "policy";
/// Bytes of a line that is read at once.
const LONGEST_LINE: u64 = 1 << 16;
/// Lines of standard error that an error quotes.
const TAIL_LINES: usize = 12;

/// A user's program that plays episodes.
pub struct Harness {
    pub model: Model,
    command: Vec<String>,
    settings: AgentSettings,
    /// Where episodes have their folders.
    folder: PathBuf,
    url: String,
    episodes: Episodes,
    /// The first failure of the program.
    failure: Mutex<Option<String>>,
    listening: AbortHandle,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Endpoints by the words that their addresses begin with.
type Episodes = Arc<Mutex<BTreeMap<String, Arc<Endpoint>>>>;

impl Harness {
    /// Listens on a free port of this machine.
    ///
    /// # Errors
    /// If there is none.
    pub async fn start(
        command: &[String],
        settings: &AgentSettings,
        model: Model,
        folder: PathBuf,
    ) -> Result<Self, PlayError> {
        let failed = |cause: std::io::Error| PlayError::Harness {
            command: command.join(" "),
            problem: cause.to_string(),
        };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let episodes = Episodes::default();
        let known = episodes.clone();
        let router = Router::new().fallback(move |request: Request| {
            let (episode, rest) = split(request.uri().path());
            let endpoint = known.lock().get(episode).cloned();
            let rest = rest.to_owned();
            async move {
                match endpoint {
                    Some(endpoint) => endpoint.answer(&rest, request).await,
                    None => nothing_here().into_response(),
                }
            }
        });
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let listening = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Ok(Self {
            model: Model { context: model.context.min(settings.max_episode_tokens), ..model },
            command: command.to_vec(),
            settings: settings.clone(),
            folder,
            url: format!("http://{address}"),
            episodes,
            failure: Mutex::default(),
            listening,
        })
    }

    /// Plays an episode.
    ///
    /// # Errors
    /// If the program cannot be started, or fails before the policy has answered it.
    pub async fn episode(
        &self,
        rollout: &RolloutSpec<'_>,
        server: &LazySessions<'_>,
        agent: &Agent,
    ) -> Result<Episode, PlayError> {
        let (sender, calls) = unbounded_channel();
        let endpoint = Arc::new(Endpoint::new(self, rollout, agent, sender));
        let token = format!("{:016x}{:016x}", random(), random());
        self.episodes.lock().insert(token.clone(), endpoint.clone());
        let _listed = Listed { episodes: &self.episodes, token: &token };

        let mut made = ProgramCalls::default();
        let ended = tokio::select! {
            biased;
            lost = answer_calls(calls, server, agent, &mut made) => Ended::Lost(lost),
            ended = self.program(&token, &rollout.scenario.task) => ended?,
        };
        let asked = std::mem::take(&mut *endpoint.asked.lock());
        self.record(ended, asked, made)
    }

    /// Runs the program to its end, or for as long as it may take.
    async fn program(&self, token: &str, task: &str) -> Result<Ended, PlayError> {
        let failed = |cause: std::io::Error| self.failed(format!("it cannot be started: {cause}"));
        let folder = tempfile::tempdir_in(&self.folder).map_err(failed)?;
        let base = format!("{}/{token}", self.url);
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).arg(task).current_dir(folder.path()).stdin(Stdio::null());
        command.env("OPENAI_BASE_URL", format!("{base}/v1")).env("OPENAI_API_BASE", format!("{base}/v1"));
        command.env("OPENAI_API_KEY", token).env("OPENAI_MODEL", MODEL);
        command.env("MCPRL_MCP_URL", format!("{base}/mcp")).env("MCPRL_TASK", task);
        for name in ["NO_PROXY", "no_proxy"] {
            let others = std::env::var(name).unwrap_or_default();
            command.env(name, format!("127.0.0.1,{others}"));
        }
        let (mut child, group) = child::spawn(command).await.map_err(failed)?;
        let (stdout, stderr) =
            (last_lines(child.stdout.take(), 1), last_lines(child.stderr.take(), TAIL_LINES));
        let status = async {
            let status = child.wait().await;
            // What it has started would keep its output open.
            group.kill();
            status
        };
        let limit = Duration::from_secs_f64(self.settings.harness_timeout_s);
        let all = async { tokio::join!(status, stdout, stderr) };
        Ok(match tokio::time::timeout(limit, all).await {
            Ok((Ok(status), mut stdout, _)) if status.success() => Ended::Answered(stdout.pop_back()),
            Ok((status, _, stderr)) => {
                let end = status.map_or_else(
                    |cause| format!("its end is unknown: {cause}"),
                    |status| format!("it ended with {status}"),
                );
                Ended::Failed([vec![end], stderr.into()].concat().join("\n"))
            }
            Err(_) => Ended::Failed(format!("it did not end within {limit:?}")),
        })
    }

    fn record(&self, ended: Ended, asked: ProgramTurns, made: ProgramCalls) -> Result<Episode, PlayError> {
        let ProgramTurns { rows, turns, is_out_of_turns, is_out_of_tokens, .. } = asked;
        if turns == 0 && !is_out_of_tokens && matches!(ended, Ended::Answered(_)) {
            let problem = "it ended without asking the policy; the policy is at OPENAI_BASE_URL";
            return Err(self.failed(problem.into()));
        }
        let (answer, end, lost) = match ended {
            Ended::Lost(lost) => (None, End::ServerDown, Some(lost)),
            Ended::Answered(Some(answer)) => (Some(answer), End::Completed, None),
            _ if is_out_of_turns => (None, End::OutOfTurns, None),
            _ if is_out_of_tokens => (None, End::OutOfTokens, None),
            Ended::Answered(None) => (None, End::NoCall, None),
            Ended::Failed(problem) if turns == 0 => return Err(self.failed(problem)),
            Ended::Failed(problem) => {
                self.failure.lock().get_or_insert(problem);
                (None, End::HarnessFailed, None)
            }
        };
        let history = rows.history();
        let tools = match made.tools.is_empty() {
            false => made.tools,
            // Its tools are its own.
            true => answered_calls(&history.messages),
        };
        let history = History { turns, tools, tool_errors: made.errors, ..history };
        let answer_source = answer.as_ref().map(|_| AnswerSource::Text);
        Ok(Episode { history, end, answer, answer_source, lost })
    }

    fn failed(&self, problem: String) -> PlayError {
        PlayError::Harness { command: self.command.join(" "), problem }
    }

    /// The first failure of the program, if it has failed in an episode.
    pub fn failure(&self) -> Option<PlayError> {
        self.failure.lock().clone().map(|problem| self.failed(problem))
    }
}

/// Forgets an endpoint when its episode is over.
struct Listed<'a> {
    episodes: &'a Episodes,
    token: &'a str,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.episodes.lock().remove(self.token);
    }
}

/// How the program ended.
enum Ended {
    /// With the last line that it printed.
    Answered(Option<String>),
    Failed(String),
    /// A call of it had no answer.
    Lost(LostCall),
}

/// The last lines that are not blank. Reads to the end, however much that is.
async fn last_lines(source: Option<impl AsyncRead + Unpin>, count: usize) -> VecDeque<String> {
    let mut lines = VecDeque::new();
    let Some(source) = source else { return lines };
    let mut source = BufReader::new(source);
    loop {
        let mut line = Vec::new();
        let read = (&mut source).take(LONGEST_LINE).read_until(b'\n', &mut line).await;
        if read.unwrap_or(0) == 0 {
            return lines;
        }
        let line = String::from_utf8_lossy(&line).trim().to_owned();
        if !line.is_empty() {
            lines.push_back(line);
        }
        if lines.len() > count {
            lines.pop_front();
        }
    }
}

/// Names of the calls in messages that have results.
fn answered_calls(messages: &[Message]) -> Vec<String> {
    let calls = paired_calls(messages).into_iter().filter(|call| call.result.is_some());
    calls.map(|call| call.tool().to_owned()).collect()
}

/// Calls that the program has made.
#[derive(Default)]
struct ProgramCalls {
    /// Names of those that reached the server.
    tools: Vec<String>,
    errors: u32,
}

/// A call that waits for its result.
struct Waiting {
    call: ToolCall,
    /// The result as text, and whether it is an error.
    result: oneshot::Sender<(String, bool)>,
}

/// Answers calls, one after another, until one has no answer.
async fn answer_calls(
    mut calls: UnboundedReceiver<Waiting>,
    server: &LazySessions<'_>,
    agent: &Agent,
    made: &mut ProgramCalls,
) -> LostCall {
    while let Some(Waiting { call, result }) = calls.recv().await {
        let answered = match answer_call(&call, server, agent, made).await {
            Ok(answered) => answered,
            Err(cause) => return LostCall { call, cause },
        };
        made.errors += u32::from(answered.1);
        // The program may have gone.
        _ = result.send(answered);
    }
    std::future::pending().await
}

async fn answer_call(
    call: &ToolCall,
    server: &LazySessions<'_>,
    agent: &Agent,
    made: &mut ProgramCalls,
) -> Result<(String, bool), McpError> {
    let refused = |why: &str| Ok((format!("error: {why}"), true));
    if made.tools.len() >= agent.settings.max_calls as usize {
        return refused("no calls are left");
    }
    let Some((wire_name, arguments)) = agent.toolbox.request(call) else {
        return refused(&agent.toolbox.problem(call).unwrap_or_default());
    };
    if let Some(why) = server.refuse(wire_name) {
        return refused(&why);
    }
    let outcome = server.call(wire_name, arguments.into_owned()).await?;
    made.tools.push(call.name.clone());
    Ok((result_view(outcome.text, agent.settings.result_chars).0, outcome.is_error))
}

/// What the program has asked the policy.
#[derive(Default)]
struct ProgramTurns {
    rows: Rows,
    turns: u32,
    /// How often each prompt was sent.
    prompts: BTreeMap<Digest, u64>,
    is_out_of_turns: bool,
    is_out_of_tokens: bool,
}

/// Where an episode's program finds the policy and the tools.
struct Endpoint {
    model: Model,
    fingerprint: String,
    sampling: Sampling,
    seed: u64,
    max_turns: u32,
    max_turn_tokens: usize,
    asked: Arc<Mutex<ProgramTurns>>,
    tools: StreamableHttpService<Tools, LocalSessionManager>,
}

impl Endpoint {
    fn new(
        harness: &Harness,
        rollout: &RolloutSpec<'_>,
        agent: &Agent,
        calls: UnboundedSender<Waiting>,
    ) -> Self {
        let tools = Tools { tools: agent.toolbox.functions().iter().filter_map(tool).collect(), calls };
        let config =
            StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
        Self {
            model: harness.model.clone(),
            fingerprint: format!("mcprl-{}", rollout.seed),
            sampling: rollout.sampling,
            seed: rollout.seed,
            max_turns: harness.settings.max_turns,
            max_turn_tokens: harness.settings.max_turn_tokens,
            asked: Arc::default(),
            tools: StreamableHttpService::new(
                move || Ok(tools.clone()),
                LocalSessionManager::default().into(),
                config,
            ),
        }
    }

    async fn answer(&self, path: &str, request: Request) -> Response {
        match (path, request.method()) {
            ("/mcp", _) => self.tools.handle(request).await.into_response(),
            ("/v1/chat/completions", &Method::POST) => {
                self.chat(request).await.unwrap_or_else(IntoResponse::into_response)
            }
            ("/v1/models", &Method::GET) => Json(
                json!({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "mcprl"}]}),
            )
            .into_response(),
            _ => nothing_here().into_response(),
        }
    }

    async fn chat(&self, request: Request) -> Result<Response, ApiError> {
        let body = read_body(request.into_body()).await?;
        let request = unguided(ChatRequest::parse(&body, CHOICES)?)?;
        // Each choice is an answer of the policy.
        let turns = u32::try_from(request.choices).unwrap_or(u32::MAX);
        {
            let mut asked = self.asked.lock();
            if asked.turns.saturating_add(turns) > self.max_turns {
                asked.is_out_of_turns = true;
                let left = self.max_turns - asked.turns;
                let message = format!("the episode has {left} turns left; it had {}", self.max_turns);
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "out_of_turns", message));
            }
            asked.turns += turns;
        }
        let (is_stream, choices, messages) = (request.stream, request.choices, request.messages.clone());
        let head = Head::new(&request, MODEL.to_owned(), self.fingerprint.clone());
        let task = SamplingTask::prepare(self.model.clone(), request).await.inspect_err(|error| {
            let mut asked = self.asked.lock();
            // The policy was not asked.
            asked.turns -= turns;
            asked.is_out_of_tokens |= error.is_too_long();
        })?;
        let prompt = task.prompt();
        let task = Box::new(task.sampling(self.sampling, self.seed_of(&prompt), self.max_turn_tokens));
        let asked = self.asked.clone();
        let keep: Keep = Box::new(move |message, tokens| {
            let messages = messages.iter().cloned().chain([message]).collect();
            asked.lock().rows.add(&prompt, tokens, messages);
        });
        let answers = Answers::Policy { task, choices, keep: Some(keep) };
        respond(is_stream, head, answers, |_| ()).await
    }

    /// The seed of an answer: another one if the same prompt is sent again.
    fn seed_of(&self, prompt: &[u32]) -> u64 {
        let bytes: Vec<u8> = prompt.iter().flat_map(|token| token.to_le_bytes()).collect();
        let prompt = Digest::of(&bytes);
        let mut asked = self.asked.lock();
        let before = asked.prompts.entry(prompt).or_default();
        *before += 1;
        Encoder::new("mcprl harness turn v1")
            .number(self.seed)
            .digest(&prompt)
            .number(*before)
            .finish()
            .seed()
    }
}

/// A request whose answer is the policy's own: training takes a token for drawn from all that the policy might have written, which
/// one is not that a guide allows. So `strict` is not enforced, and what only a guide can keep is refused.
fn unguided(mut request: ChatRequest) -> Result<ChatRequest, ApiError> {
    let about = " in a harness: its tokens would be forced, and not the policy's to learn from";
    if !request.must_call.is_empty() {
        return Err(ApiError::unsupported(
            "tool_choice",
            &format!(" other than \"auto\" and \"none\"{about}"),
        ));
    }
    if request.answer_schema.is_some() {
        return Err(ApiError::unsupported("response_format", about));
    }
    request.strict = false;
    Ok(request)
}

/// The first part of a path, and what follows it.
fn split(path: &str) -> (&str, &str) {
    let path = path.trim_start_matches('/');
    let at = path.find('/').unwrap_or(path.len());
    (&path[..at], path[at..].trim_end_matches('/'))
}

fn nothing_here() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is nothing at this address")
}

/// A function schema as MCP lists it. `complete_task` is no tool of the server.
fn tool(function: &Value) -> Option<Tool> {
    let function = &declared(function)["function"];
    let name = function["name"].as_str().filter(|name| *name != COMPLETE_TASK)?;
    let schema = function["parameters"].as_object().cloned().unwrap_or_default();
    let about = function["description"].as_str().unwrap_or_default();
    Some(Tool::new(name.to_owned(), about.to_owned(), schema))
}

/// The tools of the run as an MCP server, for one episode.
#[derive(Clone)]
struct Tools {
    tools: Vec<Tool>,
    calls: UnboundedSender<Waiting>,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let server = Implementation::new("mcprl", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build()).with_server_info(server)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call =
            ToolCall { name: request.name.to_string(), arguments: request.arguments.unwrap_or_default() };
        let (result, answered) = oneshot::channel();
        let over = || ErrorData::internal_error("the episode is over", None);
        self.calls.send(Waiting { call, result }).map_err(|_| over())?;
        let (text, is_error) = answered.await.map_err(|_| over())?;
        let content = vec![ContentBlock::text(text)];
        Ok(if is_error { CallToolResult::error(content) } else { CallToolResult::success(content) }.into())
    }
}
