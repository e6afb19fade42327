//! What a server offers, as plain types. All texts are cleaned of control characters.

use serde::{Deserialize, Serialize};

/// The server itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Name that the server reports.
    pub name: String,
    /// Version that the server reports.
    pub version: String,
    /// Negotiated MCP revision, e.g. 2025-11-25.
    pub protocol: String,
    /// `stdio`, `http`, or `sse` for HTTP+SSE.
    pub transport: String,
    /// Instructions that the server provides for models.
    pub instructions: Option<String>,
    /// Server capabilities as JSON.
    pub capabilities: String,
    /// Digest of the canonical tool list.
    pub tools_digest: String,
}

/// One tool, as an agent sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Name used by the agent: the server's name, unless that is not a valid function name.
    pub name: String,
    /// Name used in calls to the server; empty for a tool that mcprl adds. `server/tool` if the servers have names.
    pub server_name: String,
    /// What the tool does.
    pub description: String,
    /// JSON Schema of the arguments, in the server's key order.
    pub input_schema: String,
    /// JSON Schema of the structured result, if declared.
    pub output_schema: Option<String>,
    /// MCP annotations (hints, untrusted) as JSON.
    pub annotations: Option<String>,
    /// The OpenAI-style function schema in the model's prompt, as JSON.
    pub function: String,
    /// True for `complete_task`, which mcprl adds and answers itself.
    pub synthetic: bool,
}

/// One resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    pub uri: String,
    pub name: String,
    pub description: Option<String>,
    pub mime_type: Option<String>,
}

/// One template of resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceTemplate {
    /// URI template (RFC 6570).
    pub uri_template: String,
    pub name: String,
    pub description: Option<String>,
    pub mime_type: Option<String>,
}

/// One prompt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    pub name: String,
    pub description: Option<String>,
    /// Its arguments as JSON.
    pub arguments: String,
}
