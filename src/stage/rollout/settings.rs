//! What episodes are played with: `[agent]`, the tools of a task, and the server's sessions.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::PlayError;
use crate::{
    agent::{AgentSettings, Toolbox},
    chat::Chat,
    data::{self, Scenario, ServerName},
    engine::{Footprint, available},
    error::{At, Result},
    mcp::Pools,
    stage::{
        Context, Input, StageError, card::SYSTEM, memory::Load, policy::PolicyFolder,
        preflight::ExpectedPolicy, scenarios::served::tools_of, typed,
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

    /// The engine's memory for episodes of this policy. `episodes`: how many there are at most.
    pub fn footprint(&self, load: &Load<'_>, policy: &ExpectedPolicy, episodes: usize) -> Footprint {
        load.sampling(policy, self.concurrency.min(episodes), self.agent.max_episode_tokens)
    }
}

/// The tools of a task, and how conversations about it are written.
pub struct Setting {
    pub chat: Chat,
    pub toolbox: Toolbox,
}

pub struct Settings {
    /// All tools.
    pub all: Setting,
    /// Those of the servers that scenarios name.
    by_server: BTreeMap<String, Setting>,
}

impl Settings {
    pub fn of(&self, scenario: &Scenario) -> &Setting {
        let own = scenario.server.as_ref().and_then(|ServerName(name)| self.by_server.get(name));
        own.unwrap_or(&self.all)
    }
}

/// How conversations about these scenarios are written, and the server's sessions.
pub fn prepare(
    context: &Context,
    (policy, folder): (&Input, &PolicyFolder),
    tools: &Path,
    scenarios: &[Scenario],
    agent: &AgentSettings,
) -> Result<(Settings, Pools)> {
    let servers = context.servers.as_ref().ok_or(PlayError::NoServer)?;
    let pools = Pools::new(servers);
    let listed: Vec<data::Tool> = data::read(tools)?;
    let setting = |listed: &[data::Tool]| -> Result<Setting> {
        let toolbox = Toolbox::of_table(tools, listed)?.coercing(|wire_name| {
            servers.of_tool(wire_name).is_some_and(|spec| spec.quirks.coerce_arguments)
        });
        let system = agent.system_prompt(context.text(SYSTEM), toolbox.functions())?;
        let chat = context
            .models
            .vocabulary(folder.model_digest(), folder.model())
            .and_then(|vocabulary| Chat::load_over(vocabulary, folder.model(), agent.thinking))
            .map(|chat| chat.with_reading(agent.reading()))
            .and_then(|chat| chat.with_history(agent.history_thinking))
            .and_then(|chat| chat.with_tools(&system, toolbox.functions()))
            .at(|| format!("policy \"{}\"", policy.name))?;
        Ok(Setting { chat, toolbox })
    };
    let mut settings = Settings { all: setting(&listed)?, by_server: BTreeMap::new() };
    for scenario in scenarios {
        let Some(ServerName(name)) = &scenario.server else { continue };
        if settings.by_server.contains_key(name) {
            continue;
        }
        if !servers.names().any(|known| known == name) {
            let (scenario, server) = (scenario.id.clone(), name.clone());
            return Err(PlayError::UnknownServer { scenario, server }.into());
        }
        settings.by_server.insert(name.clone(), setting(&tools_of(&listed, Some(name)))?);
    }
    if let Some(notice) = settings.all.chat.notice() {
        // By name if a stage has several policies.
        let several = context.inputs.values().any(|inputs| inputs.len() > 1);
        let of = if several { format!("policy \"{}\": ", policy.name) } else { String::new() };
        context.observer.note(&format!("{of}{notice}"));
    }
    let pools = pools.expecting(&listed).within_memory(available().map(|bytes| bytes / 2));
    Ok((settings, pools))
}
