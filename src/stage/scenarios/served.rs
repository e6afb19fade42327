//! Question families that the servers themselves state, each in the resource [`FAMILIES_URI`].
//!
//! With several servers, a task is about one of them, and the agent gets the tools of that server alone. Some servers are held
//! out whole: no task about them is trained on (split `unseen_servers`).

use std::collections::BTreeSet;

use tokio_util::sync::CancellationToken;

use super::{
    candidate::scenario_id,
    error::ScenarioError,
    families::Families,
    grounded::{self, Grounded, QuestionCounts, evenly},
    live::Live,
};
use crate::{
    data::{Scenario, ServerName, Tool, folded},
    error::{At, Result},
    hash::Encoder,
    mcp::{FAMILIES_URI, Servers},
    progress::Observer,
};

/// The families of a server.
pub struct Served {
    /// `None` if it is the only server, or if the families are about all servers.
    pub server: Option<String>,
    pub families: Families,
}

/// The split of the tasks about servers that are held out.
pub const SPLIT: &str = "unseen_servers";

/// Reads the families of every server that states them.
///
/// # Errors
/// If none does, or one states families that are wrong; if a server is lost.
pub async fn read(servers: &Servers, live: &Live, tools: &[Tool]) -> Result<Vec<Served>> {
    let mut read = Vec::new();
    for (name, text) in live.resources(FAMILIES_URI).await? {
        let server = servers.single().is_none().then(|| name.clone());
        let Some(text) = text else { continue };
        let file =
            if name.is_empty() { FAMILIES_URI.to_owned() } else { format!("{FAMILIES_URI} of {name}") };
        let mut families = Families::parse(&text, &file)?;
        families.rename_tools(|own| {
            let wire_name = if name.is_empty() { own.to_owned() } else { format!("{name}/{own}") };
            tools.iter().find(|tool| tool.server_name == wire_name).map(|tool| tool.name.clone())
        });
        read.push(Served { server, families });
    }
    if read.is_empty() { Err(ScenarioError::NoFamiliesServed.into()) } else { Ok(read) }
}

/// The tools that the agent gets for a task about this server.
pub fn tools_of(tools: &[Tool], server: Option<&str>) -> Vec<Tool> {
    let Some(server) = server else { return tools.to_vec() };
    let is_of = |tool: &&Tool| tool.synthetic || tool.server() == Some(server);
    tools.iter().filter(is_of).cloned().collect()
}

/// How to make questions about several servers.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub quota: QuestionCounts,
    /// Share of the servers to hold out.
    pub share: f64,
    pub seed: u64,
}

/// Runs the reference expert on what every server states.
///
/// # Errors
/// As [`grounded::generate`], with the server's name.
pub async fn generate(
    served: &[Served],
    tools: &[Tool],
    live: &Live,
    plan: Plan,
    observer: &dyn Observer,
    cancel: &CancellationToken,
) -> Result<Grounded> {
    let names: Vec<&str> = served.iter().filter_map(|served| served.server.as_deref()).collect();
    let held = held_out(&names, plan.share, plan.seed);
    let QuestionCounts { per_family, per_split } = plan.quota;
    let trained = served.len() - held.len();
    let mut all = Grounded::default();
    let (mut splits, mut unseen) = (Vec::new(), Vec::new());
    for Served { server, families } in served {
        let is_held = server.as_deref().is_some_and(|name| held.contains(name));
        let per_split = per_split.div_ceil(if is_held { held.len() } else { trained }.max(1));
        let quota = QuestionCounts { per_family, per_split };
        let tools = tools_of(tools, server.as_deref());
        let made = grounded::generate(families, &tools, live, quota, plan.seed, observer, cancel).await;
        let made = match server {
            Some(name) => made.at(|| format!("server {name}"))?,
            None => made?,
        };
        let about = |mut scenario: Scenario| {
            if let Some(name) = server {
                scenario.family = format!("{name}/{}", scenario.family);
                let checks = scenario.checks.as_ref().map(|checks| checks.0.as_str());
                scenario.id =
                    scenario_id(&scenario.family, &scenario.task, scenario.answer.as_deref(), checks);
                scenario.server = Some(ServerName(name.clone()));
            }
            scenario
        };
        for (why, count) in made.dropped {
            *all.dropped.entry(why).or_default() += count;
        }
        all.refused.extend(made.refused);
        let (train, heldout) = (made.train.into_iter().map(about), made.heldout.into_iter().map(about));
        if is_held {
            let of_split = |mut scenario: Scenario| {
                SPLIT.clone_into(&mut scenario.split);
                scenario
            };
            unseen.push(heldout.chain(train).map(of_split).collect());
        } else {
            all.train.extend(train);
            splits.push(heldout.collect::<Vec<_>>());
        }
    }
    for split in ["unseen_entities", "unseen_phrasings", "unseen_families"] {
        let of_split = |scenarios: &Vec<Scenario>| {
            scenarios.iter().filter(|scenario| scenario.split == split).cloned().collect()
        };
        all.heldout.extend(evenly(splits.iter().map(of_split).collect(), plan.quota.per_split));
    }
    all.heldout.extend(evenly(unseen, plan.quota.per_split));
    // Two servers may be asked in the same words.
    let texts: BTreeSet<String> = all.heldout.iter().map(|scenario| folded(&scenario.task)).collect();
    all.train.retain(|scenario| !texts.contains(&folded(&scenario.task)));
    Ok(all)
}

/// The names of about this share of the servers: at least one if there are several and the share is not 0, never all.
fn held_out<'a>(names: &[&'a str], share: f64, seed: u64) -> BTreeSet<&'a str> {
    let draw = |name: &&str| Encoder::new("mcprl held-out servers v1").number(seed).text(name).finish();
    let mut order = names.to_vec();
    order.sort_by_cached_key(draw);
    let count = (share * names.len() as f64).ceil() as usize;
    order.truncate(count.min(names.len().saturating_sub(1)));
    order.into_iter().collect()
}
