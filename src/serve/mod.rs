//! Serves policies and an agent to other programs: OpenAI's chat completions and MCP.
//!
//! [`openai`](crate::openai) has the requests and answers. Nothing here prints or starts a task that outlives its request. The
//! number of answers in progress is bounded.

mod about;
mod agent;
mod ask;
pub mod check;
mod connections;
mod error;
mod keep;
mod metrics;
mod page;
mod sessions;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{ConnectInfo, Request},
    http::{HeaderMap, Method, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
};
use futures::future::BoxFuture;
use percent_encoding::percent_decode_str;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
};

pub use self::{
    about::About,
    agent::{Agent, Permit},
    ask::AskServer,
    error::ServeError,
    keep::{Keeper, Origin},
};
use self::{
    connections::{AnswerPermit, Connections, Flow, Gone, held},
    metrics::Metrics,
    sessions::McpSessions,
};
use crate::{
    agent::AgentSettings,
    net::{is_own_page, is_same, names_this_machine},
    openai::{
        Answers, ApiError, CHOICES, ChatRequest, Cost, Head, Keep, Log, SamplingTask, TokenCount, read_body,
        respond,
    },
    plan::InLoop,
    progress::now_ms,
    stage::{Context, Input, OpenAgent, OpenPolicy},
};

/// Conversations that the page shows.
const SHOWN: usize = 20;
const SESSION: &str = "mcp-session-id";
/// The part of all tokens in progress that a request with alternatives may take.
const SHARE: usize = 8;
/// The name of the agent among the models. `agent:NAME` is the agent of another policy of the run's comparison.
pub const AGENT: &str = "agent";

/// A policy that is loaded when it is asked for.
pub struct Policy {
    pub input: Input,
    open: OnceCell<Arc<OpenPolicy>>,
    agent: OnceCell<Arc<Agent>>,
}

impl Policy {
    pub fn new(input: Input, open: Option<Arc<OpenPolicy>>) -> Self {
        Self { input, open: OnceCell::new_with(open), agent: OnceCell::new() }
    }

    /// The name of its agent among the models.
    fn agent_name(&self) -> String {
        format!("{AGENT}:{}", self.input.name)
    }
}

/// What the name of a model means.
enum Named<'s> {
    /// The agent of a policy.
    Agent(&'s AskServer, &'s Policy),
    Policy(&'s Policy),
}

/// What is served.
pub struct Service {
    /// What policies are loaded with.
    pub context: Context,
    pub settings: AgentSettings,
    /// The first answers requests that name no model if there is no agent. Names are unique.
    pub policies: Vec<Policy>,
    /// Plays the first policy.
    pub agent: Option<AskServer>,
    pub about: About,
    /// Of the run, which may stand before the name of a model.
    pub run: Option<String>,
    /// Bounds the answers in progress, by their number and by their tokens with choices and alternatives.
    pub queue: Arc<Semaphore>,
    pub most: usize,
    pub tokens: Arc<Semaphore>,
    pub most_tokens: usize,
    /// Tokens of the context of the first policy.
    pub context_tokens: usize,
    pub key: Option<String>,
    pub metrics: Arc<Metrics>,
    pub keeper: Option<Arc<Keeper>>,
    pub started: u64,
    /// Gets what clients are not told.
    pub log: Log,
}

