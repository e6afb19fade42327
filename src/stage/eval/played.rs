//! The episodes of an exam.

use std::collections::BTreeMap;

use super::{Contestant, ContestantEpisodes, Eval, Prompted, episode, vote};
use crate::{
    data::{Call, Scenario, Trajectory, calls::calls},
    error::{At, Result},
    eval::Episode,
    stage::{
        Context,
        rollout::{
            play::{OwnPrompt, Player},
            records::RolloutSpec,
        },
    },
};

/// What the contestants did.
#[derive(Default)]
pub struct Played {
    pub trajectories: Vec<Trajectory>,
    pub calls: Vec<Call>,
    pub episodes: Vec<Episode>,
    /// Of the policy that votes.
    pub votes: Vec<Episode>,
    pub lost: usize,
    /// Of each contestant, where its trajectories end.
    pub ends: Vec<usize>,
}

/// The first contestant that is the same policy under another name, which plays for both.
pub fn first_of(plans: &[ContestantEpisodes<'_, '_>], place: usize) -> Option<usize> {
    let Contestant::Policy(own) = &plans[place].0 else { return None };
    plans[..place]
        .iter()
        .position(|(other, _)| matches!(other, Contestant::Policy(other) if own.digest == other.digest))
}

impl Eval {
    /// Plays the episodes of each contestant. `voter`: whose samples vote.
    pub(super) async fn play(
        &self,
        context: &Context,
        plans: &[ContestantEpisodes<'_, '_>],
        scenarios: &[Scenario],
        voter: &str,
    ) -> Result<Played> {
        let params = &self.params;
        let mut all = Played::default();
        for (place, (contestant, rollouts)) in plans.iter().enumerate() {
            if let Some(first) = first_of(plans, place) {
                let start = first.checked_sub(1).map_or(0, |before| all.ends[before]);
                let played = &all.trajectories[start..all.ends[first]];
                let by: BTreeMap<(&str, u32), &Trajectory> =
                    played.iter().map(|one| ((one.scenario_id.as_str(), one.sample), one)).collect();
                let there = rollouts.iter().filter_map(|rollout| {
                    Some((rollout, *by.get(&(rollout.scenario.id.as_str(), rollout.sample))?))
                });
                let own = there.filter(|(rollout, _)| !params.is_vote_only(rollout.sample));
                all.episodes.extend(own.map(|(rollout, played)| episode(contestant.name(), rollout, played)));
                all.ends.push(all.trajectories.len());
                continue;
            }
            // The limits of an endpoint are for one process.
            if context.shard.is_some() && matches!(contestant, Contestant::Endpoint(..)) {
                continue;
            }
            let mut player = self.player(context, contestant, scenarios).await?;
            player.set_shown_as(contestant.name());
            let played = player.play(context, rollouts).await.at(|| contestant.name().to_owned());
            let unchecked = player.unchecked();
            player.close().await;
            let played = played?;
            let there = rollouts.iter().zip(&played);
            let there: Vec<(&RolloutSpec<'_>, &Trajectory)> =
                there.filter_map(|(rollout, played)| Some((rollout, played.as_ref()?))).collect();
            all.calls.extend(there.iter().flat_map(|(_, played)| calls(&(*played).into(), &unchecked)));
            // Those that are played for a vote alone say nothing in comparison with other policies.
            let own = there.iter().filter(|(rollout, _)| !params.is_vote_only(rollout.sample));
            all.episodes.extend(own.map(|(rollout, played)| episode(contestant.name(), rollout, played)));
            if all.votes.is_empty() && params.vote > 0 && contestant.name() == voter {
                all.votes = vote(params, scenarios, &there);
            }
            all.lost += played.len() - there.len();
            all.trajectories.extend(played.into_iter().flatten());
            all.ends.push(all.trajectories.len());
        }
        Ok(all)
    }

    async fn player(
        &self,
        context: &Context,
        contestant: &Contestant<'_>,
        scenarios: &[Scenario],
    ) -> Result<Player> {
        let (play, tools) = (&self.play, &context.input("tools")?.path);
        match contestant {
            Contestant::Policy(policy) => Player::open(context, policy, tools, scenarios, play.clone()).await,
            Contestant::Variant(variant) => {
                let Prompted { name, policy, digest, .. } = variant;
                let own = OwnPrompt { name, digest: *digest, behind: variant.behind() };
                Player::open_with(context, policy, tools, scenarios, variant.play(play), Some(own)).await
            }
            Contestant::Endpoint(name, endpoint, examples) => {
                let client = endpoint.client().at(|| format!("endpoint \"{name}\""))?;
                let tasks = (scenarios, examples.as_str());
                Ok(Player::of_endpoint(context, (contestant.digest(), client), tools, tasks, play.clone())?)
            }
        }
    }
}
