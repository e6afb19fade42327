//! How strictly a sampled turn is read.

use serde::{Deserialize, Serialize};

/// Which calls count when a sampled turn is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Calls as the chat template writes them.
    #[default]
    Strict,
    /// If the template's own form gives no readable call: calls to offered tools in any [form](super::CallForm).
    Lenient,
}
