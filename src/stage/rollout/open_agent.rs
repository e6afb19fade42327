//! A policy and an agent outside a stage, for a person or a client. They are made as those of episodes are, so that what was
//! trained is what answers.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use super::settings::{chat, prepare, prepare_endpoint};
use crate::{
    agent::{
        Agent, AgentSettings, Conversation, ConversationSource, EndpointAgent, EndpointConversation,
        EndpointSampling, LazySessions, PromptTokens,
    },
    data::{self, Tool},
    engine::{Sampler, Sampling, Sequence},
    error::{At, Result},
    hash::Digest,
    mcp::Pools,
    openai::Model,
    stage::{
        Context, Input,
        endpoint::EndpointPolicy,
        memory::Load,
        policy::{self, PolicyFolder},
    },
};

/// A loaded policy.
pub struct OpenPolicy {
    /// What answers requests. Turns are read as in episodes.
    pub model: Model,
    pub digest: Digest,
    folder: PolicyFolder,
}

impl OpenPolicy {
    /// Loads the policy. Policies of one context share the frozen weights of their model.
    ///
    /// # Errors
    /// If it cannot be loaded.
    pub async fn open(context: &Context, policy: &Input, settings: &AgentSettings) -> Result<Self> {
        let named = || format!("policy \"{}\"", policy.name);
        let folder = PolicyFolder::open(policy, context).at(named)?;
        let chat = chat(context, &folder, settings).at(named)?;
        let expected = folder.expected().at(named)?;
        let tokens = expected.config.context;
        let peak = Load::of(&context.engine).sampling(&expected, 1, settings.max_episode_tokens.min(tokens));
        let sampler = policy::start(folder.clone(), context, &peak).await.at(named)?;
        Ok(Self { model: Model { sampler, chat, context: tokens }, digest: policy.digest, folder })
    }

    /// Tokens sampled, computed and recomputed so far.
    pub fn usage(&self) -> [u64; 3] {
        let usage = self.model.sampler.usage();
        [&usage.sampled, &usage.computed, &usage.recomputed].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A loaded policy with its tools, and the servers that answer its calls.
pub struct OpenAgent {
    pub agent: Arc<Agent>,
    pub tools: Vec<Tool>,
    sampler: Sampler,
    pools: Pools,
}

impl OpenAgent {
    /// Loads the policy and reads its tools, a table that `discover` wrote. Servers are connected to by the sessions of
    /// [`AgentSource`].
    ///
    /// # Errors
    /// If the policy cannot be loaded, its template cannot write the tools, or there is no server.
    pub async fn open(
        context: &Context,
        policy: &Input,
        tools: &Path,
        settings: &AgentSettings,
    ) -> Result<Self> {
        Self::of(context, &OpenPolicy::open(context, policy, settings).await?, policy, tools, settings)
    }

    /// The agent of a policy that is loaded.
    ///
    /// # Errors
    /// If its template cannot write the tools, or there is no server.
    pub fn of(
        context: &Context,
        open: &OpenPolicy,
        policy: &Input,
        tools: &Path,
        settings: &AgentSettings,
    ) -> Result<Self> {
        let (agents, pools) = prepare(context, (policy, &open.folder), tools, &[], (settings, ""))?;
        Ok(Self { agent: agents.all, tools: data::read(tools)?, sampler: open.model.sampler.clone(), pools })
    }

    /// Closes the sessions and frees the policy's memory. Waits for the conversations that are still open.
    pub async fn close(self) {
        self.pools.close().await;
        self.sampler.close().await;
    }
}

/// A model behind an endpoint with its tools, and the servers that answer its calls.
pub struct OpenEndpoint {
    pub agent: Arc<EndpointAgent>,
    /// As the server lists them.
    pub tools: Vec<Tool>,
    pools: Pools,
}

impl OpenEndpoint {
    /// Reads the tools. Nothing is sent.
    ///
    /// # Errors
    /// If there is no server, or the endpoint's address or key is wrong.
    pub fn open(
        context: &Context,
        endpoint: &EndpointPolicy,
        tools: &Path,
        settings: &AgentSettings,
    ) -> Result<Self> {
        let client = (endpoint.client()?.into(), "");
        let (agents, pools) = prepare_endpoint(context, client, tools, &[], settings)?;
        Ok(Self { agent: agents.all, tools: data::read(tools)?, pools })
    }

    /// Closes the sessions.
    pub async fn close(self) {
        self.pools.close().await;
    }
}

/// Conversations with a model behind an endpoint.
pub struct EndpointSource<'a> {
    pub open: &'a OpenEndpoint,
    pub sampling: EndpointSampling,
}

impl<'a> ConversationSource for EndpointSource<'a> {
    type Prompt = String;
    type Dialogue = EndpointConversation;
    type Server = LazySessions<'a>;

    fn settings(&self) -> &AgentSettings {
        &self.open.agent.settings
    }

    fn prompt(&self, text: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    fn begin(&self, text: String) -> EndpointConversation {
        EndpointConversation::new(self.open.agent.clone(), &text, self.sampling)
    }

    fn server(&self) -> LazySessions<'a> {
        LazySessions { sessions: self.open.pools.visit(), exclusive: false, outage: None }
    }
}

/// Conversations with an agent that samples so. Each has sessions in a state as fresh as an episode's.
pub struct AgentSource<'a> {
    pub open: &'a OpenAgent,
    pub sampling: Sampling,
    pub seed: u64,
}

impl<'a> ConversationSource for AgentSource<'a> {
    type Prompt = PromptTokens;
    type Dialogue = Conversation<Sequence>;
    type Server = LazySessions<'a>;

    fn settings(&self) -> &AgentSettings {
        &self.open.agent.settings
    }

    fn prompt(&self, text: &str) -> Result<PromptTokens> {
        Ok(PromptTokens::new(&self.open.agent.chat, text)?)
    }

    fn begin(&self, prompt: PromptTokens) -> Self::Dialogue {
        let policy = self.open.sampler.open(prompt.pieces.clone(), self.sampling, self.seed);
        Conversation::new(self.open.agent.clone(), policy, prompt)
    }

    fn server(&self) -> LazySessions<'a> {
        LazySessions { sessions: self.open.pools.visit(), exclusive: false, outage: None }
    }
}
