//! What every crate of mcprl stands on: errors with a code and a hint, digests, seeded draws, progress and usage, rules for
//! HTTP clients and child processes, references to variables, and which values are secrets.
//!
//! It never knows a stage, a server or a model, and prints nothing.

// What the derive writes names this crate.
extern crate self as mcprl_base;

pub mod answer;
pub mod call;
pub mod child;
pub mod document;
pub mod error;
pub mod guide;
pub mod hash;
pub mod json;
pub mod net;
pub mod program;
pub mod progress;
pub mod random;
pub mod reference;
pub mod secret;
pub mod text;
pub mod usage;
