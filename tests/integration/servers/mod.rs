//! The client of MCP servers: protocol, sessions, settings, `connect` and `init`; against the demo server, scripts that
//! misbehave, and published servers.

mod cassettes;
mod client;
mod connect;
mod hostile;
mod http;
mod real;
mod settings;
mod sloppy;
