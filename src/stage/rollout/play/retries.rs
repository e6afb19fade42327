//! Rollouts that lose the server, and how they are played again.
//!
//! An episode's session is opened by its first call, so a server that is not called is not started. A call
//! without an answer (`mcp/session.rs` defines an answer) ends its episode, and so does a session that cannot
//! be opened. Neither says anything about the policy yet: the episode is replayed from the start with
//! the same seed, up to three times (see [`RETRIES`]). Before each round the server must answer a probe on a
//! new session: its list of tools, and a call that it answered in an earlier episode. The waits between
//! probes grow.
//!
//! | finding | the episode |
//! |---|---|
//! | a later try ends differently | is that try |
//! | all of these: the last try, with nothing else under way, is lost in the same call as an earlier one; the connection broke, or the answer was 502, 503 or 504; sessions leave nothing behind ([`ServerSpec::contains_calls`](crate::mcp::ServerSpec::contains_calls)); the server answers other calls, and the probe before and behind it | ends [`End::ServerDown`](crate::data::End::ServerDown): an outcome of the policy, whose own call fails. It is recorded, and counts as one that failed |
//! | anything else | is lost: neither recorded nor part of the result, so that no success, mean or advantage counts it. A resumed stage, or one with further rows, plays it |
//!
//! If more than `max_lost_share` of the episodes are lost, or all, the stage fails with the first error.

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use futures::{FutureExt, StreamExt};

use super::{PlayOutcome, Player, Progress, unless_cancelled};
use crate::{
    agent::{Episode, Outage, PromptTokens},
    chat::ToolCall,
    error::Result,
    mcp::McpError,
    stage::{
        Shard,
        rollout::{
            probe::{FIRST_WAIT, answered_call, probe},
            records::RolloutSpec,
        },
    },
};

/// Which session a rollout is played on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionUse {
    /// A pooled one, along with others.
    Pooled,
    /// Its own, which no other episode can take down.
    OwnSession,
    /// Its own, while nothing else is played.
    Alone,
}

const RETRIES: [SessionUse; 4] =
    [SessionUse::Pooled, SessionUse::Pooled, SessionUse::OwnSession, SessionUse::Alone];

/// A rollout that is not finished.
struct Unplayed {
    index: usize,
    /// The calls in which the server was lost.
    calls: Vec<ToolCall>,
}

/// A call in which the server was lost, and its episode.
type LostIn = Option<(ToolCall, Episode)>;

/// Plays the rollouts that have no result, and those again that lose the server. What has no result then is lost.
pub(super) async fn play_missing(player: &Player, progress: &mut Progress<'_>) -> Result<()> {
    let rollouts = progress.rollouts;
    let mut unplayed: Vec<usize> =
        (0..rollouts.len()).filter(|index| progress.played[*index].is_none()).collect();
    if let Some(Shard { index, of }) = progress.context.shard {
        let groups = groups(rollouts);
        unplayed.retain(|rollout| groups[*rollout] % of == index);
    }
    let prompts = player.prompts(unplayed.iter().map(|index| rollouts[*index].scenario))?;
    let unplayed = unplayed.into_iter().map(|index| Unplayed { index, calls: Vec::new() }).collect();
    let (lost, episodes) = (player.lost, player.episodes + rollouts.len());
    let mut rounds = Rounds { player, progress, prompts: &prompts, unplayed, answered: None, lost, episodes };
    for (number, sessions) in RETRIES.into_iter().enumerate() {
        // Whose call takes the server down is for the stage itself to say, when no other shard plays.
        let is_for_the_stage = sessions == SessionUse::Alone && rounds.progress.context.shard.is_some();
        if rounds.unplayed.is_empty()
            || is_for_the_stage
            || !rounds.begin(number).await?
            || rounds.play(sessions).await?.is_break()
        {
            break;
        }
    }
    Ok(())
}

/// The number of each rollout's scenario among those that are played.
fn groups(rollouts: &[RolloutSpec<'_>]) -> Vec<usize> {
    let mut numbers = BTreeMap::new();
    let number = |rollout: &RolloutSpec<'_>| {
        let next = numbers.len();
        *numbers.entry(rollout.scenario.id.clone()).or_insert(next)
    };
    rollouts.iter().map(number).collect()
}

struct Rounds<'p, 'a> {
    player: &'p Player,
    progress: &'p mut Progress<'a>,
    prompts: &'p BTreeMap<&'a str, PromptTokens>,
    unplayed: Vec<Unplayed>,
    /// A call that the server answered in an earlier episode.
    answered: Option<ToolCall>,
    /// Episodes of the player that are lost, and all.
    lost: usize,
    episodes: usize,
}

