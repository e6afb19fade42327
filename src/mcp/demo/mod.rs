//! Demo servers, over stdio or streamable HTTP: a company in SQLite ([`sqlite`]), a service desk ([`desk`]) and worlds
//! drawn from a seed ([`world`]).
//!
//! They are ordinary MCP servers, independent of the rest of mcprl. Over HTTP they listen on loopback only, and refuse
//! requests whose `Host` is not loopback or that come from a web page (an `Origin` header other than their own).

mod desk;
mod fixture;
mod server;
mod sqlite;
mod world;

use std::{net::SocketAddr, sync::Arc};

use futures::future::BoxFuture;
use rmcp::{
    ServiceExt,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService, io::stdio_pipes,
        streamable_http_server::session::local::LocalSessionManager,
    },
};
use tokio::net::TcpListener;

use self::{desk::Desk, fixture::Fixture, server::Server, sqlite::Company, world::World};
use super::McpError;

pub use self::sqlite::DatabaseError;

/// The names of the demo servers.
pub const KINDS: [&str; 3] = ["sqlite", "desk", "world"];

/// The path of the HTTP endpoint.
pub const HTTP_PATH: &str = "/mcp";

/// Which demo server. A name alone has the seed 1.
#[derive(Debug, Clone, Copy)]
pub struct Kind<'a> {
    pub name: &'a str,
    /// Draws a world.
    pub seed: u64,
}

impl<'a> From<&'a str> for Kind<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, seed: 1 }
    }
}

/// Serves MCP on stdin and stdout until stdin ends.
pub async fn serve_stdio(kind: Kind<'_>) -> Result<(), McpError> {
    let server = open(kind)?;
    let running = match server.serve(stdio_pipes()).await {
        Ok(running) => running,
        // Stdin ended before a handshake, which is not an error.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Serve(error.into())),
    };
    running.waiting().await.map_err(|error| McpError::Serve(error.into()))?;
    Ok(())
}

/// Serves MCP over streamable HTTP at `http://ADDR/mcp` until the process ends.
pub async fn serve_http(kind: &str, address: SocketAddr) -> Result<(), McpError> {
    HttpServer::bind(kind, address).await?.serve().await
}

/// A demo server that is bound to its port but does not answer yet.
pub struct HttpServer {
    server: Server,
    listener: TcpListener,
}

impl HttpServer {
    /// Port 0 picks any free port.
    pub async fn bind<'a>(kind: impl Into<Kind<'a>>, address: SocketAddr) -> Result<Self, McpError> {
        let server = open(kind.into())?;
        if !address.ip().is_loopback() {
            return Err(McpError::NotLoopback(address));
        }
        let listener =
            TcpListener::bind(address).await.map_err(|source| McpError::Bind { address, source })?;
        Ok(Self { server, listener })
    }

    /// The URL to write into a run file.
    pub fn url(&self) -> Result<String, McpError> {
        let address = self.listener.local_addr().map_err(|error| McpError::Serve(error.into()))?;
        Ok(format!("http://{address}{HTTP_PATH}"))
    }

    /// Until the process ends.
    pub fn serve(self) -> BoxFuture<'static, Result<(), McpError>> {
        Box::pin(async move {
            let address = self.listener.local_addr().map_err(|error| McpError::Serve(error.into()))?;
            let own =
                ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:{}", address.port()));
            let server = self.server;
            let service = StreamableHttpService::new(
                move || Ok(server.session()),
                LocalSessionManager::default().into(),
                StreamableHttpServerConfig::default().with_allowed_origins(own),
            );
            let router = axum::Router::new().route_service(HTTP_PATH, service);
            axum::serve(self.listener, router).await.map_err(|error| McpError::Serve(error.into()))
        })
    }
}

fn open(kind: Kind<'_>) -> Result<Server, McpError> {
    match kind.name {
        "sqlite" => Ok(Server::new(Arc::new(Company::open().map_err(McpError::DemoDatabase)?))),
        "desk" => Ok(Server::new(Arc::new(Desk::open()))),
        // Not in `KINDS`: nothing to try mcprl with.
        "conformance" => Ok(Server::new(Arc::new(Fixture))),
        "world" => Ok(Server::new(Arc::new(World::open(kind.seed)))),
        unknown => Err(McpError::UnknownDemo(unknown.to_owned())),
    }
}
