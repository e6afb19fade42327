//! The MCP side of every demo server.

use std::sync::Arc;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

/// The text of a result, or of an error meant for the caller.
pub(super) type Answer = Result<String, String>;

/// The data and the tools of a demo server.
pub(super) trait Demo: Send + Sync + 'static {
    /// The name that the server gives itself.
    fn name(&self) -> &'static str;

    /// In the order in which they are listed. Names and descriptions are in every prompt, so they are short.
    fn tools(&self) -> Vec<Tool>;

    /// Answers a call; none if there is no such tool.
    fn call(&self, tool: &str, arguments: Arguments<'_>) -> Option<Answer>;

    /// Data of its own for a new session; none if nothing can change the data.
    fn session(&self) -> Option<Arc<dyn Demo>> {
        None
    }
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a>(Option<&'a JsonObject>);

impl<'a> Arguments<'a> {
    #[cfg(test)]
    pub(super) fn of(arguments: &'a JsonObject) -> Self {
        Self(Some(arguments))
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, String> {
        self.optional(name)?.ok_or_else(|| format!("missing argument: {name}"))
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<&'a str>, String> {
        match self.0.and_then(|all| all.get(name)) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("argument {name} must be a string")),
        }
    }
}

/// What a tool does to the data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

/// A tool whose parameters are texts. A name that ends in `?` is optional, and one with `=` lists its values:
/// `status?=open,closed`.
pub(super) fn tool(
    name: &'static str,
    description: &'static str,
    parameters: &[&str],
    effect: Effect,
) -> Tool {
    let mut properties = JsonObject::new();
    let mut required = Vec::new();
    for parameter in parameters {
        let (name, values) =
            parameter.split_once('=').map_or((*parameter, None), |(name, values)| (name, Some(values)));
        let name = match name.strip_suffix('?') {
            Some(name) => name,
            None => {
                required.push(Value::from(name));
                name
            }
        };
        let mut schema = json!({ "type": "string" });
        if let Some(values) = values {
            schema["enum"] = values.split(',').collect();
        }
        properties.insert(name.to_owned(), schema);
    }
    let mut schema = JsonObject::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    let annotations = ToolAnnotations::new().idempotent(true).open_world(false);
    let annotations = match effect {
        Effect::Reads => annotations.read_only(true),
        Effect::Writes => annotations.read_only(false).destructive(false),
    };
    Tool::new(name, description, schema).annotate(annotations)
}

/// One session with a demo.
#[derive(Clone)]
pub struct DemoSession(Arc<dyn Demo>);

impl DemoSession {
    pub(super) fn new(demo: impl Demo) -> Self {
        Self(Arc::new(demo))
    }

    pub(super) fn session(&self) -> Self {
        Self(self.0.session().unwrap_or_else(|| self.0.clone()))
    }
}

impl ServerHandler for DemoSession {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(self.0.name(), env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let demo = self.0.clone();
        // A query may take 0.1 s; other requests are answered in the meantime.
        let answer = tokio::task::spawn_blocking(move || {
            demo.call(&request.name, Arguments(request.arguments.as_ref()))
                .ok_or_else(|| ErrorData::invalid_params(format!("no such tool: {}", request.name), None))
        })
        .await
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))??;
        let result = match answer {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}
