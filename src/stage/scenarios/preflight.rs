//! Checks of scenarios before they are generated.

use std::{io::Read as _, path::Path};

use super::{
    error::ScenariosError,
    params::{Params, TaskSource},
    tries::{self, Tries},
    votes::{self, Votes},
};
use crate::{
    agent::AgentSettings,
    data::{self, Scenario, Tool},
    judge::{solved_idly, truth},
    llm,
    stage::{
        local_model::{self, LocalModelError},
        preflight::{ExpectedOutput, ExpectedScenarios, Preflight, PreflightContext},
        rollout::prompts,
    },
    tasks::{TaskError, checked, families::Families, file, split},
};

/// Most bytes of a task file that are checked.
const CHECKED_BYTES: u64 = 1 << 20;

/// Checks the declaration of families, or the tasks.
pub fn preflight(
    params: &Params,
    (tries, votes): (&Tries, &Votes),
    agent: Option<&AgentSettings>,
    context: &PreflightContext<'_>,
) -> Preflight {
    let mut preflight = Preflight::default();
    let is_local = context.inputs.contains_key(local_model::ROLE);
    match (is_local, params.asks()) {
        (true, true) => {
            let models = [("base_url", params.base_url.is_some()), ("model", params.model.is_some())];
            let ignored =
                [("api_key_env", params.api_key_env.is_some()), ("max_cost", params.max_cost.is_some())];
            local_model::check(&mut preflight, context, &models, &ignored, &[]);
        }
        (true, false) => preflight.note(local_model::ROLE, LocalModelError::Unused),
        (false, _) => {}
    }
    preflight.check("min_pass_rate", tries.check());
    match tries.tries {
        0 if context.inputs.contains_key(tries::ROLE) => {
            preflight.note(tries::ROLE, ScenariosError::NoTries);
        }
        0 => {}
        _ if (context.finished)("train").is_some() => {}
        _ => {
            if let Some(agent) = agent {
                prompts::check(context, tries::ROLE, agent, &mut preflight);
            }
        }
    }
    check_votes(votes, agent, context, &mut preflight);
    preflight.check("source", params.complete(is_local));
    if !is_local && params.asks_endpoint() && params.max_cost.is_some() && context.prices.is_none() {
        preflight.error("max_cost", ScenariosError::NoPrices);
    }
    match (params.source, &params.families, &params.file) {
        // Its outcome is not predicted, so a finished stage has nothing to report.
        (TaskSource::Grounded, Some(_), _) if (context.finished)("train").is_some() => {}
        (TaskSource::Grounded, Some(path), _) => _ = preflight.check("families", Families::load(path)),
        (TaskSource::File, _, Some(path)) => {
            let found = preflight.check("file", tasks(path, params.hold_out(context.seed))).flatten();
            if let Some((mut train, heldout)) = found {
                check_calls(path, train.iter().chain(&heldout), context, &mut preflight);
                let held_out = expected(&heldout, train.len());
                let open = train.iter().filter(|task| !truth::is_known(task)).count();
                let has_voter = votes.has_voter(context.inputs.contains_key(votes::ROLE));
                if has_voter && open == 0 && !train.is_empty() {
                    preflight.note("answers_votes", ScenariosError::NothingOpen);
                }
                let is_voted = open > 0 && has_voter;
                if is_voted && (context.finished)("train").is_none() {
                    let votes = votes.answers_votes;
                    preflight.remark("answers_votes", ScenariosError::Voting { tasks: open, votes });
                }
                if is_voted && open == train.len() {
                    let voted = preflight.with("train", ExpectedOutput::Voted);
                    return voted.with("dev", ExpectedOutput::Voted).with("heldout", held_out);
                }
                if is_voted || params.explores_for(&train) {
                    // What attempts agree on, or exploration finds, is not known.
                    return preflight.with("heldout", held_out);
                }
                let dev = split::dev(&mut train, &mut [], params.dev, context.seed);
                let is_solved = |task: &&Scenario| task.reference.is_some();
                let start: Vec<Scenario> = train.iter().filter(is_solved).cloned().collect();
                let preflight = preflight
                    .with("train", expected(&train, heldout.len()))
                    .with("dev", expected(&dev, train.len()))
                    .with("heldout", held_out);
                return match params.lessons() {
                    0 => preflight.with("start", expected(&start, heldout.len())),
                    // What exploration finds is not known.
                    _ => preflight,
                };
            }
        }
        _ => {}
    }
    preflight
}

/// Checks who votes on answers.
fn check_votes(
    votes: &Votes,
    agent: Option<&AgentSettings>,
    context: &PreflightContext<'_>,
    preflight: &mut Preflight,
) {
    let has_policy = context.inputs.contains_key(votes::ROLE);
    if let Some(endpoint) = &votes.answers_endpoint {
        if has_policy {
            preflight.error("answers_endpoint", ScenariosError::TwoVoters);
        }
        let key = endpoint.api_key_env.as_deref();
        preflight.check("answers_endpoint", llm::check_address(&endpoint.base_url, key));
        if let Some(Err(cause)) = key.map(llm::check_key) {
            preflight.unavailable("answers_endpoint", cause);
        }
    } else if let Some(agent) = agent.filter(|_| has_policy && (context.finished)("train").is_none()) {
        prompts::check(context, votes::ROLE, agent, preflight);
    }
}

/// Checks what state checks call against the tools that the server listed in an earlier run.
fn check_calls<'s>(
    path: &Path,
    tasks: impl Iterator<Item = &'s Scenario>,
    context: &PreflightContext<'_>,
    preflight: &mut Preflight,
) {
    let Some((table, is_whole)) = context.whole_tools() else { return };
    let Ok(tools) = data::read::<Tool>(table) else { return };
    let tasks: Vec<&Scenario> = tasks.collect();
    match checked::check(&file::name(path), &tasks, &tools) {
        Err(wrong) if is_whole => preflight.error("file", wrong),
        // The server may list it, although the agent has it not.
        Err(wrong) => preflight.note("file", wrong),
        Ok(()) => {}
    }
}

fn expected(scenarios: &[Scenario], others: usize) -> ExpectedOutput {
    ExpectedOutput::Scenarios(ExpectedScenarios {
        texts: scenarios.iter().map(|scenario| scenario.task.clone()).collect(),
        answered: scenarios.iter().filter(|scenario| truth::is_known(scenario)).count(),
        solved: scenarios.iter().filter(|scenario| scenario.reference.is_some()).count(),
        idle: solved_idly(scenarios),
        others,
    })
}

/// All tasks; none if there are more than are checked.
fn tasks(path: &Path, hold_out: file::HoldOut) -> Result<Option<file::Tasks>, TaskError> {
    let reading = |source| TaskError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(reading)?;
    if file.metadata().map_err(reading)?.len() <= CHECKED_BYTES {
        return file::load(path, hold_out).map(Some);
    }
    if file::is_parquet(path) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(CHECKED_BYTES).read_to_end(&mut bytes).map_err(reading)?;
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    let text = String::from_utf8_lossy(&bytes);
    // A single array is read completely or not at all.
    if !text.is_empty() && !text.trim_start_matches('\u{feff}').trim_start().starts_with('[') {
        file::parse(&text, &file::name(path), hold_out)?;
    }
    Ok(None)
}
