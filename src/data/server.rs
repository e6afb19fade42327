//! Tables that `discover` writes: the server, its tools and its resources.

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
        /// `stdio` or `http`.
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
