//! What `discover` writes: who the server is and what it offers.

use super::table::table;

table! {
    /// The server itself; one row.
    Server in "server" {
        /// Name the server gives itself.
        name: String,
        /// Version the server gives itself.
        version: String,
        /// Negotiated MCP revision, e.g. 2025-11-25.
        protocol: String,
        /// `stdio` or `http`.
        transport: String,
        /// Instructions the server sends to its users' models.
        instructions: Option<String>,
        /// Server capabilities as JSON.
        capabilities: String,
        /// Digest of the canonical tool list: what later stages are keyed by.
        tools_digest: String,
    }
}

table! {
    /// One tool, as the agent sees it.
    Tool in "tools" {
        /// Name used by the agent; the server's own unless that was not a valid function name.
        name: String,
        /// Name used on the wire; empty for a tool that is not the server's.
        server_name: String,
        /// What the tool does, cleaned of control characters.
        description: String,
        /// JSON Schema of the arguments, the server's key order kept.
        input_schema: String,
        /// JSON Schema of the structured result, if declared.
        output_schema: Option<String>,
        /// MCP annotations (hints, untrusted) as JSON.
        annotations: Option<String>,
        /// The OpenAI-style function schema put before the model, as JSON.
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
        /// What it holds.
        description: Option<String>,
        /// MIME type.
        mime_type: Option<String>,
    }
}
