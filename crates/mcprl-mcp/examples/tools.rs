//! Lists the tools of an MCP server: `cargo run -p mcprl-mcp --example tools -- uvx some-server`, or a URL in place of the command.
#![expect(clippy::print_stdout, reason = "an example")]

use mcprl_mcp::{McpError, ServerSpec, Session, State, Transport};

#[tokio::main]
async fn main() -> Result<(), McpError> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let transport = match command.as_slice() {
        [url] if url.starts_with("http") => Transport::http(url.clone()),
        _ => Transport::Stdio { command, env: Default::default(), cwd: None, files: Vec::new() },
    };
    let session = Session::connect(&ServerSpec::new(transport, State::ReadOnly)).await?;
    for tool in session.tools().await? {
        println!("{}: {}", tool.name, tool.description.lines().next().unwrap_or_default());
    }
    session.close().await;
    Ok(())
}
