//! Plays many episodes concurrently: one policy, one server, a list of rollouts.
//!
//! Each finished episode is recorded, so that a stage that was killed plays only the missing ones. Results
//! depend only on the rollouts, not on concurrency or the order of completion.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::Path,
    sync::atomic::Ordering,
};

mod retries;

use retries::SessionUse;

use super::{
    error::PlayError,
    harness::Harness,
    records::{RolloutSpec, StateResults, known, trajectory},
    reference,
    scoreboard::Scoreboard,
    settings::{Agents, PlaySettings, chat, prepare, prepare_endpoint},
};
use crate::{
    agent::{
        EndpointAgent, EndpointSampling, Episode, LazySessions, LostCall, Outage, PromptTokens, Repeats,
        STALL, Script, Toolbox, Watched, endpoint_episode, episode,
    },
    chat::ToolCall,
    data::{Checks, End, REFERENCE, Scenario, StateCheck, Trajectory, labelled},
    engine::Sampler,
    error::{At, Diagnostic, Interrupted, Result},
    hash::{Digest, Encoder},
    judge::truth,
    llm::{Client, LanguageModel as _},
    mcp::{McpError, Pools},
    model::ModelConfig,
    openai::Model,
    stage::{
        Context, Input,
        memory::Load,
        policy::{self, PolicyFolder},
    },
    usage::Usage,
};

/// If no episode had room to sample a single token: tokens of the shortest prompt.
fn shortest_without_room(played: &[Option<Trajectory>]) -> Option<usize> {
    let roomless = |trajectory: &Trajectory| {
        trajectory.end() == Some(End::OutOfTokens) && !trajectory.sampled.contains(&true)
    };
    let shortest = played.iter().flatten().map(|trajectory| trajectory.tokens.len()).min();
    shortest.filter(|_| played.iter().flatten().all(roomless))
}

/// Who says the assistant's turns.
pub(super) enum Actor {
    Policy(Sampler, Agents),
    /// A policy that a program of the user asks.
    Harness(Box<Harness>, Agents),
    /// The reference solutions of the scenarios.
    Reference(Agents),
    /// A model behind an endpoint.
    Endpoint(Agents<EndpointAgent>),
}

impl Actor {
    fn sampler(&self) -> Option<&Sampler> {
        match self {
            Self::Policy(sampler, _) => Some(sampler),
            Self::Harness(harness, _) => Some(&harness.model.sampler),
            Self::Reference(_) | Self::Endpoint(_) => None,
        }
    }

    /// With the tools of a scenario's server, or with all.
    pub(super) fn toolbox(&self, scenario: Option<&Scenario>) -> &Toolbox {
        match self {
            Self::Policy(_, agents) | Self::Harness(_, agents) | Self::Reference(agents) => {
                &agents.of(scenario).toolbox
            }
            Self::Endpoint(agents) => &agents.of(scenario).toolbox,
        }
    }

    /// What is computed, or billed by an endpoint, so far.
    fn usage(&self) -> Usage {
        match self {
            Self::Endpoint(agents) => agents.all.client.resources(),
            _ => self.sampler().map(policy::usage).unwrap_or_default(),
        }
    }

    fn sampled_tokens(&self) -> u64 {
        self.sampler().map_or(0, Sampler::sampled_tokens)
    }
}

/// What a policy is shown in addition.
#[derive(Debug, Clone, Copy)]
pub struct OwnPrompt<'a> {
    /// The name of the policy with it.
    pub name: &'a str,
    /// Of both, in the ids of episodes.
    pub digest: Digest,
    /// Behind the system prompt.
    pub behind: &'a str,
}

/// A policy, or the reference solutions or a model behind an endpoint in its place, and a server, ready to play.
pub struct Player {
    /// In the ids of trajectories.
    policy: Digest,
    /// What trajectories name as their policy, if not this digest.
    label: Option<String>,
    pub(super) actor: Actor,
    pub(super) pools: Pools,
    play: PlaySettings,
    /// Whether finished episodes are recorded, and recorded ones are not played again.
    is_recorded: bool,
    /// Ids of scenarios that earlier rollouts have played, for the progress shown.
    drawn: BTreeSet<String>,
    /// Whose success the progress shows, where several policies play.
    shown_as: Option<String>,
    /// Episodes so far, and how many were lost.
    episodes: usize,
    lost: usize,
}

