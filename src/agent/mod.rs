//! An episode: a policy and a server, turn by turn, until the task is done or a limit is reached.
//!
//! Sampled tokens are kept, and only tool results and template text are appended, so the tokens of an episode are exactly
//! those the policy saw. If earlier turns lose their reasoning, the context changes and the episode continues in a new
//! row. Every episode ends with a reason. Every output of the policy gets an answer: a malformed call, an unknown tool and
//! wrong arguments give an error that the policy sees, and do not reach the server. The first turn without a call gets a
//! reminder; the text of a later one is the answer. A call that the server does not answer ends the episode.
//!
//! This module does not depend on rewards or training. There is no clock: limits are turns, tokens and calls, and a session
//! limits the time of each call.

mod episode;
mod schema;
mod script;
mod settings;
mod toolbox;

#[cfg(test)]
mod tests;

pub use episode::{Episode, LostCall, PolicyHandle, PromptTokens, Server, episode};
pub use script::Script;
pub use settings::{AgentSettings, system_prompt};
pub use toolbox::Toolbox;
