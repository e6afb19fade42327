//! What episodes are played with: `[agent]`, the tools of a task, and the server's sessions.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::PlayError;
use crate::{
    agent::{Agent, AgentSettings, EndpointAgent, Toolbox},
    chat::{Chat, ChatError},
    data::{self, Scenario, ServerName},
    engine::{Footprint, available},
    error::{At, Result},
    llm::Client,
    mcp::Pools,
    model::ModelConfig,
    offered,
    stage::{
        Context, Input, StageError, card::SYSTEM, memory::Load, policy::PolicyFolder,
        preflight::ExpectedPolicy, typed,
    },
};

/// How many episodes are played at once, and how many may be lost; parameters of every stage that plays.
#[derive(Debug, Deserialize)]
pub struct PlayParams {
    concurrency: usize,
    max_lost_share: f64,
}

/// How a stage plays.
#[derive(Debug, Clone, PartialEq)]
pub struct PlaySettings {
    pub agent: AgentSettings,
    /// Episodes under way at once.
    pub concurrency: usize,
    /// Largest share of episodes that may be lost to server failures.
    pub max_lost_share: f64,
}

impl PlaySettings {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        let PlayParams { concurrency, max_lost_share } = typed(params)?;
        Ok(Self { agent: typed(params)?, concurrency, max_lost_share })
    }

    /// For calls that are made again: the limits of an episode are for policies.
    pub fn without_limits(mut self) -> Self {
        (self.agent.max_turns, self.agent.max_calls) = (u32::MAX, u32::MAX);
        (self.agent.max_turn_tokens, self.agent.max_episode_tokens) = (usize::MAX, usize::MAX);
        self
    }

    /// The engine's memory for episodes of this policy. `episodes`: how many there are at most.
    pub fn footprint(&self, load: &Load<'_>, policy: &ExpectedPolicy, episodes: usize) -> Footprint {
        load.sampling(policy, self.concurrency.min(episodes), self.agent.max_episode_tokens)
    }
}

/// The agent of each task.
pub struct Agents<A = Agent> {
    /// With all tools.
    pub all: Arc<A>,
    /// With those of the servers that scenarios name.
    by_server: BTreeMap<String, Arc<A>>,
}

impl<A> Agents<A> {
    /// With the tools of this scenario, or all.
    pub fn of(&self, scenario: Option<&Scenario>) -> &Arc<A> {
        let server = scenario.and_then(|scenario| scenario.server.as_ref());
        let own = server.and_then(|ServerName(name)| self.by_server.get(name));
        own.unwrap_or(&self.all)
    }
}

/// The conversation format of a policy, without system prompt and tools.
pub(super) fn chat(
    context: &Context,
    folder: &PolicyFolder,
    settings: &AgentSettings,
) -> Result<Chat, ChatError> {
    let vocabulary = context.models.vocabulary(folder.model_digest(), folder.model())?;
    Chat::load_over(vocabulary, folder.model(), settings.thinking)?
        .with_reading(settings.reading())
        .with_history(settings.history_thinking)
}

/// The agents of a policy for these scenarios, and the server's sessions. `behind` stands behind its system prompt.
pub fn prepare(
    context: &Context,
    (policy, folder): (&Input, &PolicyFolder),
    tools: &Path,
    scenarios: &[Scenario],
    (settings, behind): (&AgentSettings, &str),
) -> Result<(Agents, Pools)> {
    let (agents, pools) = agents(context, tools, scenarios, settings, |toolbox, system| {
        let chat = chat(context, folder, settings)
            .and_then(|chat| chat.with_tools(&joined(&system, behind), toolbox.functions()))
            .at(|| format!("policy \"{}\"", policy.name))?;
        Ok(Agent { chat, toolbox, settings: settings.clone() })
    })?;
    if let Some(notice) = agents.all.chat.notice() {
        // By name if a stage has several policies.
        let several = context.inputs.values().any(|inputs| inputs.len() > 1);
        let of = if several { format!("policy \"{}\": ", policy.name) } else { String::new() };
        context.observer.note(&format!("{of}{notice}"));
    }
    Ok((agents, pools))
}

