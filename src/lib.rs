//! `mcprl` trains a LoRA adapter that makes a base language model measurably better at the tools of an MCP server.
//!
//! A module imports only from floors below its own (`tests/layering.rs` checks it):
//!
//! | floor | modules |
//! |---|---|
//! | 0 | [`hash`], [`error`], [`progress`], [`random`], [`net`], [`usage`], [`child`], [`data`] |
//! | 1 | [`store`], [`mcp`], [`chat`], [`model`] |
//! | 2 | [`engine`], [`llm`] |
//! | 3 | [`agent`], [`judge`], [`grpo`], [`eval`] |
//! | 4 | [`stage`] |
//! | 5 | [`plan`] |
//! | 6 | [`exec`] |
//! | 7 | [`cli`], [`ui`] |

pub mod child;
pub mod data;
pub mod error;
pub mod hash;
pub mod net;
pub mod progress;
pub mod random;
pub mod usage;

pub mod chat;
pub mod mcp;
pub mod model;
pub mod store;

pub mod engine;
pub mod llm;

pub mod agent;
pub mod eval;
pub mod grpo;
pub mod judge;

pub mod stage;

pub mod plan;

pub mod exec;

pub mod cli;
pub mod ui;
