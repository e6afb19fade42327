//! `mcprl demo-server`: an MCP server to practise on.

use std::net::SocketAddr;

use clap::{Args, builder::PossibleValuesParser};

use super::Outcome;
use crate::{error::Result, exec::ExecError, mcp::demo, ui::Printer};

#[derive(Args)]
pub struct DemoServer {
    /// Which server.
    #[arg(value_parser = PossibleValuesParser::new(demo::KINDS))]
    kind: String,
    /// Listen here instead of on standard input: `127.0.0.1:8080`. Port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
}

impl DemoServer {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(ExecError::Threads)?;
        runtime.block_on(async {
            match self.http {
                Some(address) => {
                    let server = demo::HttpServer::bind(&self.kind, address).await?;
                    printer.say(&format!("listening at {}", server.url()?));
                    server.serve().await
                }
                None => demo::serve_stdio(&self.kind).await,
            }
        })?;
        // Reading standard input can not be called off; waiting for it would keep the process.
        runtime.shutdown_background();
        Ok(Outcome::Worked)
    }
}
