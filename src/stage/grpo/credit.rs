//! Groups of rollouts with their advantages.

use std::collections::BTreeMap;

use super::{GrpoError, Params, TEACHER, step::Rollout};
use crate::{
    data::{End, GroupSignal, REFERENCE, Reward, Trajectory, groups},
    error::Result,
    grpo::{Conduct, Episodes, NoSignal, ScoredRollout, Signal, advantages, remedies},
    progress::Observer,
    stage::{
        Context, mean,
        policy::PolicyFolder,
        share_right,
        training::{check_logprobs, check_rows},
    },
};

/// What is learned from, and what is known of it before the first step.
pub struct Credited<'a> {
    pub groups: Vec<Vec<Rollout<'a>>>,
    /// Of each group, the solution that it is taught because all its rollouts are wrong.
    pub lessons: Vec<Option<&'a Trajectory>>,
    pub signal: Signal,
    pub episodes: usize,
    /// Episodes that another policy played.
    pub of_others: usize,
    pub reward: Option<f64>,
    pub success: Option<f64>,
    /// Whether a teacher scores every token.
    pub teaches: bool,
    /// Whether tokens have importance weights.
    pub is_weighed: bool,
    has_solutions: bool,
    all_wrong: usize,
}

impl super::Grpo {
    /// Compares the rewards of each group.
    pub(super) fn credit<'a>(
        &self,
        trajectories: &'a [Trajectory],
        rewards: &[Reward],
        solutions: Option<&'a BTreeMap<String, Trajectory>>,
        (policy, context): (&PolicyFolder, &Context),
    ) -> Result<Credited<'a>> {
        let params = &self.params;
        let rewards: BTreeMap<&str, &Reward> =
            rewards.iter().map(|reward| (reward.trajectory_id.as_str(), reward)).collect();
        let rollouts: Vec<ScoredRollout<'_>> = trajectories
            .iter()
            .map(|trajectory| rollout(trajectory, &rewards, params))
            .collect::<Result<_, _>>()?;
        let (credits, mut signal) = advantages(&rollouts, params.scale);
        let (zero_variance, acting) = (params.zero_variance(), policy.digest.to_string());
        let teaches = context.has(TEACHER) && params.teacher_weight > 0.0;
        let rollout = |index: usize| {
            let advantage = match credits[index] {
                // The teacher's part of the advantage needs no reward.
                Err(NoSignal::ZeroVariance | NoSignal::Alone | NoSignal::Unjudged) if teaches => 0.0,
                credit => params.reward_weight * zero_variance.counted(credit)?,
            };
            Some(Rollout::new(&trajectories[index], (advantage, teaches), params, &acting))
        };
        let (mut all, mut lessons, mut all_wrong) = (Vec::new(), Vec::new(), 0);
        for members in groups(trajectories.iter().map(Trajectory::group)).into_values() {
            let outcomes = members.iter().map(|index| rollouts[*index].correct);
            let is_wrong = GroupSignal::of(outcomes) == Some(GroupSignal::AllWrong);
            all_wrong += usize::from(is_wrong);
            let scenario = members.first().map(|index| trajectories[*index].scenario_id.as_str());
            let lesson = scenario.filter(|_| is_wrong).and_then(|scenario| solutions?.get(scenario));
            if lesson.is_some() {
                signal.teach(members.iter().map(|index| credits[*index]));
            }
            all.push(members.into_iter().filter_map(rollout).collect());
            lessons.push(lesson);
        }
        Ok(Credited {
            groups: all,
            lessons,
            signal,
            episodes: trajectories.len(),
            of_others: trajectories.iter().filter(|trajectory| trajectory.policy != acting).count(),
            reward: mean(rewards.values().map(|reward| f64::from(reward.reward))),
            success: share_right(rewards.values().map(|reward| reward.correct)),
            teaches,
            is_weighed: false,
            has_solutions: solutions.is_some(),
            all_wrong,
        })
    }
}

impl Credited<'_> {
    /// Groups that are taught their solution; none if there are no solutions.
    pub fn taught(&self) -> Option<usize> {
        self.has_solutions.then(|| self.lessons.iter().flatten().count())
    }

    /// Notes what the rewards cannot teach, and what would help.
    pub fn note(&self, trajectories: &[Trajectory], observer: &dyn Observer) {
        let taught = self.lessons.iter().flatten().count();
        if taught == 0 && !self.groups.iter().flatten().any(|rollout| rollout.has_terms) {
            observer.note(&format!(
                "these episodes give no gradient: none of the {} groups has attempts with different rewards",
                self.signal.groups
            ));
        }
        for line in remedies(&self.signal, &episodes(trajectories)) {
            observer.note(&line);
        }
        if self.has_solutions && self.all_wrong > 0 {
            let all_wrong = self.all_wrong;
            let others =
                if taught < all_wrong { "; `demonstrations` has no right one for the others" } else { "" };
            observer.note(&format!(
                "{taught} of {all_wrong} groups that are all wrong are taught their solution{others}"
            ));
        }
        if self.of_others > 0 {
            observer.note(
                "another policy played some of the episodes, as with a lag (`@policy~1`): `off_policy` is their share, \
                 `off_policy_kl` how far it is away, and `importance` weighs them",
            );
        }
    }

    /// Puts each lesson into its group. After scoring: no policy sampled them, so there is nothing to compare with.
    pub fn add_lessons(&mut self, weight: f64) {
        for (group, lesson) in self.groups.iter_mut().zip(&self.lessons) {
            group.extend(lesson.map(|lesson| Rollout::demonstration(lesson, weight)));
        }
        self.groups.retain(|group| !group.is_empty());
    }
}

/// A trajectory in the form its group uses.
fn rollout<'a>(
    trajectory: &'a Trajectory,
    rewards: &BTreeMap<&str, &Reward>,
    params: &Params,
) -> Result<ScoredRollout<'a>> {
    if trajectory.policy == REFERENCE {
        return Err(GrpoError::NotSampled.into());
    }
    check_rows(trajectory)?;
    check_logprobs(trajectory)?;
    let is_truncated = trajectory.end().is_some_and(End::is_truncated);
    let excluded = match super::step::trained(trajectory) {
        _ if is_truncated && params.mask_truncated => Some(NoSignal::Truncated),
        0 => Some(NoSignal::Empty),
        _ => None,
    };
    let reward = rewards.get(trajectory.id.as_str());
    Ok(ScoredRollout {
        group: trajectory.group(),
        reward: reward.map_or(f32::NAN, |reward| reward.reward),
        correct: reward.and_then(|reward| reward.correct),
        excluded,
    })
}

/// Outcomes of the episodes, for remedies.
fn episodes(trajectories: &[Trajectory]) -> Episodes {
    let groups = groups(trajectories.iter().map(Trajectory::group)).into_values().map(|members| {
        let known = members.into_iter().filter_map(|index| trajectories[index].correct);
        known.fold((0, 0), |(right, of), correct| (right + u32::from(correct), of + 1))
    });
    let ended = |end| trajectories.iter().filter(|trajectory| trajectory.end() == Some(end)).count() as u64;
    Episodes {
        conduct: Conduct::of(trajectories),
        groups: groups.filter(|(_, of)| *of > 0).collect(),
        truncated: [End::OutOfTurns, End::OutOfTurnTokens, End::OutOfTokens].map(ended),
    }
}