/// How a rollout ended that was played once.
enum PlayOutcome {
    Ended(Episode, Option<StateResults>),
    /// The server was lost; if there was a session, in a call.
    Lost {
        cause: McpError,
        call: Option<(ToolCall, Episode)>,
    },
    /// Others found the server down before this one had a session.
    Skipped,
}

impl Player {
    /// Loads the policy and reads the tools. Does not call the server before the first episode.
    ///
    /// # Errors
    /// If there is no server, or none of the name that a scenario gives; if the policy cannot be loaded.
    pub async fn open(
        context: &Context,
        input: &Input,
        tools: &Path,
        scenarios: &[Scenario],
        play: PlaySettings,
    ) -> Result<Self> {
        Self::open_with(context, input, tools, scenarios, play, None).await
    }

    /// The same with a prompt of its own.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with(
        context: &Context,
        input: &Input,
        tools: &Path,
        scenarios: &[Scenario],
        play: PlaySettings,
        own: Option<OwnPrompt<'_>>,
    ) -> Result<Self> {
        let folder = PolicyFolder::open(input, context)?;
        let behind = own.map_or("", |own| own.behind);
        let (agents, pools) = prepare(context, (input, &folder), tools, scenarios, (&play.agent, behind))?;
        let named = || format!("policy \"{}\"", input.name);
        let expected = folder.expected().at(named)?;
        let peak = play.footprint(&Load::of(&context.engine), &expected, usize::MAX);
        let sampler = policy::start(folder.clone(), context, &peak).await.at(named)?;
        let actor = match play.agent.harness.as_slice() {
            [] => Actor::Policy(sampler, agents),
            command => {
                let chat = chat(context, &folder, &play.agent).at(named)?;
                let model = Model { sampler, chat, context: expected.config.context };
                let folder = context.scratch.join("harness");
                let harness = Harness::start(command, &play.agent, model, folder).await?;
                Actor::Harness(Box::new(harness), agents)
            }
        };
        let label = own.map(|own| labelled(&input.digest, own.name));
        let digest = own.map_or(input.digest, |own| own.digest);
        Ok(Self { label, ..Self::new(digest, actor, pools, play) })
    }

    fn new(policy: Digest, actor: Actor, pools: Pools, play: PlaySettings) -> Self {
        let drawn = BTreeSet::new();
        Self {
            policy,
            label: None,
            actor,
            pools,
            play,
            is_recorded: true,
            drawn,
            shown_as: None,
            episodes: 0,
            lost: 0,
        }
    }

    /// Tokens that an episode may have at most: the setting, or for reference solutions the model's context if that is less.
    pub fn most_tokens(&self) -> usize {
        self.play.agent.max_episode_tokens
    }

    /// Plays the reference solutions of scenarios, in the tokens that this policy's model would have sampled. Its weights are
    /// not loaded.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_reference(
        context: &Context,
        policy: &Input,
        tools: &Path,
        scenarios: &[Scenario],
        mut play: PlaySettings,
    ) -> Result<Self> {
        let folder = PolicyFolder::open(policy, context)?;
        // A sampler has this limit by itself.
        let context_tokens = ModelConfig::load(folder.model())?.context;
        play.agent.max_episode_tokens = play.agent.max_episode_tokens.min(context_tokens);
        let (agents, pools) = prepare(context, (policy, &folder), tools, scenarios, (&play.agent, ""))?;
        let policy = Self::reference_policy(&policy.digest);
        Ok(Self::new(policy, Actor::Reference(agents), pools, play))
    }

    /// The same to see what the server answers now: whole, without the limits of an episode, and not recorded.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_replay(
        context: &Context,
        policy: &Input,
        tools: &Path,
        scenarios: &[Scenario],
        play: PlaySettings,
    ) -> Result<Self> {
        let mut play = play.without_limits();
        (play.agent.result_chars, play.max_lost_share) = (usize::MAX, 1.0);
        play.agent.repeats = Repeats::Run;
        let folder = PolicyFolder::open(policy, context)?;
        let (agents, pools) = prepare(context, (policy, &folder), tools, scenarios, (&play.agent, ""))?;
        let policy = Self::reference_policy(&policy.digest);
        Ok(Self { is_recorded: false, ..Self::new(policy, Actor::Reference(agents), pools, play) })
    }

    /// Lets a model behind an endpoint play, with these examples behind its system prompt. `policy` stands for it in the ids of
    /// its episodes.
    ///
    /// # Errors
    /// If there is no server, or none of the name that a scenario gives.
    pub fn of_endpoint(
        context: &Context,
        (policy, client): (Digest, Client),
        tools: &Path,
        (scenarios, examples): (&[Scenario], &str),
        mut play: PlaySettings,
    ) -> Result<Self> {
        play.concurrency = play.concurrency.min(client.concurrency());
        let (agents, pools) =
            prepare_endpoint(context, (client.into(), examples), tools, scenarios, &play.agent)?;
        Ok(Self::new(policy, Actor::Endpoint(agents), pools, play))
    }

    /// Names the scenarios that earlier rollouts have played, for the progress shown.
    pub fn set_drawn(&mut self, ids: BTreeSet<String>) {
        self.drawn = ids;
    }

    /// Names the policy in the progress shown.
    pub fn set_shown_as(&mut self, name: &str) {
        self.shown_as = Some(name.to_owned());
    }

    /// What stands for this policy in the ids of reference solutions.
    pub fn reference_policy(policy: &Digest) -> Digest {
        Encoder::new("mcprl reference solutions v1").digest(policy).finish()
    }

    /// Plays the rollouts that were not played earlier. Trajectories come back in the rollouts' order, `None`
    /// for one lost to server failures.
    ///
    /// Advances the observer by one per rollout played.
    ///
    /// # Errors
    /// If the engine fails, or more of this player's episodes are lost than allowed.
    pub async fn play(
        &mut self,
        context: &Context,
        rollouts: &[RolloutSpec<'_>],
    ) -> Result<Vec<Option<Trajectory>>> {
        let mut known = match self.is_recorded {
            true => known(context, &self.policy, rollouts)?,
            false => BTreeMap::new(),
        };
        let drawn = std::mem::take(&mut self.drawn);
        let mut scoreboard = Scoreboard::new(self.actor.sampled_tokens(), &drawn);
        let before = self.actor.usage();
        let mut played: Vec<Option<Trajectory>> = Vec::with_capacity(rollouts.len());
        for rollout in rollouts {
            let known = known.remove(&rollout.row(&self.policy));
            let trajectory = known.map(|trajectory| self.judged(trajectory, rollout.scenario));
            if let Some(trajectory) = &trajectory {
                scoreboard.count(trajectory);
                context.observer.skip(1);
            }
            played.push(trajectory);
        }
        drop(known);
        let mut progress = Progress { context, rollouts, played, scoreboard, tool_calls: 0, cause: None };
        let ended = retries::play_missing(self, &mut progress).await;
        let Progress { played, tool_calls, cause, .. } = progress;
        self.drawn = drawn;
        context.meter.add(Usage { tool_calls, ..self.actor.usage().since(before) });
        self.pools.take_notes().iter().for_each(|note| context.observer.note(note));
        ended?;
        if context.shard.is_some() {
            // What is missing is another's, or played again by the stage itself.
            return Ok(played);
        }
        self.episodes += rollouts.len();
        self.lost += played.iter().filter(|trajectory| trajectory.is_none()).count();
        if let Some(cause) = cause.filter(|_| self.lost_too_many(self.lost, self.episodes)) {
            return Err(PlayError::ServerLost { lost: self.lost, episodes: self.episodes, cause }.into());
        }
        let has_failed = |trajectory: &&Trajectory| trajectory.end() == Some(End::HarnessFailed);
        let failed = played.iter().flatten().filter(has_failed).count();
        if let Actor::Harness(harness, _) = &self.actor
            && failed > 0
            && let Some(failure) = harness.failure()
        {
            if failed == played.iter().flatten().count() {
                return Err(failure.into());
            }
            let note = format!("{failed} of {} episodes ended without an answer: {failure}", played.len());
            context.observer.note(&note);
        }
        match shortest_without_room(&played) {
            Some(tokens) => Err(PlayError::NoRoom { tokens }.into()),
            None => Ok(played),
        }
    }

    /// Tools whose schema cannot be used to check arguments.
    pub fn unchecked(&self) -> BTreeSet<String> {
        self.actor.toolbox(None).unchecked()
    }

    /// Number of episodes lost to server failures.
    pub fn lost(&self) -> usize {
        self.lost
    }

    fn lost_too_many(&self, lost: usize, episodes: usize) -> bool {
        lost > 0 && (lost == episodes || lost as f64 / episodes as f64 > self.play.max_lost_share)
    }

    /// Records an episode and stores it at its index.
    fn keep(
        &self,
        progress: &mut Progress<'_>,
        index: usize,
        episode: Episode,
        state: Option<StateResults>,
    ) -> Result<()> {
        let (context, rollout) = (progress.context, &progress.rollouts[index]);
        let trajectory = self.judged(trajectory(episode, state, rollout, &self.policy), rollout.scenario);
        progress.tool_calls += u64::from(trajectory.calls);
        // A program that failed is tried again by a stage that is resumed.
        if self.is_recorded
            && trajectory.end() != Some(End::HarnessFailed)
            && let Ok(row) = serde_json::to_vec(&trajectory)
        {
            context.rows.record(&rollout.row(&self.policy), &row)?;
        }
        progress.scoreboard.count(&trajectory);
        context.observer.advance(1);
        context
            .observer
            .status(&progress.scoreboard.line(self.actor.sampled_tokens(), self.shown_as.as_deref()));
        progress.played[index] = Some(trajectory);
        Ok(())
    }

    /// Closes the server's sessions and ends the policy's threads, which frees their memory for the next
    /// stage.
    pub async fn close(self) {
        self.pools.close().await;
        let sampler = match self.actor {
            Actor::Policy(sampler, _) => sampler,
            // What listens for its programs ends with it.
            Actor::Harness(harness, _) => harness.model.sampler.clone(),
            Actor::Reference(_) | Actor::Endpoint(_) => return,
        };
        sampler.close().await;
    }

    /// Sets what depends on the scenario's known answer, which may have changed since the episode was played.
    fn judged(&self, trajectory: Trajectory, scenario: &Scenario) -> Trajectory {
        let correct = truth::correct(scenario, (&trajectory).into());
        match self.actor {
            Actor::Policy(..) | Actor::Harness(..) | Actor::Endpoint(_) => {
                let policy = self.label.clone().unwrap_or(trajectory.policy);
                Trajectory { correct, policy, ..trajectory }
            }
            // The answer is the known one, so that the calls decide.
            Actor::Reference(_) => {
                let correct = correct.map(|correct| correct && reference::holds(&trajectory, scenario));
                Trajectory { correct, policy: REFERENCE.to_owned(), ..trajectory }
            }
        }
    }

    fn prompts<'a>(
        &self,
        scenarios: impl Iterator<Item = &'a Scenario>,
    ) -> Result<BTreeMap<&'a str, PromptTokens>> {
        let (Actor::Policy(_, agents) | Actor::Reference(agents)) = &self.actor else {
            return Ok(BTreeMap::new());
        };
        let distinct: BTreeMap<&str, &Scenario> =
            scenarios.map(|scenario| (scenario.id.as_str(), scenario)).collect();
        let prompt_tokens = |(id, scenario): (&'a str, &Scenario)| {
            let chat = &agents.of(Some(scenario)).chat;
            let prompt_tokens = PromptTokens::new(chat, &scenario.task).at(|| format!("scenario {id}"))?;
            Ok((id, prompt_tokens))
        };
        distinct.into_iter().map(prompt_tokens).collect()
    }

    async fn play_once(
        &self,
        sessions: SessionUse,
        rollout: &RolloutSpec<'_>,
        prompts: &BTreeMap<&str, PromptTokens>,
        outage: &Outage,
    ) -> Result<PlayOutcome> {
        if outage.is_known.is_cancelled() {
            return Ok(PlayOutcome::Skipped);
        }
        let server = LazySessions {
            sessions: self.pools.visit(),
            exclusive: sessions != SessionUse::Pooled,
            outage: Some(outage),
        };
        let scenario = rollout.scenario;
        let prompt_tokens = || &prompts[rollout.scenario.id.as_str()];
        let mut episode = match &self.actor {
            Actor::Harness(harness, agents) => {
                harness.episode(rollout, &server, agents.of(Some(scenario))).await?
            }
            Actor::Endpoint(agents) => {
                let temperature = rollout.sampling.temperature.into();
                let sampling = EndpointSampling { temperature, seed: Some(rollout.seed) };
                endpoint_episode(agents.of(Some(scenario)), &server, &scenario.task, sampling).await?
            }
            Actor::Policy(sampler, agents) => {
                let prompt_tokens = prompt_tokens();
                let pieces = prompt_tokens.pieces.clone();
                let policy = sampler.open(pieces, rollout.sampling, rollout.seed);
                let usage = sampler.usage();
                let progress =
                    || usage.computed.load(Ordering::Relaxed) + usage.sampled.load(Ordering::Relaxed);
                let policy = Watched { policy, progress, stall: STALL };
                episode(policy, &server, agents.of(Some(scenario)), prompt_tokens).await?
            }
            Actor::Reference(agents) => {
                let agent = agents.of(Some(scenario));
                let calls = reference::calls(scenario).unwrap_or_default();
                let working = scenario.working.as_ref().map_or("", |working| &working.0);
                episode(Script::new(&agent.chat, &calls, working), &server, agent, prompt_tokens()).await?
            }
        };
        Ok(match episode.lost.take() {
            None => match self.state(&server, rollout.scenario).await {
                Ok(state) => PlayOutcome::Ended(episode, state),
                Err(McpError::PoolClosed) => PlayOutcome::Skipped,
                Err(cause) if cause.is_transient() => PlayOutcome::Lost { cause, call: None },
                Err(cause) => return Err(cause.into()),
            },
            Some(LostCall { cause, .. }) if cause.is_of_cassette() => return Err(cause.into()),
            Some(LostCall { call, cause }) if server.is_open(self.actor.toolbox(Some(scenario)), &call) => {
                PlayOutcome::Lost { cause, call: Some((call, episode)) }
            }
            Some(LostCall { cause: McpError::PoolClosed, .. }) => PlayOutcome::Skipped,
            Some(LostCall { cause, .. }) if cause.is_transient() => PlayOutcome::Lost { cause, call: None },
            Some(LostCall { cause, .. }) => return Err(cause.into()),
        })
    }

    /// Makes the calls of the scenario's state checks on the sessions of its episode.
    async fn state(
        &self,
        server: &LazySessions<'_>,
        scenario: &Scenario,
    ) -> Result<Option<StateResults>, McpError> {
        let checks = scenario.checks.as_ref().and_then(|json| Checks::parse(&json.0).ok());
        let Some(checks) = checks.filter(|checks| !checks.state.is_empty()) else { return Ok(None) };
        let mut results = Vec::with_capacity(checks.state.len());
        for StateCheck { tool, arguments, .. } in checks.state {
            let wire_name = self.actor.toolbox(None).wire_name(&tool);
            let outcome = server.send(wire_name, arguments).await?;
            results.push((!outcome.is_error).then_some(outcome.text));
        }
        Ok(Some(results))
    }
}

/// Rollouts and their results.
struct Progress<'a> {
    context: &'a Context,
    rollouts: &'a [RolloutSpec<'a>],
    played: Vec<Option<Trajectory>>,
    scoreboard: Scoreboard<'a>,
    tool_calls: u64,
    /// The first error that lost the server.
    cause: Option<McpError>,
}

async fn unless_cancelled<T>(context: &Context, work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        biased;
        () = context.cancel.cancelled() => Err(Interrupted.into()),
        done = work => Ok(done),
    }
}
