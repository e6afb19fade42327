//! Demo servers, over stdio or streamable HTTP: a company in SQLite ([`sqlite`]) and a service desk ([`desk`]).
//!
//! They are ordinary MCP servers, independent of the rest of mcprl. Over HTTP they listen on loopback only, and refuse
//! requests whose `Host` is not loopback or that come from a web page (an `Origin` header other than their own).

mod desk;
mod error;
mod fixture;
mod server;
mod sqlite;

use std::net::SocketAddr;

use axum::serve::ListenerExt;
use futures::future::BoxFuture;
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService,
    streamable_http_server::session::local::LocalSessionManager,
};
use tokio::net::TcpListener;

use self::{desk::Desk, fixture::Fixture, sqlite::Database};

pub use self::{error::DemoError, server::DemoSession, sqlite::DatabaseError};

/// The names of the demo servers.
pub const KINDS: [&str; 2] = ["sqlite", "desk"];

/// The path of the HTTP endpoint.
pub const HTTP_PATH: &str = "/mcp";

/// A demo server that is bound to its port but does not answer yet.
pub struct HttpServer {
    server: DemoSession,
    listener: TcpListener,
}

impl HttpServer {
    /// Port 0 picks any free port.
    pub async fn bind(kind: &str, address: SocketAddr) -> Result<Self, DemoError> {
        let server = open(kind)?;
        if !address.ip().is_loopback() {
            return Err(DemoError::NotLoopback(address));
        }
        let listener =
            TcpListener::bind(address).await.map_err(|source| DemoError::Bind { address, source })?;
        Ok(Self { server, listener })
    }

    /// The URL to write into a run file.
    pub fn url(&self) -> Result<String, DemoError> {
        Ok(format!("http://{}{HTTP_PATH}", self.address()?))
    }

    fn address(&self) -> Result<SocketAddr, DemoError> {
        self.listener.local_addr().map_err(|error| DemoError::Serve(error.into()))
    }

    /// Until the process ends.
    pub fn serve(self) -> BoxFuture<'static, Result<(), DemoError>> {
        Box::pin(async move {
            let port = self.address()?.port();
            let own = ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:{port}"));
            let server = self.server;
            let service = StreamableHttpService::new(
                move || Ok(server.session()),
                LocalSessionManager::default().into(),
                StreamableHttpServerConfig::default().with_allowed_origins(own),
            );
            let router = axum::Router::new().route_service(HTTP_PATH, service);
            // An answer follows the beginning of its stream, and does not wait until that has been acknowledged.
            let listener = self.listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            axum::serve(listener, router).await.map_err(|error| DemoError::Serve(error.into()))
        })
    }
}

/// # Errors
/// If there is no such server, or its data cannot be built.
pub fn open(kind: &str) -> Result<DemoSession, DemoError> {
    match kind {
        "sqlite" => Ok(DemoSession::new(Database::open().map_err(DemoError::DemoDatabase)?)),
        "desk" => Ok(DemoSession::new(Desk::open())),
        // Not in `KINDS`: nothing to try mcprl with.
        "conformance" => Ok(DemoSession::new(Fixture)),
        unknown => Err(DemoError::UnknownDemo(unknown.to_owned())),
    }
}
