//! Many episodes at once: one policy, one server, a list of attempts.
//!
//! Each finished episode is recorded, so that a stage that was killed plays only what is missing. What comes back
//! depends on the attempts alone: not on how many are played at once, nor on which of them finishes first.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    agent::{End, Episode, Limits, Opening, Toolbox, episode},
    chat::{Chat, HistoryThinking, Thinking},
    data::{self, Scenario, Trajectory},
    engine::{Sampler, Sampling},
    error::{At, Diagnostic, Interrupted, Result},
    hash::{Digest, Encoder},
    judge::truth,
    mcp::Pool,
    model::Adapter,
    spent::Spent,
    stage::{Context, Input, policy::PolicyFolder},
};

/// Limits of an episode as cards name them; part of the parameters of every stage that plays.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Budget {
    pub max_turns: u32,
    /// Tokens sampled in one turn.
    pub max_turn_tokens: usize,
    /// Tokens of an episode, prompt and results included.
    pub max_tokens: usize,
    /// Calls that reach the server.
    pub max_calls: u32,
    /// Tokens of one result that are kept.
    pub result_tokens: usize,
    pub episode_timeout_s: f64,
    /// Episodes under way at once.
    pub concurrency: usize,
    /// What the chat template is told about thinking.
    #[serde(default)]
    pub thinking: Thinking,
    /// What becomes of the reasoning of earlier turns.
    #[serde(default)]
    pub history_thinking: HistoryThinking,
}

impl Budget {
    fn limits(&self) -> Limits {
        Limits {
            turns: self.max_turns,
            turn_tokens: self.max_turn_tokens,
            tokens: self.max_tokens,
            calls: self.max_calls,
            result_tokens: self.result_tokens,
            // A time beyond what a duration can hold is no limit.
            time: Duration::try_from_secs_f64(self.episode_timeout_s).unwrap_or(Duration::MAX),
        }
    }
}

/// One episode to be played.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    pub scenario: &'a Scenario,
    /// Index within its group.
    pub sample: u32,
    pub seed: u64,
    pub sampling: Sampling,
}

impl Attempt<'_> {
    /// The id of the trajectory.
    fn id(&self, policy: &Digest) -> String {
        let Sampling { temperature, top_p, top_k, min_p } = self.sampling;
        Encoder::new("mcprl trajectory v1")
            .digest(policy)
            .text(&self.scenario.id)
            .number(self.sample.into())
            .number(self.seed)
            .json(&json!([temperature, top_p, top_k, min_p]))
            .finish()
            .to_string()
    }

    /// The name of its row: the trajectory's id, and the task, for which a table of scenarios may have had the same id.
    fn row(&self, policy: &Digest) -> String {
        format!("{} {}", self.id(policy), Digest::of(self.scenario.task.as_bytes()).short())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    #[error("there is no server to play on")]
    NoServer,
    #[error("the system prompt cannot be rendered")]
    Prompt(#[source] minijinja::Error),
    #[error("loading the policy was cut short: {reason}")]
    Load { reason: String },
    #[error("no episode has room to say a word: its prompt alone takes {tokens} tokens or more")]
    NoRoom { tokens: usize },
    #[error(
        "the prompts of {without_room} of the {all} scenarios take {room} tokens or more, which leaves no room to say a word"
    )]
    LittleRoom { without_room: usize, all: usize, room: usize },
}

/// Where no episode had room to sample a single token: tokens of the shortest prompt.
fn shortest_without_room(played: &[Trajectory]) -> Option<usize> {
    let roomless = |trajectory: &Trajectory| {
        trajectory.end == End::OutOfTokens.name() && !trajectory.sampled.contains(&true)
    };
    let shortest = played.iter().map(|trajectory| trajectory.tokens.len()).min();
    shortest.filter(|_| played.iter().all(roomless))
}

