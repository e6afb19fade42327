//! An agent at work. A [`conversation`] is a policy and its tools, turn by turn, for a user; chat and serving need no more.
//! An [`Episode`] is one about a task, with limits and a reason why it ended.
//!
//! The tokens of an episode are exactly those the policy saw. The first turn without a call gets a reminder; the text of a
//! later one is the answer. A call that the server does not answer ends the episode.
//!
//! This module does not depend on rewards or training. There is no clock: limits are turns, tokens and calls, and a session
//! limits the time of each call.

mod answers;
mod conversation;
mod dialogue;
mod endpoint;
mod episode;
mod history;
mod lazy_sessions;
mod policy;
mod repeats;
mod schema;
mod script;
mod settings;
mod stall;
mod talk;
mod toolbox;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use conversation::{Agent, Conversation, PromptTokens};
pub use dialogue::{Hooks, LostCall, Refusal, ToolServer};
pub use endpoint::{EndpointAgent, EndpointConversation, EndpointSampling};
pub use episode::{Episode, REMINDER, endpoint_episode, episode};
pub use history::History;
pub use lazy_sessions::{LazySessions, Outage};
pub use repeats::{Repeats, result_of, told};
pub use script::Script;
pub use settings::{AgentSettings, system_prompt};
pub use stall::{STALL, Watched};
pub use talk::{CallRecord, ConversationSource, OneMessage, Reply, Talk};
pub use toolbox::{Toolbox, answer_of};