/// The same for a model behind an endpoint.
pub fn prepare_endpoint(
    context: &Context,
    (client, examples): (Arc<Client>, &str),
    tools: &Path,
    scenarios: &[Scenario],
    settings: &AgentSettings,
) -> Result<(Agents<EndpointAgent>, Pools)> {
    agents(context, tools, scenarios, settings, |toolbox, system| {
        let system = joined(&system, examples);
        Ok(EndpointAgent { client: client.clone(), system, toolbox, settings: settings.clone() })
    })
}

/// A system prompt with what stands behind it.
fn joined(system: &str, behind: &str) -> String {
    format!("{system}{behind}").trim_start().to_owned()
}

/// The position of the first of these texts that, behind a policy's system prompt, leaves half of an episode's room behind the
/// prompt of all tools. None if no text does.
pub fn fitting(
    context: &Context,
    policy: &Input,
    tools: &Path,
    settings: &AgentSettings,
    texts: &[String],
) -> Result<Option<usize>> {
    let folder = PolicyFolder::open(policy, context)?;
    let longest = settings.max_episode_tokens.min(ModelConfig::load(folder.model())?.context);
    let toolbox = Toolbox::of_table(tools, &data::read::<data::Tool>(tools)?)?;
    let system = settings.system_prompt(context.text(SYSTEM), toolbox.functions())?;
    let named = || format!("policy \"{}\"", policy.name);
    let tokens = |behind: &str| -> Result<usize> {
        let chat = chat(context, &folder, settings)
            .and_then(|chat| chat.with_tools(&joined(&system, behind), toolbox.functions()));
        let prompt = chat.and_then(|chat| chat.prompt("a")).at(named)?;
        Ok(prompt.shared.len() + prompt.task.len())
    };
    let plain = tokens("")?;
    for (place, text) in texts.iter().enumerate() {
        if tokens(text)?.saturating_sub(plain) <= longest.saturating_sub(plain) / 2 {
            return Ok(Some(place));
        }
    }
    Ok(None)
}

/// Agents with the tools of these scenarios; `agent` makes one of a toolbox and a system prompt.
fn agents<A>(
    context: &Context,
    tools: &Path,
    scenarios: &[Scenario],
    settings: &AgentSettings,
    agent: impl Fn(Toolbox, String) -> Result<A>,
) -> Result<(Agents<A>, Pools)> {
    let servers = context.servers.as_ref().ok_or(PlayError::NoServer)?;
    let pools = Pools::new(servers);
    let listed: Vec<data::Tool> = data::read(tools)?;
    let agent = |listed: &[data::Tool]| -> Result<Arc<A>> {
        let toolbox = Toolbox::of_table(tools, listed)?.coercing(|wire_name| {
            servers.of_tool(wire_name).is_some_and(|spec| spec.quirks.coerce_arguments)
        });
        let system = settings.system_prompt(context.text(SYSTEM), toolbox.functions())?;
        Ok(Arc::new(agent(toolbox, system)?))
    };
    let mut agents = Agents { all: agent(&listed)?, by_server: BTreeMap::new() };
    for scenario in scenarios {
        let Some(ServerName(name)) = &scenario.server else { continue };
        if agents.by_server.contains_key(name) {
            continue;
        }
        if !servers.names().any(|known| known == name) {
            let (scenario, server) = (scenario.id.clone(), name.clone());
            return Err(PlayError::UnknownServer { scenario, server }.into());
        }
        agents.by_server.insert(name.clone(), agent(&data::Tool::of_server(&listed, name))?);
    }
    let expected: Vec<_> = listed.iter().map(|row| offered::tool(&row.as_listed())).collect();
    let pools = pools.expecting(&expected).within_memory(available().map(|bytes| bytes / 2));
    Ok((agents, pools))
}