impl Diagnostic for PlayError {
    fn code(&self) -> &'static str {
        match self {
            Self::NoServer => "play::no_server",
            Self::Prompt(_) => "play::prompt",
            Self::Load { .. } => "play::load",
            Self::NoRoom { .. } => "play::no_room",
            Self::LittleRoom { .. } => "play::little_room",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NoServer => Some("add a [server] table with a `command` or a `url`".into()),
            Self::Prompt(_) => Some("system.jinja sees `tools`, the list of function schemas".into()),
            Self::Load { .. } => None,
            Self::NoRoom { .. } | Self::LittleRoom { .. } => Some(
                "raise max_tokens of the stage, up to the model's context; fewer tools (`allow` of the stage that lists \
                 them) make a shorter prompt"
                    .into(),
            ),
        }
    }
}

/// A policy and a server, ready to play.
pub struct Player {
    policy: Digest,
    sampler: Sampler,
    chat: Chat,
    toolbox: Toolbox,
    pool: Pool,
    budget: Budget,
}

impl Player {
    /// Loads the policy and reads the tools. The server is not called before the first episode.
    pub async fn open(context: &Context, policy: &Input, tools: &Path, budget: Budget) -> Result<Self> {
        let server = context.server.clone().ok_or(PlayError::NoServer)?;
        let folder = PolicyFolder::open(policy, context)?;
        let toolbox = Toolbox::load(tools)?;
        let system =
            system_prompt(context.files.get("system").map_or("", String::as_str), toolbox.functions())?;
        let chat = context
            .held
            .vocabulary(folder.model_digest(), folder.model())
            .and_then(|vocabulary| Chat::load_over(vocabulary, folder.model(), budget.thinking))
            .and_then(|chat| chat.with_history(budget.history_thinking))
            .and_then(|chat| chat.brief(&system, toolbox.functions()))
            .at(|| format!("policy \"{}\"", policy.name))?;
        if let Some(notice) = chat.notice() {
            // By its name where a stage acts with several.
            let several = context.inputs.values().any(|inputs| inputs.len() > 1);
            let of = if several { format!("policy \"{}\": ", policy.name) } else { String::new() };
            context.observer.note(&format!("{of}{notice}"));
        }
        let (engine, held) = (context.engine.clone(), context.held.clone());
        let beside = folder.beside("rollout", context).at(|| format!("policy \"{}\"", policy.name))?;
        let load = move || -> Result<Sampler> {
            let (mut decoder, places) = folder.seat(&held, &engine, beside)?;
            if folder.base.is_some() {
                Adapter::load(&mut decoder, &folder.folder)?;
            }
            Ok(Sampler::seated(decoder, &places, &engine)?)
        };
        let sampler = tokio::task::spawn_blocking(load)
            .await
            .map_err(|error| PlayError::Load { reason: error.to_string() })?
            .at(|| format!("policy \"{}\"", policy.name))?;
        Ok(Self { policy: policy.digest, sampler, chat, toolbox, pool: Pool::new(server), budget })
    }

