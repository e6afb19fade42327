//! `mcprl demo-server`: an MCP server to try things on.

use std::net::SocketAddr;

use clap::Args;

use super::{Outcome, runtime};
use crate::{
    error::Result,
    mcp::demo::{self, HttpServer},
    ui::Printer,
};

#[derive(Args)]
pub struct DemoServer {
    /// Which one: `sqlite`, a company database that can be read.
    kind: String,
    /// Listen for streamable HTTP here instead of speaking over standard input and output: `127.0.0.1:8123`.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
}

impl DemoServer {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        runtime()?.block_on(async {
            match self.http {
                None => demo::serve_stdio(&self.kind).await?,
                Some(address) => {
                    let server = HttpServer::bind(&self.kind, address).await?;
                    printer.say(&format!("listening on {}", server.url()?));
                    server.serve().await?;
                }
            }
            Ok(Outcome::Success)
        })
    }
}
