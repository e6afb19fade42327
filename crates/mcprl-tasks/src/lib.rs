//! Tasks for an MCP server, whatever it is.
//!
//! | source | tasks come from |
//! |---|---|
//! | [`mod@file`] | a user's file |
//! | [`grounded`] | declared [`families`], answered by the live server |
//! | [`explored`] | calls of the live server, without a language model |
//! | [`llm`] | a language model, grounded in sampled results |
//! | [`traces`] | recorded conversations |
//!
//! Each makes [`Candidate`](candidate::Candidate)s. Those of the last three count after their reference calls have been executed
//! twice ([`admission`]); [`refusals`] says what is left out and why. A [`writer`] words them anew, and [`split`] holds some out.

pub mod admission;
pub mod answer_rule;
pub mod candidate;
pub mod checked;
mod declaration;

pub mod explored;
pub mod families;
pub mod file;
pub mod grounded;
mod harvest;
pub mod live;
pub mod llm;
pub mod mix;
pub mod offered;
pub mod phrase;
pub mod recorded;
pub mod refusals;
mod results;
pub mod runner;
mod senses;
pub mod solution;
pub mod split;
mod task_error;
pub mod traces;
mod words;
pub mod writer;

use mcprl_base::{answer, document, error, hash, json, progress, secret, text};
use mcprl_store::data;
use {mcprl_chat as chat, mcprl_judge as judge, mcprl_mcp as mcp};

pub use task_error::TaskError;