    /// Plays the attempts, those played earlier excepted; trajectories come back in the attempts' order.
    ///
    /// Advances the observer by one for every attempt.
    pub async fn play(&self, context: &Context, attempts: &[Attempt<'_>]) -> Result<Vec<Trajectory>> {
        let mut known = known(context, &self.policy, attempts)?;
        let mut scoreboard = Scoreboard::new(self.sampler.sampled_tokens());
        let computed = || {
            let usage = self.sampler.usage();
            [&usage.computed, &usage.recomputed].map(|count| count.load(Ordering::Relaxed))
        };
        let [computed_before, recomputed_before] = computed();
        let mut tool_calls = 0;
        let mut played: Vec<Option<Trajectory>> = Vec::with_capacity(attempts.len());
        for attempt in attempts {
            let trajectory = known.remove(&attempt.row(&self.policy));
            if let Some(trajectory) = &trajectory {
                scoreboard.count(attempt, trajectory);
                context.observer.skip(1);
            }
            played.push(trajectory);
        }
        drop(known);
        let missing: Vec<usize> = (0..attempts.len()).filter(|index| played[*index].is_none()).collect();
        let openings = self.openings(missing.iter().map(|index| attempts[*index].scenario))?;

        // Collected, not mapped lazily: the compiler cannot see that a stream of a borrowing closure may be sent.
        let mut episodes = Vec::with_capacity(missing.len());
        for index in missing {
            let attempt = &attempts[index];
            let trajectory = self.attempt(context, attempt, &openings[attempt.scenario.id.as_str()]);
            episodes.push(trajectory.map(move |trajectory| (index, trajectory)));
        }
        let mut episodes = futures::stream::iter(episodes).buffer_unordered(self.budget.concurrency.max(1));
        loop {
            let next = tokio::select! {
                biased;
                () = context.cancel.cancelled() => return Err(Interrupted.into()),
                next = episodes.next() => next,
            };
            let Some((index, trajectory)) = next else { break };
            let trajectory = trajectory?;
            tool_calls += u64::from(trajectory.calls);
            if let Ok(row) = serde_json::to_vec(&trajectory) {
                context.rows.record(&attempts[index].row(&self.policy), &row)?;
            }
            scoreboard.count(&attempts[index], &trajectory);
            context.observer.advance(1);
            context.observer.status(&scoreboard.line(self.sampler.sampled_tokens()));
            played[index] = Some(trajectory);
        }
        drop(episodes);
        let [computed, recomputed] = computed();
        context.meter.add(Spent {
            sampled_tokens: self.sampler.sampled_tokens() - scoreboard.before,
            computed_tokens: computed - computed_before,
            recomputed_tokens: recomputed - recomputed_before,
            tool_calls,
            ..Spent::default()
        });
        let played: Vec<Trajectory> = played.into_iter().flatten().collect();
        match shortest_without_room(&played) {
            Some(tokens) => Err(PlayError::NoRoom { tokens }.into()),
            None => Ok(played),
        }
    }

    /// Ends the server's sessions and the policy's threads: what they held in memory is free for the next stage.
    pub async fn close(self) {
        self.pool.close().await;
        self.sampler.close().await;
    }

    fn openings<'a>(
        &self,
        scenarios: impl Iterator<Item = &'a Scenario>,
    ) -> Result<BTreeMap<&'a str, Opening>> {
        let distinct: BTreeMap<&str, &Scenario> =
            scenarios.map(|scenario| (scenario.id.as_str(), scenario)).collect();
        let opening = |(id, scenario): (&'a str, &Scenario)| {
            let opening = Opening::new(&self.chat, &scenario.task).at(|| format!("scenario {id}"))?;
            Ok((id, opening))
        };
        distinct.into_iter().map(opening).collect()
    }

    async fn attempt(
        &self,
        context: &Context,
        attempt: &Attempt<'_>,
        opening: &Opening,
    ) -> Result<Trajectory> {
        let mut episode = self.episode(attempt, opening).await?;
        if episode.end == End::ServerDown {
            // A server that crashed gets one more chance, with an episode that knows nothing of the first.
            episode = self.episode(attempt, opening).await?;
        }
        if let Some(lost) = &episode.lost {
            context.observer.note(&format!("episode of scenario {}: {lost}", attempt.scenario.id));
        }
        Ok(trajectory(episode, attempt, &self.policy))
    }

    async fn episode(&self, attempt: &Attempt<'_>, opening: &Opening) -> Result<Episode> {
        let session = self.pool.session().await?;
        let mut sequence = self.sampler.open(opening.pieces.clone(), attempt.sampling, attempt.seed);
        let limits = self.budget.limits();
        Ok(episode(&mut sequence, &*session, &self.chat, &self.toolbox, opening, &limits).await?)
    }
}

