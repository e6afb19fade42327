//! `mcprl demo-server`: an MCP server to try mcprl with.

use std::net::SocketAddr;

use clap::Args;

use super::{Outcome, runtime};
use crate::{
    demo::{self, HttpServer},
    error::Result,
    mcp::serve_stdio,
    ui::Printer,
};

#[derive(Args)]
pub struct DemoServer {
    /// The server: `sqlite`, a read-only company database, or `desk`, a service desk with tickets that can be changed.
    kind: String,
    /// Serve streamable HTTP at this address instead of standard input and output: `127.0.0.1:8123`.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
}

impl DemoServer {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let kind = &self.kind;
        runtime()?.block_on(async {
            match self.http {
                None => serve_stdio(demo::open(kind)?).await?,
                Some(address) => {
                    let server = HttpServer::bind(kind, address).await?;
                    printer.say(&format!("listening on {}", server.url()?));
                    server.serve().await?;
                }
            }
            Ok(Outcome::Success)
        })
    }
}
