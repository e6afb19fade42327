//! An agent outside a stage, for a person. It is made as those of episodes are, so that what was trained is what answers.

use std::{path::Path, sync::Arc};

use super::{lazy_sessions::LazySessions, settings::prepare};
use crate::{
    agent::{Agent, AgentSettings, PromptTokens},
    data::{self, Tool},
    engine::{Sampler, Sampling, Sequence},
    error::{At, Result},
    mcp::Pools,
    stage::{
        Context, Input,
        memory::Load,
        policy::{self, PolicyFolder},
    },
};

/// A loaded policy with its tools, and the servers that answer its calls.
pub struct OpenAgent {
    pub agent: Arc<Agent>,
    pub tools: Vec<Tool>,
    sampler: Sampler,
    pools: Pools,
}

impl OpenAgent {
    /// Loads the policy and reads its tools, a table that `discover` wrote. Servers are connected to by
    /// [`sessions`](Self::sessions).
    ///
    /// # Errors
    /// If the policy cannot be loaded, its template cannot write the tools, or there is no server.
    pub async fn open(
        context: &Context,
        policy: &Input,
        tools: &Path,
        settings: &AgentSettings,
    ) -> Result<Self> {
        let named = || format!("policy \"{}\"", policy.name);
        let folder = PolicyFolder::open(policy, context).at(named)?;
        let (agents, pools) = prepare(context, (policy, &folder), tools, &[], settings)?;
        let expected = folder.expected().at(named)?;
        let peak = Load::of(&context.engine).sampling(&expected, 1, settings.max_episode_tokens);
        let sampler = policy::start(folder, context, &peak).await.at(named)?;
        Ok(Self { agent: agents.all, tools: data::read(tools)?, sampler, pools })
    }

    pub fn policy(&self, prompt: &PromptTokens, sampling: Sampling, seed: u64) -> Sequence {
        self.sampler.open(prompt.pieces.clone(), sampling, seed)
    }

    /// Sessions with the servers, in a state as fresh as an episode's.
    pub fn sessions(&self) -> LazySessions<'_> {
        LazySessions { sessions: self.pools.visit(), exclusive: false, outage: None }
    }

    /// Closes the sessions and frees the policy's memory. Waits for the conversations that are still open.
    pub async fn close(self) {
        self.pools.close().await;
        self.sampler.close().await;
    }
}