impl Service {
    /// Answers at most so many requests at once. `tokens`: of all answers in progress, if that is not a context for each.
    pub fn new(
        context: Context,
        settings: AgentSettings,
        policies: Vec<Policy>,
        (most, tokens): (usize, Option<usize>),
        log: Log,
    ) -> Self {
        let first = policies.first().and_then(|policy| policy.open.get());
        let context_tokens = first.map_or(0, |open| open.model.context);
        let most_tokens =
            tokens.unwrap_or(most.saturating_mul(context_tokens)).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            tokens: Arc::new(Semaphore::new(most_tokens)),
            most_tokens,
            context_tokens,
            log,
            context,
            settings,
            policies,
            agent: None,
            about: About::default(),
            run: None,
            queue: Arc::new(Semaphore::new(most)),
            most,
            key: None,
            metrics: Arc::default(),
            keeper: None,
            started: now_ms() / 1000,
        }
    }

    /// Names of the models that are listed: the agent, which answers requests that name none, those of other policies, and the
    /// policies but for those of a loop's iterations, which are answered by name all the same.
    pub fn models(&self) -> Vec<String> {
        let policies = self.policies.iter().map(|policy| policy.input.name.clone()).enumerate();
        let listed = policies.filter(|(at, name)| *at == 0 || InLoop::parse(name).is_none());
        self.agents().map(|(name, _)| name).chain(listed.map(|(_, name)| name)).collect()
    }

    /// The compared policies but for the first one's.
    fn others(&self) -> impl Iterator<Item = &Policy> {
        let first = self.policies.first().map(|policy| policy.input.digest);
        self.policies.iter().filter(move |policy| {
            Some(policy.input.digest) != first && self.about.compares(&policy.input.name)
        })
    }

    /// The names of the agents, each with its policy.
    fn agents(&self) -> impl Iterator<Item = (String, &Policy)> {
        let first = self.policies.first().map(|policy| (AGENT.to_owned(), policy));
        let others = self.others().map(|policy| (policy.agent_name(), policy));
        first.into_iter().chain(others).filter(|_| self.agent.is_some())
    }

    /// What the name of a model means; without one, the agent, or the first policy if there is none.
    fn named(&self, name: Option<&str>) -> Result<Named<'_>, ApiError> {
        let plain = name.map(|name| self.plain(name));
        let is_meant = |known: &str| plain.is_none_or(|plain| plain == known);
        // The first policy's agent has two names.
        let first = self.policies.first().map(|policy| (policy.agent_name(), policy));
        let agent = self.agent.as_ref().and_then(|ask| {
            let (_, policy) = self.agents().chain(first).find(|(known, _)| is_meant(known))?;
            Some(Named::Agent(ask, policy))
        });
        let policy = || self.policies.iter().find(|policy| is_meant(&policy.input.name));
        agent.or_else(|| policy().map(Named::Policy)).ok_or_else(|| {
            let name = name.unwrap_or_default();
            let message = format!("there is no model \"{name}\"; there is {}", self.models().join(", "));
            ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message)
        })
    }

    /// A name without the run's.
    fn plain<'n>(&self, name: &'n str) -> &'n str {
        let of_run = |run: &String| name.strip_prefix(run.as_str())?.strip_prefix('/');
        self.run.as_ref().and_then(of_run).unwrap_or(name)
    }

    /// The policy, which is loaded when it is first asked for.
    async fn open(&self, policy: &Policy) -> Result<Arc<OpenPolicy>, ApiError> {
        let open = async || {
            let settings = AgentSettings { max_episode_tokens: usize::MAX, ..self.settings.clone() };
            OpenPolicy::open(&self.context, &policy.input, &settings).await.map(Arc::new)
        };
        Ok(policy.open.get_or_try_init(open).await?.clone())
    }

    /// The agent of a policy, which is made when it is first asked for; that of the first policy is there.
    async fn agent(
        &self,
        AskServer { agent, tools, .. }: &AskServer,
        policy: &Policy,
    ) -> Result<Arc<Agent>, ApiError> {
        if self.policies.first().is_some_and(|first| std::ptr::eq(first, policy)) {
            return Ok(agent.clone());
        }
        let made = async || {
            let open = self.open(policy).await?;
            let open = OpenAgent::of(&self.context, &open, &policy.input, tools, &self.settings)?;
            let (permit, keeper) = (agent.permit.clone(), self.keeper.clone());
            Ok::<_, ApiError>(Arc::new(Agent::new(open, permit, keeper, &policy.agent_name(), &policy.input)))
        };
        Ok(policy.agent.get_or_try_init(made).await?.clone())
    }

    async fn chat(&self, body: Body) -> Result<Response, ApiError> {
        let begun = Instant::now();
        // Bounds the memory of bodies, too.
        let mut permit = self.queue.clone().try_acquire_owned().map_err(|_| ApiError::busy())?;
        let body = read_body(body).await?;
        let request = ChatRequest::parse(&body, CHOICES.min(self.most))?;
        let more = u32::try_from(request.choices - 1).unwrap_or(u32::MAX);
        permit.merge(self.queue.clone().try_acquire_many_owned(more).map_err(|_| ApiError::busy())?);
        let (stream, metrics) = (request.stream, self.metrics.clone());
        let (head, answers) = self.answers(request).await?;
        let tokens = self.admit(answers.cost())?;
        let is_done = AtomicBool::new(false);
        let progress = Arc::new(InProgress { metrics, begun, is_done, _permits: [permit, tokens] });
        let place = AnswerPermit(progress.clone());
        let mut response =
            respond(stream, head.with_log(self.log.clone()), answers, move |count| progress.done(count))
                .await?;
        response.extensions_mut().insert(place);
        Ok(response)
    }

    /// Room for the tokens of a request.
    fn admit(&self, cost: Cost) -> Result<OwnedSemaphorePermit, ApiError> {
        let Cost { tokens, choices, others } = cost;
        let all = cost.all();
        // Answers alone are bounded by their number, too.
        let share = match others {
            0 => self.most_tokens,
            _ => (self.most_tokens / SHARE).max(self.context_tokens).min(self.most_tokens),
        };
        if all > share {
            let param = if choices > 1 { "n" } else { "max_tokens" };
            let message = format!(
                "asks for up to {choices} answers of {tokens} tokens, each with {others} others, which counts as {all} tokens; \
                 a request may have {share}. Ask for less of `n`, `max_tokens` or `top_logprobs`, or start the server \
                 with more than `--max-tokens {}`",
                self.most_tokens
            );
            return Err(ApiError::invalid(param, message));
        }
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        self.tokens.clone().try_acquire_many_owned(all).map_err(|_| ApiError::busy())
    }

    /// Prepares the answers to a request.
    async fn answers(&self, request: ChatRequest) -> Result<(Head, Answers), ApiError> {
        Ok(match self.named(request.model.as_deref())? {
            Named::Agent(ask, policy) => {
                let agent = self.agent(ask, policy).await?;
                request.refuse_for_agent()?;
                let Origin { model, policy, .. } = &agent.origin;
                let head = Head::new(&request, model.clone(), fingerprint(policy));
                // Before a stream begins.
                let prompt = agent.prompt(&request.messages)?;
                let answer = move |made| -> BoxFuture<'static, _> {
                    Box::pin(async move { agent::answer(&agent, prompt, &request, made).await })
                };
                (head, Answers::Agent(Box::new(answer)))
            }
            Named::Policy(policy) => {
                let (name, policy) = (&policy.input.name, self.open(policy).await?);
                let head = Head::new(&request, name.clone(), fingerprint(&policy.digest.to_string()));
                let choices = request.choices;
                let kept = self.keeper.clone().map(|keeper| {
                    let (model, policy) = (name.clone(), policy.digest.to_string());
                    let origin = Origin { model, policy, tools: request.tools.clone() };
                    (keeper, origin, request.messages.clone())
                });
                let task = Box::new(SamplingTask::prepare(policy.model.clone(), request).await?);
                let keep = kept.map(|(keeper, origin, messages)| -> Keep {
                    let prompt = task.prompt();
                    Box::new(move |message, tokens| {
                        let messages = messages.iter().cloned().chain([message]).collect();
                        keeper.request(&origin, &prompt, tokens, messages);
                    })
                });
                (head, Answers::Policy { task, choices, keep })
            }
        })
    }

    /// The newest conversations that are kept.
    async fn conversations(&self) -> Result<Response, ApiError> {
        let Some(keeper) = self.keeper.clone() else {
            let message = "conversations are kept with `--keep FOLDER`";
            return Err(ApiError::new(StatusCode::NOT_FOUND, "not_kept", message));
        };
        let kept = tokio::task::spawn_blocking(move || keeper.newest(SHOWN)).await.unwrap_or_default();
        Ok(Json(json!({ "conversations": kept })).into_response())
    }

    fn list(&self) -> Value {
        json!({"object": "list", "data": self.models().iter().map(|id| self.model(id)).collect::<Vec<_>>()})
    }

    fn model(&self, id: &str) -> Value {
        json!({"id": id, "object": "model", "created": self.started, "owned_by": "mcprl"})
    }

    fn metrics_text(&self) -> String {
        let loaded = |policy: &'_ Policy| Some(policy.open.get()?.usage());
        let policies =
            self.policies.iter().filter_map(|policy| Some((policy.input.name.as_str(), loaded(policy)?)));
        self.metrics.text(self.most - self.queue.available_permits(), policies)
    }

    async fn answer(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let file = page::path(parts.uri.path());
        let path = match parts.uri.path().trim_end_matches('/') {
            _ if file.is_some() => file.unwrap_or_default(),
            "/about" => "/about",
            "/check" => "/check",
            "/conversations" => "/conversations",
            "/v1/chat/completions" => "/v1/chat/completions",
            "/v1/models" => "/v1/models",
            "/health" => "/health",
            "/metrics" => "/metrics",
            path if path.starts_with("/v1/models/") => "/v1/models/{model}",
            _ => "other",
        };
        let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
        let answered = match (&method, path) {
            (&Method::POST, "/v1/chat/completions") => self.chat(body).await,
            (&Method::GET, "/v1/models") => Ok(Json(self.list()).into_response()),
            (&Method::GET, "/v1/models/{model}") => {
                let name = parts.uri.path().trim_end_matches('/').strip_prefix("/v1/models/");
                let name = percent_decode_str(name.unwrap_or_default()).decode_utf8_lossy();
                self.named(Some(&name)).map(|_| Json(self.model(self.plain(&name))).into_response())
            }
            (&Method::GET, path) if file.is_some() => page::file(path)
                .ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such file")),
            (&Method::GET, "/about") => Ok(Json(self.about()).into_response()),
            (&Method::POST, "/check") => self.check(body).await.map(|found| Json(found).into_response()),
            (&Method::GET, "/conversations") => self.conversations().await,
            (&Method::GET, "/health") => Ok(Json(json!({"status": "ok"})).into_response()),
            (&Method::GET, "/metrics") => {
                Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], self.metrics_text())
                    .into_response())
            }
            (_, "other") => {
                let message = format!(
                    "there is nothing at {}; `/v1/chat/completions` answers, so the base URL of a client ends in `/v1`",
                    parts.uri.path()
                );
                Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", message))
            }
            _ => {
                let message = format!("{} does not answer {}", parts.uri.path(), parts.method);
                Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message))
            }
        };
        let response = answered.unwrap_or_else(|error| {
            error.report(&self.log);
            error.into_response()
        });
        self.metrics.responded(path, response.status().as_u16());
        response
    }
}

