//! An episode: a policy and a server, turn by turn, until the task is done or a limit is reached.
//!
//! Token in, token out: what the policy sampled is kept as it was sampled, and only what others said is appended, so
//! the tokens of an episode are exactly those the policy saw. Where earlier turns lose their reasoning, a turn is sampled
//! after other tokens than the conversation's so far: the episode goes on in a row of its own. Every episode ends with a reason. Whatever a policy
//! writes is answered: a malformed call, an unknown tool and wrong arguments come back to it as errors. What the server fails
//! to answer is shown to nobody: it ends the episode.
//!
//! Nothing here knows of rewards or training, and nothing depends on how long a tool took, up to the limit on time.

mod clip;
mod episode;
mod toolbox;

#[cfg(test)]
mod tests;

pub use episode::{End, Episode, Limits, LostCall, PolicyHandle, PromptTokens, Server, episode};
pub use toolbox::{Toolbox, ToolboxError};
