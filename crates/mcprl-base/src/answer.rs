//! How an episode gives its answer.

/// The tool that ends an episode, with the answer as its argument. mcprl answers it; it is never sent to a server.
pub const COMPLETE_TASK: &str = "complete_task";
