//! A server of this program on its stdin and stdout.

use rmcp::{ServerHandler, ServiceExt, service::ServerInitializeError, transport::io::stdio_pipes};

use super::McpError;

/// Serves MCP on stdin and stdout until stdin ends.
///
/// # Errors
/// If the connection fails.
pub async fn serve_stdio(server: impl ServerHandler) -> Result<(), McpError> {
    let running = match server.serve(stdio_pipes()).await {
        Ok(running) => running,
        // Stdin ended before a handshake, which is not an error.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(McpError::Serve(error.into())),
    };
    running.waiting().await.map_err(|error| McpError::Serve(error.into()))?;
    Ok(())
}
