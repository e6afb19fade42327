//! Tables that `discover` writes: the server, and what it offers.

use serde::{Deserialize, Serialize};

use super::table::{Json, table};

/// The texts of a tool that a run file may override.
#[derive(Serialize, Deserialize)]
struct ListedTexts {
    description: String,
    input_schema: String,
    function: String,
}

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
        /// What `description`, `input_schema` and `function` are on the server, as a JSON object, if the run file overrides
        /// texts of the tool. The column is absent if it overrides none.
        listed: Option<Json>,
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
    /// The name of its server; none if there is only one server, or if mcprl adds the tool.
    pub fn server(&self) -> Option<&str> {
        Some(self.server_name.split_once('/')?.0)
    }

    /// The tools that the agent gets for a task about this server, of several.
    pub fn of_server(tools: &[Self], server: &str) -> Vec<Self> {
        let is_of = |tool: &&Self| tool.synthetic || tool.server() == Some(server);
        tools.iter().filter(is_of).cloned().collect()
    }

    /// The tool as the server lists it, without the run file's texts.
    #[must_use]
    pub fn as_listed(&self) -> Self {
        let listed = self.listed.as_ref().and_then(|listed| serde_json::from_str(&listed.0).ok());
        match listed {
            Some(ListedTexts { description, input_schema, function }) => {
                Self { description, input_schema, function, listed: None, ..self.clone() }
            }
            None => self.clone(),
        }
    }

    /// Notes the texts as they are now as the server's own, before they are overridden.
    pub fn keep_listed(&mut self) {
        let Self { description, input_schema, function, .. } = self.clone();
        let texts = ListedTexts { description, input_schema, function };
        let json = serde_json::to_string(&texts).ok().map(Json);
        self.listed = self.listed.take().or(json);
    }

    /// An annotation such as `readOnlyHint`: the server's word, which is not verified.
    pub fn hint(&self, name: &str) -> Option<bool> {
        let annotations: serde_json::Value = serde_json::from_str(self.annotations.as_deref()?).ok()?;
        annotations.get(name)?.as_bool()
    }
}
