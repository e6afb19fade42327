//! The agent as an MCP server with one tool: `ask`.

use std::{path::PathBuf, sync::Arc};

use axum::http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig,
        Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc::unbounded_channel};

use super::{
    agent::{Agent, Calls, ReplyListener, lost},
    connections::Gone,
};
use crate::{
    agent::{PromptTokens, Reply},
    engine::Sampling,
    openai::{ApiError, Log},
};

const NAME: &str = "ask";

/// The agent, and how it is described to clients.
#[derive(Clone)]
pub struct AskServer {
    pub agent: Arc<Agent>,
    /// The table of its tools, which agents of other policies have, too.
    pub tools: PathBuf,
    pub title: String,
    pub description: String,
    /// Tasks at once.
    pub queue: Arc<Semaphore>,
    pub log: Log,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    task: String,
    #[serde(default)]
    calls: bool,
}

impl AskServer {
    fn tool(&self) -> Tool {
        let schema = json!({
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "What to find out or do, with everything that matters for it."},
                "calls": {"type": "boolean", "description": "Whether to return the calls that were made, too."},
            },
            "required": ["task"],
        });
        let schema = schema.as_object().cloned().unwrap_or_default();
        let reads = self.agent.open.tools.iter().filter(|tool| !tool.synthetic);
        let reads = reads.clone().all(|tool| tool.hint("readOnlyHint") == Some(true));
        Tool::new(NAME, self.description.clone(), schema).annotate(ToolAnnotations::new().read_only(reads))
    }

    /// What a client is told about a failure.
    fn failed(&self, error: ApiError) -> CallToolResult {
        error.report(&self.log);
        failed(error.message())
    }

    /// Plays a task as an episode does: a fresh session, the reminder, the limits.
    async fn ask(&self, task: &str, calls: Option<Calls>) -> crate::error::Result<Reply> {
        let prompt = PromptTokens::new(&self.agent.open.agent.chat, task)?;
        self.agent.reply(prompt, (Sampling::GREEDY, 0), ReplyListener { calls, made: None }).await
    }
}

impl ServerHandler for AskServer {
    fn get_info(&self) -> ServerConfig {
        let mut server = Implementation::new("mcprl", env!("CARGO_PKG_VERSION"));
        server.title = Some(self.title.clone());
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build()).with_server_info(server)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.tool()]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != NAME {
            return Err(ErrorData::invalid_params(format!("no such tool: {}", request.name), None));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let Arguments { task, calls } = serde_json::from_value(arguments)
            .map_err(|cause| ErrorData::invalid_params(format!("wrong arguments: {cause}"), None))?;
        let Ok(_permit) = self.queue.clone().try_acquire_owned() else {
            return Ok(failed("too many tasks are in progress; try again later").into());
        };
        // Over HTTP: the connection of this call.
        let of_request = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Gone>());
        let Gone(gone) = of_request.cloned().unwrap_or_default();
        let (sender, mut called) = unbounded_channel::<String>();
        let follow: Calls = Arc::new(move |tool| _ = sender.send(tool.to_owned()));
        let progress = async {
            let Some(token) = context.meta.get_progress_token() else { return std::future::pending().await };
            let mut number = 0_u32;
            while let Some(tool) = called.recv().await {
                number += 1;
                let mut made = ProgressNotificationParam::new(token.clone(), f64::from(number));
                made.message = Some(format!("calls {tool}"));
                // A client that is gone cancels the request.
                _ = context.peer.notify_progress(made).await;
            }
            std::future::pending().await
        };
        let reply = tokio::select! {
            reply = self.ask(&task, Some(follow)) => reply,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
            () = gone.cancelled() => return Err(ErrorData::internal_error("the client has gone", None)),
            never = progress => never,
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(failure) => return Ok(self.failed(failure.into()).into()),
        };
        let mut result = match (&reply.answer, &reply.lost) {
            (Some(answer), _) => CallToolResult::success(vec![ContentBlock::text(answer)]),
            (None, Some(cause)) => self.failed(lost(cause)),
            (None, None) => failed(&format!("the agent has no answer: {}", reply.end)),
        };
        if calls {
            let mut structured = reply.json();
            structured.as_object_mut().and_then(|all| all.shift_remove("tokens"));
            result.structured_content = Some(structured);
        }
        Ok(result.into())
    }
}

fn failed(why: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(why)])
}
