//! Tables that `discover` writes: the server, and what it offers.

use super::table::table;

table! {
    /// The server itself; one row.
    Server in "server" {
        /// Name that the server reports.
        name: String,
        /// Version that the server reports.
        version: String,
        /// Negotiated MCP revision, e.g. 2025-11-25.
        protocol: String,
        /// `stdio`, `http`, or `sse` for HTTP+SSE.
        transport: String,
        /// Instructions that the server provides for models.
        instructions: Option<String>,
        /// Server capabilities as JSON.
        capabilities: String,
        /// Digest of the canonical tool list; part of the keys of later stages.
        tools_digest: String,
    }
}

table! {
    /// One tool, as the agent sees it.
    Tool in "tools" {
        /// Name used by the agent: the server's name, unless that is not a valid function name.
        name: String,
        /// Name used in calls to the server; empty for a tool that mcprl adds. `server/tool` if the servers have names.
        server_name: String,
        /// What the tool does, cleaned of control characters.
        description: String,
        /// JSON Schema of the arguments, in the server's key order.
        input_schema: String,
        /// JSON Schema of the structured result, if declared.
        output_schema: Option<String>,
        /// MCP annotations (hints, untrusted) as JSON.
        annotations: Option<String>,
        /// The OpenAI-style function schema in the model's prompt, as JSON.
        function: String,
        /// True for `complete_task`, which mcprl adds and answers itself.
        synthetic: bool,
    }
}

table! {
    /// One resource the server lists.
    Resource in "resources" {
        /// URI.
        uri: String,
        /// Name.
        name: String,
        /// Description.
        description: Option<String>,
        /// MIME type.
        mime_type: Option<String>,
    }
}

table! {
    /// One template of resources that the server lists.
    ResourceTemplate in "resource_templates" {
        /// URI template (RFC 6570).
        uri_template: String,
        /// Name.
        name: String,
        /// Description.
        description: Option<String>,
        /// MIME type of all its resources.
        mime_type: Option<String>,
    }
}

table! {
    /// One prompt that the server lists.
    Prompt in "prompts" {
        /// Name.
        name: String,
        /// Description.
        description: Option<String>,
        /// Arguments as a JSON array of objects with `name`, `description` and `required`.
        arguments: String,
    }
}

impl Tool {
    /// An annotation such as `readOnlyHint`: the server's word, which is not verified.
    pub fn hint(&self, name: &str) -> Option<bool> {
        let annotations: serde_json::Value = serde_json::from_str(self.annotations.as_deref()?).ok()?;
        annotations.get(name)?.as_bool()
    }
}
