//! Checks before any episode is played that prompts, keys and values have room.
//!
//! A prompt is system text, tools and task. Unknown parts are left out, so that its length is never
//! overestimated. The tokenizer is read only if the text is long enough to possibly not fit.

use std::{collections::BTreeSet, path::Path};

use super::error::PlayError;
use crate::{
    agent::{AgentSettings, Toolbox},
    chat::Chat,
    data::{self, Tool},
    program::find_program,
    stage::{
        card::SYSTEM,
        preflight::{ExpectedOutput, ExpectedPolicy, ExpectedScenarios, Preflight, PreflightContext},
    },
};

/// Upper bound in practice for a template's own text, in bytes. A token is at least one byte.
const TEMPLATE: usize = 4096;

/// Checks the episodes that each policy of a role will play.
pub fn check(
    context: &PreflightContext<'_>,
    role: &'static str,
    agent: &AgentSettings,
    preflight: &mut Preflight,
) {
    if let Some(program) = agent.harness.first() {
        if let Err(source) = find_program(program, None) {
            let command = agent.harness.join(" ");
            preflight.error("harness", PlayError::NoHarness { command, source });
        }
        // Its prompts are its own.
        return;
    }
    for (_, expected) in context.inputs.get(role).into_iter().flatten() {
        if let ExpectedOutput::Policy(policy) = expected {
            check_policy(context, (role, policy), agent, preflight);
        }
    }
}

fn check_policy(
    context: &PreflightContext<'_>,
    (role, policy): (&'static str, &ExpectedPolicy),
    agent: &AgentSettings,
    preflight: &mut Preflight,
) {
    let longest = agent.max_episode_tokens.min(policy.config.context);
    let about = if agent.max_episode_tokens <= policy.config.context { "max_episode_tokens" } else { role };
    let format = context.engine.format(policy.stored);
    let fits_cache = |tokens| context.engine.check_conversation(&policy.config, format, tokens);
    let fits = |prompt: usize| prompt < longest && fits_cache(prompt + 1).is_ok();
    let Prompts { shortest, without_room } =
        prompts(context, policy, agent, (longest, &fits)).unwrap_or(Prompts { shortest: 1, without_room: 0 });
    if shortest >= longest {
        preflight.error(about, PlayError::NoRoom { tokens: shortest });
        return;
    }
    if without_room > 0 {
        let all = context.scenarios().map_or(0, ExpectedScenarios::count);
        preflight.note(about, PlayError::LittleRoom { without_room, all, room: longest });
    }
    let place = "engine.kv_cache_mib";
    match (fits_cache(shortest + 1), fits_cache(longest)) {
        (Err(cause), _) => preflight.unavailable(place, cause),
        (Ok(()), Err(cause)) => preflight.note(place, cause),
        (Ok(()), Ok(())) => {}
    }
}

/// Prompts of the tasks, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Prompts {
    /// Tokens of the shortest prompt, or a lower bound.
    shortest: usize,
    /// Number of prompts that leave no room for a sampled token.
    without_room: usize,
}

/// The tools of the server with the shortest descriptions, of several: a task may be about that server alone.
fn fewest_tools(table: &Path) -> Option<Toolbox> {
    let tools: Vec<Tool> = data::read(table).ok()?;
    let servers: BTreeSet<&str> = tools.iter().filter_map(Tool::server).collect();
    let of_servers = servers.into_iter().map(|name| Tool::of_server(&tools, name));
    let length = |tools: &Vec<Tool>| tools.iter().map(|tool| tool.function.len()).sum::<usize>();
    let fewest = of_servers.min_by_key(length).unwrap_or(tools);
    Toolbox::of_table(table, &fewest).ok()
}

/// None if all fit, or too little is known. `room` is the exclusive limit in tokens, and a test of whether a
/// prompt fits.
fn prompts(
    context: &PreflightContext<'_>,
    policy: &ExpectedPolicy,
    agent: &AgentSettings,
    (room, fits): (usize, &dyn Fn(usize) -> bool),
) -> Option<Prompts> {
    let folder = policy.folder.as_deref()?;
    let toolbox = context.tools().and_then(fewest_tools);
    let functions = toolbox.as_ref().map_or(&[][..], Toolbox::functions);
    let built_in = context.card.texts.get(SYSTEM).map_or("", String::as_str);
    let system = agent.system_prompt(built_in, functions).ok()?;
    let tasks = context.scenarios().map_or(&[][..], |tasks| &tasks.texts);
    let tool_text: usize = functions.iter().map(|function| function.to_string().len()).sum();
    let task = tasks.iter().map(String::len).max().unwrap_or(0);
    if fits(TEMPLATE + system.len() + tool_text + task) {
        return None;
    }
    let vocabulary = context.vocabulary(folder).ok()?;
    let chat =
        Chat::load_over(vocabulary, folder, agent.thinking).ok()?.with_tools(&system, functions).ok()?;
    let tokens = |task: &str| chat.prompt(task).map_or(0, |prompt| prompt.shared.len() + prompt.task.len());
    let least = tokens("a");
    let lengths: Vec<usize> =
        tasks.iter().map(|task| if fits(least + task.len()) { least } else { tokens(task) }).collect();
    Some(Prompts {
        shortest: lengths.iter().copied().min().unwrap_or(least),
        without_room: lengths.iter().filter(|tokens| **tokens >= room).count(),
    })
}