fn fingerprint(digest: &str) -> String {
    format!("mcprl-{digest:.16}")
}

/// A request that is answered. Its place in the queue is free when it is dropped.
struct InProgress {
    metrics: Arc<Metrics>,
    begun: Instant,
    is_done: AtomicBool,
    _permits: [OwnedSemaphorePermit; 2],
}

impl InProgress {
    /// It was answered with this many tokens, or has failed.
    fn done(&self, count: Option<TokenCount>) {
        self.is_done.store(true, Ordering::Relaxed);
        let Some(TokenCount { prompt, completion }) = count else { return };
        self.metrics.prompt_tokens.fetch_add(prompt as u64, Ordering::Relaxed);
        self.metrics.completion_tokens.fetch_add(completion as u64, Ordering::Relaxed);
        self.metrics.finished(self.begun.elapsed());
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        if !*self.is_done.get_mut() {
            self.metrics.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Who may ask: with a key, who has it; otherwise programs of this machine, but no page of a browser.
struct Guard {
    key: Option<String>,
    address: SocketAddr,
}

impl Guard {
    fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(key) = &self.key {
            let given = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
            let is_open = path == "/health" || page::path(path).is_some();
            return match given.is_some_and(|given| is_same(given, key)) || is_open {
                true => Ok(()),
                false => {
                    let message = "this server needs its key, as `Authorization: Bearer KEY`";
                    Err(ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message))
                }
            };
        }
        let host = text(header::HOST).unwrap_or_default();
        let is_own = names_this_machine(host) || host == self.address.to_string();
        let is_own_page = |origin: &str| {
            is_own_page(origin, host) || is_own && origin.strip_prefix("http://") == Some(host)
        };
        let is_foreign =
            headers.contains_key(header::ORIGIN) && !text(header::ORIGIN).is_some_and(is_own_page);
        if !is_own || is_foreign {
            let message = "without a key, this server answers programs of its own machine only, which ask for `localhost`; \
                           `--api-key-env` sets a key";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign_host", message));
        }
        Ok(())
    }
}

/// Answers a request over MCP within the bounds of sessions.
async fn in_session(sessions: McpSessions, request: Request, next: Next) -> Result<Response, ApiError> {
    // Within its time, and bounded.
    let (parts, body) = request.into_parts();
    let body = read_body(body).await?;
    let session = parts.headers.get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let Some(session) = session else {
        if !sessions.make_room().await {
            return Err(ApiError::busy());
        }
        let response = next.run(Request::from_parts(parts, body.into())).await;
        if let Some(begun) = response.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
            sessions.begun(begun);
        }
        return Ok(response);
    };
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let id = message.get("id").filter(|_| message.get("method").is_some());
    let Some(id) = id.map(Value::to_string) else {
        return Ok(next.run(Request::from_parts(parts, body.into())).await);
    };
    let Some(under_way) = sessions.begin(&session, &id).await else {
        let error = json!({"code": -32600, "message": format!("a request with the id {id} is under way")});
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error});
        return Ok((StatusCode::BAD_REQUEST, Json(answer)).into_response());
    };
    let mut response = next.run(Request::from_parts(parts, body.into())).await;
    response.extensions_mut().insert(AnswerPermit(Arc::new(under_way)));
    Ok(response)
}