impl Rounds<'_, '_> {
    /// Waits until the server answers, after a round that lost it. Whether it does.
    async fn begin(&mut self, round: usize) -> Result<bool> {
        let Progress { context, played, cause, .. } = &*self.progress;
        self.answered = answered_call(self.player.actor.toolbox(None), played.iter().flatten());
        let Some(earlier) = (round as u32).checked_sub(1) else { return Ok(true) };
        context.observer.note(&format!(
            "lost the server in {} episodes, which are retried{}",
            self.unplayed.len(),
            cause.as_ref().map_or(String::new(), |cause| format!(": {cause}")),
        ));
        self.is_answering(FIRST_WAIT * 4_u32.pow(earlier)).await
    }

    async fn is_answering(&self, first_wait: Duration) -> Result<bool> {
        let Player { pools, actor, .. } = self.player;
        let probe = probe(pools, actor.toolbox(None), self.answered.as_ref(), first_wait);
        Ok(unless_cancelled(self.progress.context, probe).await?.is_ok())
    }

    /// Plays every rollout that is left once.
    async fn play(&mut self, sessions: SessionUse) -> Result<ControlFlow<()>> {
        let (player, prompts, rollouts) = (self.player, self.prompts, self.progress.rollouts);
        let outage = Outage::default();
        // Collected, not mapped lazily: the compiler cannot prove that a stream of a borrowing closure is
        // Send.
        let mut outcomes = Vec::with_capacity(self.unplayed.len());
        for rollout in std::mem::take(&mut self.unplayed) {
            let outcome = player.play_once(sessions, &rollouts[rollout.index], prompts, &outage);
            outcomes.push(outcome.map(move |outcome| (rollout, outcome)));
        }
        let at_once = if sessions == SessionUse::Alone { 1 } else { player.play.concurrency.max(1) };
        let mut outcomes = futures::stream::iter(outcomes).buffer_unordered(at_once);
        while let Some((mut rollout, outcome)) =
            unless_cancelled(self.progress.context, outcomes.next()).await?
        {
            match outcome? {
                PlayOutcome::Ended(episode, state) => {
                    player.keep(self.progress, rollout.index, episode, state)?;
                }
                PlayOutcome::Skipped => self.unplayed.push(rollout),
                PlayOutcome::Lost { cause, call } if sessions == SessionUse::Alone => {
                    if self.lost_alone(&rollout, cause, call).await?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                PlayOutcome::Lost { cause, call } => {
                    if let Some((call, episode)) = call {
                        self.progress.tool_calls += episode.history.tools.len() as u64;
                        rollout.calls.push(call);
                    }
                    self.unplayed.push(rollout);
                    self.progress.cause.get_or_insert(cause);
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A rollout lost the server while nothing else was played: by its own call, or it is lost. Ends the rounds if the server
    /// does not answer, or too many are lost.
    async fn lost_alone(
        &mut self,
        rollout: &Unplayed,
        cause: McpError,
        call: LostIn,
    ) -> Result<ControlFlow<()>> {
        let is_answering = self.is_answering(FIRST_WAIT).await?;
        if let Some((call, episode)) = call
            && is_answering
            && rollout.calls.contains(&call)
            && self.is_own_failure(&call, &episode, &cause)
        {
            let id = &self.progress.rollouts[rollout.index].scenario.id;
            self.progress.context.observer.note(&format!(
                "episode of scenario {id}: its call of `{}` fails on every session: {cause}",
                call.name
            ));
            self.player.keep(self.progress, rollout.index, episode, None)?;
            return Ok(ControlFlow::Continue(()));
        }
        self.lost += 1;
        self.progress.cause.get_or_insert(cause);
        Ok(match is_answering && !self.player.lost_too_many(self.lost, self.episodes) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    }

    /// Whether a call that failed again on a fresh session is the policy's failure: the server answers others, and what is left
    /// of earlier tries cannot be the reason.
    fn is_own_failure(&self, call: &ToolCall, episode: &Episode, cause: &McpError) -> bool {
        let Player { pools, actor, .. } = self.player;
        let toolbox = actor.toolbox(None);
        let pool = |tool: &str| pools.route(toolbox.wire_name(tool)).ok().map(|(pool, _)| pool);
        let Some(own) = pool(&call.name) else { return false };
        // Of a process of its own, the list of tools is answer enough.
        let ends_process = own.spec().has_process() && matches!(cause, McpError::Lost { .. });
        let is_same = |tool: &String| pool(tool).is_some_and(|pool| std::ptr::eq(pool, own));
        let answers = self.answered.is_some() || ends_process || episode.history.tools.iter().any(is_same);
        let is_upstream =
            matches!(cause, McpError::Lost { .. } | McpError::Refused { status: 502..=504, .. });
        answers && is_upstream && own.spec().contains_calls()
    }
}
