//! The report for a server's author: what agents do with its tools, and what would help them.

mod analysis;
mod cause;
mod difference;
mod document;
mod errors;
mod failures;
mod suggestions;
mod tools;

pub use analysis::{Failed, failed_tasks, server_report};
pub use document::server_document;
