//! Answers by vote: several rollouts at a training task whose answer nobody knows, and what enough of them agree on as its answer.
//!
//! Held-out tasks get none: an exam would measure agreement.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Context, Metrics, error::ScenariosError};
use crate::{
    data::{self, Admission, Checks, Json, Scenario, Sparse, Tool, Trajectory},
    error::{At, Result},
    judge::{self, JudgedTrajectory, truth},
    stage::{
        endpoint::EndpointPolicy,
        rollout::{
            play::Player,
            records::{RolloutSpec, samples},
            settings::PlaySettings,
        },
    },
    tasks::{
        explored::only_reads,
        refusals::{Reason, refuse},
    },
};

/// The input with the policy that votes.
pub const ROLE: &str = "answers_from";

/// Of four rollouts at a task, those that have to agree.
const AGREEING: usize = 3;

/// Who votes, and how often.
#[derive(Debug, Deserialize)]
pub(in crate::stage) struct Votes {
    pub answers_endpoint: Option<EndpointPolicy>,
    pub answers_votes: u32,
}

impl Votes {
    pub fn has_voter(&self, has_policy: bool) -> bool {
        has_policy || self.answers_endpoint.is_some()
    }

    /// Gives the training tasks without a known answer the one that at least three quarters of the rollouts agree on. The others
    /// are removed.
    ///
    /// # Errors
    /// If both or neither of a policy and an endpoint is given, it cannot be played, or no training task is left.
    pub async fn label(
        &self,
        context: &Context,
        play: PlaySettings,
        train: &mut Vec<Scenario>,
        admission: &mut [Admission],
    ) -> Result<Metrics> {
        let open: Vec<Scenario> = train.iter().filter(|task| !truth::is_known(task)).cloned().collect();
        if open.is_empty() {
            context.observer.note("every training task has an answer, so none is voted on");
            return Ok(Metrics::new());
        }
        let rollouts: Vec<RolloutSpec<'_>> = open
            .iter()
            .flat_map(|task| samples("mcprl vote seed v1", context.seed, task, 0..self.answers_votes))
            .collect();
        context.observer.phase("votes", rollouts.len() as u64);
        let tools = &context.input("tools")?.path;
        let mut player = match &self.answers_endpoint {
            Some(_) if context.has(ROLE) => return Err(ScenariosError::TwoVoters.into()),
            Some(endpoint) => {
                let client = endpoint.client().at(|| "answers_endpoint".to_owned())?;
                Player::of_endpoint(context, (endpoint.digest(""), client), tools, (&open, ""), play)?
            }
            None => Player::open(context, context.input(ROLE)?, tools, &open, play).await?,
        };
        let played = player.play(context, &rollouts).await;
        player.close().await;
        let played: Vec<Option<Trajectory>> = played?;
        let reads = only_reads(&data::read::<Tool>(tools)?);
        let votes = self.answers_votes as usize;
        let mut labels: BTreeMap<&str, Option<Scenario>> = BTreeMap::new();
        for (task, played) in open.iter().zip(played.chunks(votes.max(1))) {
            let group: Vec<JudgedTrajectory<'_>> = played
                .iter()
                .flatten()
                .map(|trajectory| JudgedTrajectory { scenario: task, trajectory })
                .collect();
            let winner = judge::agreed(&group, (AGREEING * votes).div_ceil(4), &reads);
            let label = winner.and_then(|winner| voted(task, group[winner].trajectory, &group));
            labels.insert(&task.id, label);
        }
        let refusal = || (Reason::Disagreed, format!("fewer than three quarters of {votes} attempts agree"));
        let is_refused = |task: &Scenario| labels.get(&*task.id).is_some_and(Option::is_none);
        let all = train.len();
        refuse(train, admission, |task| task.id.clone(), |task| is_refused(task).then(refusal));
        if train.is_empty() {
            return Err(ScenariosError::NoAgreement { tasks: all, votes: self.answers_votes }.into());
        }
        let labelled = labels.values().flatten().count();
        for task in train.iter_mut() {
            if let Some(Some(label)) = labels.remove(&*task.id) {
                *task = label;
            }
        }
        context.observer.note(&format!(
            "{labelled} of {} training tasks without an answer get one by vote of {votes} attempts; the others are left out",
            open.len()
        ));
        Ok(Metrics::from([("voted".to_owned(), labelled as f64)]))
    }
}

/// The task with what this rollout came to as its known answer, or as the state that it should leave.
fn voted(task: &Scenario, winner: &Trajectory, group: &[JudgedTrajectory<'_>]) -> Option<Scenario> {
    let mut task = Scenario { voted: Some(Sparse(true)), ..task.clone() };
    let checks = task.checks.as_ref().and_then(|checks| Checks::parse(&checks.0).ok());
    match checks.filter(|checks| !checks.state.is_empty()) {
        Some(mut checks) => {
            let left = truth::state_left(winner);
            for (check, left) in checks.state.iter_mut().zip(left) {
                check.expect.same = Some(left?);
            }
            task.checks = Some(Json(checks.to_json()));
        }
        None => {
            let answer = winner.answer.clone()?;
            // Rollouts that agree in another order say that the order does not count.
            let is_set = group
                .iter()
                .filter_map(|rollout| rollout.trajectory.answer.as_deref())
                .any(|other| truth::agree(&answer, other) && !truth::same_answer("text")(&answer, other));
            task.check = if truth::is_number(&answer) {
                "number"
            } else if is_set {
                "set"
            } else {
                "text"
            }
            .into();
            task.answer = Some(answer);
        }
    }
    Some(task)
}