/// Attempts that were played before, by the names of their rows: by this stage, interrupted, or for results that differ
/// from this one in which episodes there are.
fn known(
    context: &Context,
    policy: &Digest,
    attempts: &[Attempt<'_>],
) -> Result<BTreeMap<String, Trajectory>> {
    let mut recorded = context.rows.finished()?;
    let mut known = BTreeMap::new();
    let mut wanted = BTreeMap::new();
    for attempt in attempts {
        let name = attempt.row(policy);
        // A row that does not parse is played again.
        match recorded.remove(&name).and_then(|row| serde_json::from_slice(&row).ok()) {
            Some(trajectory) => _ = known.insert(name, as_of(attempt, trajectory)),
            None => _ = wanted.insert(name, attempt),
        }
    }
    drop(recorded);
    let mut taken = 0;
    for earlier in context.rows.earlier()? {
        if !wanted.keys().any(|name| earlier.names.contains(name)) {
            continue;
        }
        // One that cannot be read is none.
        let rows: Vec<Trajectory> = data::read(&earlier.path).unwrap_or_default();
        let mut rows: BTreeMap<String, Trajectory> =
            rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        for name in &earlier.names {
            let Some(attempt) = wanted.get(name) else { continue };
            let Some(trajectory) = rows.remove(&attempt.id(policy)) else { continue };
            context.rows.record(name, b"")?;
            known.insert(name.clone(), as_of(attempt, trajectory));
            wanted.remove(name);
            taken += 1;
        }
    }
    if taken > 0 {
        context.observer.note(&format!("{taken} episodes of earlier results are taken over"));
    }
    Ok(known)
}

/// The scenario may have come to stand in another split.
fn as_of(attempt: &Attempt<'_>, trajectory: Trajectory) -> Trajectory {
    let Scenario { family, split, .. } = attempt.scenario.clone();
    Trajectory { family, split, ..trajectory }
}

pub(super) fn system_prompt(template: &str, tools: &[Value]) -> Result<String> {
    let environment = minijinja::Environment::new();
    let context = minijinja::Value::from(minijinja::value::Serde(json!({"tools": tools})));
    let text = environment.render_str(template, context).map_err(PlayError::Prompt)?;
    Ok(text.trim().to_owned())
}

fn trajectory(episode: Episode, attempt: &Attempt<'_>, policy: &Digest) -> Trajectory {
    let scenario = attempt.scenario;
    let row_starts = episode.row_starts.iter().map(|start| *start as u32).collect();
    Trajectory {
        id: attempt.id(policy),
        scenario_id: scenario.id.clone(),
        family: scenario.family.clone(),
        split: scenario.split.clone(),
        sample: attempt.sample,
        policy: policy.to_string(),
        seed: attempt.seed,
        messages: Value::from(episode.messages).to_string(),
        tokens: episode.tokens,
        sampled: episode.sampled,
        logprobs: episode.logprobs,
        turns: episode.turns,
        calls: episode.tools.len() as u32,
        tools: episode.tools,
        tool_errors: episode.tool_errors,
        parse_failures: episode.parse_failures,
        end: episode.end.to_string(),
        answer: episode.answer,
        row_starts: Some(row_starts).filter(|starts: &Vec<u32>| !starts.is_empty()),
    }
}

/// What a person sees while episodes are played.
struct Scoreboard {
    started: Instant,
    /// Tokens the sampler had drawn before.
    before: u64,
    known: usize,
    right: usize,
}

impl Scoreboard {
    fn new(before: u64) -> Self {
        Self { started: Instant::now(), before, known: 0, right: 0 }
    }

    fn count(&mut self, attempt: &Attempt<'_>, trajectory: &Trajectory) {
        if let Some(right) = truth::correct(attempt.scenario, trajectory.answer.as_deref()) {
            self.known += 1;
            self.right += usize::from(right);
        }
    }

    fn line(&self, sampled: u64) -> String {
        let rate = (sampled - self.before) as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        let rate =
            if rate < 1e3 { format!("{rate:.0} tokens/s") } else { format!("{:.1}k tokens/s", rate / 1e3) };
        match self.known {
            0 => rate,
            known => format!("success {:.2} · {rate}", self.right as f64 / known as f64),
        }
    }
}
