//! The three tools of the demo server. Their names and descriptions are in every prompt, so they are short.

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

use super::database::{Answer, Database};

#[derive(Clone)]
pub(super) struct CompanyServer {
    database: Arc<Database>,
    tools: Arc<Vec<Tool>>,
}

impl CompanyServer {
    pub(super) fn new(database: Database) -> Self {
        let tools = vec![
            tool("list_tables", "Lists the tables.", None),
            tool("describe_table", "Lists the columns of a table.", Some("table_name")),
            tool("run_query", "Runs a SQL SELECT query.", Some("sql")),
        ];
        Self { database: Arc::new(database), tools: Arc::new(tools) }
    }
}

/// A read-only tool with at most one argument, a required string.
fn tool(name: &'static str, description: &'static str, argument: Option<&str>) -> Tool {
    let mut properties = JsonObject::new();
    if let Some(argument) = argument {
        properties.insert(argument.to_owned(), json!({ "type": "string" }));
    }
    let mut schema = JsonObject::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    if let Some(argument) = argument {
        schema.insert("required".into(), json!([argument]));
    }
    Tool::new(name, description, schema)
        .annotate(ToolAnnotations::new().read_only(true).idempotent(true).open_world(false))
}

impl ServerHandler for CompanyServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("mcprl-demo-sqlite", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let database = Arc::clone(&self.database);
        // A query may take 0.1 s; other requests are answered in the meantime.
        let answer = tokio::task::spawn_blocking(move || answer(&database, &request))
            .await
            .map_err(|error| ErrorData::internal_error(error.to_string(), None))??;
        let result = match answer {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}

fn answer(database: &Database, request: &CallToolRequestParams) -> Result<Answer, ErrorData> {
    let argument = |name: &str| match request.arguments.as_ref().and_then(|all| all.get(name)) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("argument {name} must be a string")),
        None => Err(format!("missing argument: {name}")),
    };
    Ok(match &*request.name {
        "list_tables" => Ok(database.list_tables()),
        "describe_table" => argument("table_name").and_then(|table| database.describe_table(&table)),
        "run_query" => argument("sql").and_then(|sql| database.run_query(&sql)),
        unknown => return Err(ErrorData::invalid_params(format!("no such tool: {unknown}"), None)),
    })
}
