//! `mcprl` trains a LoRA adapter that makes a base language model measurably better at the tools of an MCP server.
//!
//! The program is `mcprl`; this library is what other Rust programs can use of it:
//!
//! | module | for |
//! |---|---|
//! | [`data`] | reading and writing the tables of a run: scenarios, trajectories, rewards, verdicts |
//! | [`mcp`] | connecting to any MCP server: [`mcp::Session`], pools of sessions |
//! | [`demo`] | the MCP servers to try mcprl with |
//! | [`model`] | decoders of the supported families, and adapters in PEFT's format |
//! | [`eval`] | comparing policies on common scenarios, with intervals and tests |
//! | [`error`] | the error trait of all of these: code, hint, class |
//!
//! Count the right answers of an evaluation:
//!
//! ```no_run
//! use mcprl::data::{self, Trajectory};
//!
//! # fn main() -> Result<(), data::DataError> {
//! let run = std::path::Path::new("cache/runs/20260101-120000-sqlite");
//! let episodes: Vec<Trajectory> = data::read(&run.join("exam/episodes.parquet"))?;
//! let right = episodes.iter().filter(|episode| episode.correct == Some(true)).count();
//! println!("{right} of {} episodes have the right answer", episodes.len());
//! # Ok(())
//! # }
//! ```
//!
//! Call a tool:
//!
//! ```no_run
//! use mcprl::mcp::{McpError, ServerSpec, Session, State, Transport};
//!
//! # async fn call() -> Result<(), McpError> {
//! let command = ["uvx", "my-server"].map(String::from).to_vec();
//! let transport = Transport::Stdio { command, env: Default::default(), cwd: None, files: Vec::new() };
//! let spec = ServerSpec::new(transport, State::ReadOnly);
//! let session = Session::connect(&spec).await?;
//! println!("{}", session.call("list_tables", serde_json::Map::new()).await?.text);
//! session.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! A module imports only from layers below its own (`tests/integration/house/layering.rs` checks it); ARCHITECTURE.md has the layers.

#[cfg(windows)]
compile_error!("mcprl runs on Linux and macOS; on Windows, use WSL");

pub use mcprl_base::error;
pub use mcprl_engine::model;
pub use mcprl_mcp as mcp;
pub use mcprl_store::data;

use mcprl_base::{
    answer, child, document, guide, hash, json, net, program, progress, random, reference, secret, text,
    usage,
};
use mcprl_judge::llm;
use mcprl_tasks::{offered, recorded};
use {
    mcprl_chat as chat, mcprl_engine as engine, mcprl_judge as judge, mcprl_store as store,
    mcprl_tasks as tasks,
};

pub mod demo;
pub mod eval;

#[doc(hidden)]
pub mod cli;

mod agent;
mod exec;
mod grpo;
mod hub;
mod openai;
mod plan;
mod report;
mod serve;
mod stage;
mod track;
mod ui;
mod view;
mod web;