/// A server that is bound to its port but does not answer yet.
pub struct ApiServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl ApiServer {
    /// Port 0 picks any free port.
    ///
    /// # Errors
    /// If the port is in use, or if other machines can reach it and there is no key.
    pub async fn bind(host: IpAddr, port: u16, has_key: bool) -> Result<Self, ServeError> {
        let address = SocketAddr::from((host, port));
        if !host.is_loopback() && !has_key {
            return Err(ServeError::Open { address });
        }
        let failed = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers requests until the future is dropped.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(self, service: Arc<Service>) -> Result<(), ServeError> {
        let guard = Arc::new(Guard { key: service.key.clone(), address: self.address });
        let admit = move |ConnectInfo(flow): ConnectInfo<Flow>, mut request: Request, next: Next| {
            let guard = guard.clone();
            async move {
                let (in_request, gone) = (flow.begin(), Gone::default());
                request.extensions_mut().insert(gone.clone());
                let response = match guard.check(request.uri().path(), request.headers()) {
                    Ok(()) => next.run(request).await,
                    Err(error) => error.into_response(),
                };
                held(response, flow, in_request, &gone)
            }
        };
        let mut router = Router::new();
        if let Some(ask) = service.agent.clone() {
            // The guard has checked host and origin.
            let config = StreamableHttpServerConfig::default().disable_allowed_hosts();
            let sessions = McpSessions::default();
            let manager = sessions.manager.clone();
            let bounded = move |request: Request, next: Next| {
                let sessions = sessions.clone();
                async move { in_session(sessions, request, next).await.unwrap_or_else(ApiError::into_response) }
            };
            let service = StreamableHttpService::new(move || Ok(ask.clone()), manager, config);
            router = router.merge(Router::new().route_service("/mcp", service).layer(from_fn(bounded)));
        }
        let answer = move |request: Request| {
            let service = service.clone();
            async move { service.answer(request).await }
        };
        let router = router.fallback(answer).layer(from_fn(admit));
        let service = router.into_make_service_with_connect_info::<Flow>();
        axum::serve(Connections::new(self.listener), service).await.map_err(ServeError::Serve)
    }
}
