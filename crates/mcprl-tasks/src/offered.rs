//! What MCP servers offer, as rows of tables, and back.

use crate::{data, mcp};

fn tool_row(tool: mcp::Tool) -> data::Tool {
    let mcp::Tool {
        name,
        server_name,
        description,
        input_schema,
        output_schema,
        annotations,
        function,
        synthetic,
    } = tool;
    data::Tool {
        name,
        server_name,
        description,
        input_schema,
        output_schema,
        annotations,
        function,
        synthetic,
        listed: None,
    }
}

/// Tools as rows of the table `tools`.
pub fn tool_rows(tools: Vec<mcp::Tool>) -> Vec<data::Tool> {
    tools.into_iter().map(tool_row).collect()
}

/// A row as the tool that an agent sees.
pub fn tool(row: &data::Tool) -> mcp::Tool {
    let data::Tool {
        name,
        server_name,
        description,
        input_schema,
        output_schema,
        annotations,
        function,
        synthetic,
        listed: _,
    } = row.clone();
    mcp::Tool {
        name,
        server_name,
        description,
        input_schema,
        output_schema,
        annotations,
        function,
        synthetic,
    }
}

/// What the servers of a run offer, as the rows of `discover`'s tables.
#[derive(Debug, Clone, Default)]
pub struct Offered {
    pub servers: Vec<data::Server>,
    pub tools: Vec<data::Tool>,
    pub resources: Vec<data::Resource>,
    pub resource_templates: Vec<data::ResourceTemplate>,
    pub prompts: Vec<data::Prompt>,
}

impl Offered {
    /// By the servers' names. Names of tools that several servers have get their server's in front.
    pub fn of(described: Vec<(String, mcp::Description)>) -> Self {
        let (mut all, mut lists) = (Self::default(), Vec::new());
        for (name, described) in described {
            lists.push((name, described.tools.clone()));
            let rows = OfferedRows::from(described);
            all.servers.push(rows.server);
            all.resources.extend(rows.resources);
            all.resource_templates.extend(rows.resource_templates);
            all.prompts.extend(rows.prompts);
        }
        Self { tools: tool_rows(mcp::merged(lists)), ..all }
    }
}

/// A server's [`mcp::Description`] as rows.
pub struct OfferedRows {
    pub server: data::Server,
    pub tools: Vec<data::Tool>,
    pub resources: Vec<data::Resource>,
    pub resource_templates: Vec<data::ResourceTemplate>,
    pub prompts: Vec<data::Prompt>,
}

impl From<mcp::Description> for OfferedRows {
    fn from(described: mcp::Description) -> Self {
        let mcp::Description { server, tools, resources, resource_templates, prompts } = described;
        let mcp::ServerInfo { name, version, protocol, transport, instructions, capabilities, tools_digest } =
            server;
        let resource = |mcp::Resource { uri, name, description, mime_type }| data::Resource {
            uri,
            name,
            description,
            mime_type,
        };
        let template = |mcp::ResourceTemplate { uri_template, name, description, mime_type }| {
            data::ResourceTemplate { uri_template, name, description, mime_type }
        };
        let prompt =
            |mcp::Prompt { name, description, arguments }| data::Prompt { name, description, arguments };
        Self {
            server: data::Server {
                name,
                version,
                protocol,
                transport,
                instructions,
                capabilities,
                tools_digest,
            },
            tools: tool_rows(tools),
            resources: resources.into_iter().map(resource).collect(),
            resource_templates: resource_templates.into_iter().map(template).collect(),
            prompts: prompts.into_iter().map(prompt).collect(),
        }
    }
}
