//! How far what judges reward is right, where the answers are known: Youden's J, the share of right rollouts that are rewarded minus
//! that of wrong ones. Practice learns only where it is above 0 ("Rate or Fate", PMLR 306, 2026).

use std::collections::BTreeMap;

use super::cases::{AuditedGroup, Cases};
use crate::{
    eval::{Interval, rate_interval},
    judge::JudgeKind,
    stage::{Metrics, metrics},
};

/// Below this upper end of J, a judge is not trusted.
const LEAST: f64 = 0.3;

/// Iterations of a loop whose J is pooled. More would count episodes of a policy that has long changed.
pub const TRUST_WINDOW: usize = 8;

/// The metric that says that a stage measures trust.
pub const TRUST: &str = "trust";

/// Whether the judges are not trusted, by what a stage measured in these iterations; never with fewer than `least` measurements.
///
/// J is the mean over tasks, its upper end that of a linear combination of independent estimates (Zou and Donner 2008).
pub fn is_trust_lost<'m>(measured: impl Iterator<Item = &'m Metrics>, least: usize) -> bool {
    let read = |metrics: &Metrics| {
        let value = |name: &str| metrics.get(name).copied();
        Some((value("trust_tasks")?, value(TRUST)?, value("trust_high")?))
    };
    let all: Vec<(f64, f64, f64)> = measured.filter_map(read).collect();
    let tasks: f64 = all.iter().map(|(tasks, ..)| tasks).sum();
    let mean = all.iter().map(|(own, value, _)| own / tasks * value).sum::<f64>();
    let above = all.iter().map(|(own, value, high)| (own / tasks * (high - value)).powi(2)).sum::<f64>();
    all.len() >= least.max(1) && mean + above.sqrt() < LEAST
}

/// J over the rollouts of groups whose scores differ. A rollout is rewarded if its score is above the mean of its group, because
/// practice makes it likelier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trust {
    pub value: f64,
    pub interval: Interval,
    /// Groups with known answers, those of equal scores left out.
    pub tasks: usize,
    pub rollouts: usize,
}

impl Trust {
    pub fn is_low(&self) -> bool {
        self.value < LEAST
    }

    pub fn metrics(&self) -> Metrics {
        metrics([
            (TRUST, self.value),
            ("trust_low", self.interval.low),
            ("trust_high", self.interval.high),
            ("trust_tasks", self.tasks as f64),
        ])
    }
}

impl std::fmt::Display for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { value, interval: Interval { low, high }, tasks, .. } = self;
        write!(f, "J = {value:.2} [{low:.2}, {high:.2}] over {tasks} tasks with a known answer")
    }
}

/// `None` if no group of differing scores has right rollouts, or none has wrong ones.
pub(super) fn trust(
    groups: &[AuditedGroup],
    score: impl Fn(&AuditedGroup, usize) -> Option<f64>,
) -> Option<Trust> {
    let [mut right, mut wrong] = <[Cases; 2]>::default();
    let mut tasks = 0;
    for (index, group) in groups.iter().enumerate() {
        let scores: Vec<Option<f64>> = (0..group.ids.len()).map(|rollout| score(group, rollout)).collect();
        let known: Vec<f64> = scores.iter().flatten().copied().collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        let is_rewarded = |score: f64| score > mean + 1e-12;
        if !known.iter().any(|score| is_rewarded(*score)) || group.correct.iter().all(Option::is_none) {
            continue;
        }
        tasks += 1;
        for (score, correct) in scores.iter().zip(&group.correct) {
            let (Some(score), Some(correct)) = (score, correct) else { continue };
            let cases = if *correct { &mut right } else { &mut wrong };
            cases.add(index, f64::from(u8::from(is_rewarded(*score))));
        }
    }
    if right.count() == 0 || wrong.count() == 0 {
        return None;
    }
    let rollouts = right.count() + wrong.count();
    let [right, wrong] = [right, wrong].map(|cases| cases.clusters());
    let (hit, miss) = (right.mean(), wrong.mean());
    let (hits, misses) = (rate_interval(&right), rate_interval(&wrong));
    // Newcombe's interval of the difference of two rates (1998, method 10).
    let value = hit - miss;
    let below = (hit - hits.low).hypot(misses.high - miss);
    let above = (hits.high - hit).hypot(miss - misses.low);
    let interval = Interval { low: (value - below).max(-1.0), high: (value + above).min(1.0) };
    Some(Trust { value, interval, tasks, rollouts })
}

/// The score of a rollout that one judge gives.
pub(super) fn of_judge(kind: JudgeKind) -> impl Fn(&AuditedGroup, usize) -> Option<f64> {
    move |group, rollout| Some(group.scores.get(&kind)?.scores.get(rollout)?.as_ref()?.score)
}

/// What all judges with a weight give a rollout together. None if one that scored others of the group did not score it.
pub(super) fn of_all(weights: &BTreeMap<JudgeKind, f64>) -> impl Fn(&AuditedGroup, usize) -> Option<f64> {
    move |group, rollout| {
        let mut scored = group.scores.keys().filter(|kind| weights.contains_key(kind)).peekable();
        scored.peek()?;
        scored.map(|kind| Some(weights[kind] * of_judge(*kind)(group, rollout)?)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Score, Scores};

    /// Groups of rollouts, each right or not with its score.
    fn groups(all: &[&[(bool, f64)]]) -> Vec<AuditedGroup> {
        let group = |rollouts: &&[(bool, f64)]| AuditedGroup {
            ids: vec![String::new(); rollouts.len()],
            correct: rollouts.iter().map(|(right, _)| Some(*right)).collect(),
            scores: BTreeMap::from([(
                JudgeKind::Rubric,
                Scores {
                    scores: rollouts
                        .iter()
                        .map(|(_, score)| Some(Score { score: *score, ..Score::default() }))
                        .collect(),
                    ..Scores::default()
                },
            )]),
            ..AuditedGroup::default()
        };
        all.iter().map(group).collect()
    }

    fn found(all: &[&[(bool, f64)]]) -> Option<Trust> {
        trust(&groups(all), of_judge(JudgeKind::Rubric))
    }

    #[test]
    fn j_is_what_is_rewarded_of_right_attempts_minus_what_is_of_wrong_ones() {
        let mixed: &[(bool, f64)] = &[(true, 0.9), (true, 0.2), (false, 0.8), (false, 0.1), (false, 0.1)];
        let equal: &[(bool, f64)] = &[(true, 0.5), (false, 0.5)];
        let found = found(&[mixed, equal]).unwrap();
        assert!((found.value - (1.0 / 2.0 - 1.0 / 3.0)).abs() < 1e-12);
        assert_eq!((found.tasks, found.rollouts), (1, 5), "equal scores teach nothing");
    }

    #[test]
    fn it_is_not_known_without_right_and_wrong_attempts() {
        assert_eq!(found(&[&[(true, 0.9), (true, 0.2)]]), None);
        assert_eq!(found(&[]), None);
        let mut unknown = groups(&[&[(true, 0.9), (false, 0.2)]]);
        unknown[0].correct = vec![None; 2];
        assert_eq!(trust(&unknown, of_judge(JudgeKind::Rubric)), None);
    }

    #[test]
    fn a_judge_that_guesses_loses_trust_over_many_tasks_and_not_over_few() {
        let guesses: [&[(bool, f64)]; 2] = [
            &[(true, 0.9), (true, 0.1), (false, 0.9), (false, 0.1)],
            &[(false, 0.9), (true, 0.9), (true, 0.1), (false, 0.1)],
        ];
        let few = found(&guesses).unwrap();
        let many = found(&[guesses; 40].concat()).unwrap();
        assert_eq!((few.value, many.value), (0.0, 0.0));
        let is_lost = |trust: Trust| is_trust_lost([&trust.metrics()].into_iter(), 1);
        assert!(!is_lost(few) && is_lost(many), "{few} and {many}");
        let good: &[(bool, f64)] = &[(true, 0.9), (true, 0.8), (false, 0.2), (false, 0.1)];
        assert!(!is_lost(found(&[good; 80]).unwrap()));
    }

    /// The iteration of 32 after which a loop ends whose judge has this J, in the middle of many loops; none where few end.
    fn ends(j: f64, is_pooled: bool) -> Option<usize> {
        let mut state = 1_u64;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as f64 / (1_u64 << 31) as f64
        };
        let mut end = || {
            let mut known: Vec<Metrics> = Vec::new();
            (1..=32).find(|_| {
                let mut rollout = |index: usize| {
                    let is_right = index.is_multiple_of(2);
                    let chance = if is_right { 0.5 + j / 2.0 } else { 0.5 - j / 2.0 };
                    (is_right, f64::from(u8::from(draw() < chance)))
                };
                // Ten groups of four with differing scores.
                let groups: Vec<Vec<(bool, f64)>> =
                    (0..10).map(|_| (0..4).map(&mut rollout).collect()).collect();
                let groups: Vec<&[(bool, f64)]> = groups.iter().map(Vec::as_slice).collect();
                known.extend(found(&groups).map(|trust| trust.metrics()));
                let lost = |last: usize, least: usize| {
                    is_trust_lost(known[known.len().saturating_sub(last)..].iter(), least)
                };
                match is_pooled {
                    true => lost(TRUST_WINDOW, 2),
                    false => {
                        known.len() > 1
                            && known[known.len() - 2..].iter().all(|one| is_trust_lost([one].into_iter(), 1))
                    }
                }
            })
        };
        let mut ends: Vec<usize> = (0..40).map(|_| end().unwrap_or(usize::MAX)).collect();
        ends.sort_unstable();
        Some(ends[20]).filter(|end| *end != usize::MAX)
    }

    #[test]
    fn iterations_together_end_most_loops_of_a_poor_judge_early_and_few_of_a_good_one() {
        let [none, poor, good] = [0.0, 0.2, 0.5].map(|j| (ends(j, false), ends(j, true)));
        println!("J = 0: {none:?}, 0.2: {poor:?}, 0.5: {good:?} alone and pooled");
        assert!(none.1.is_some_and(|end| end <= 4), "{none:?}");
        assert!(poor.0.is_none() && poor.1.is_some_and(|end| end <= 16), "{poor:?}");
        assert_eq!(good, (None, None));
    }

    #[test]
    fn several_judges_count_by_their_weights() {
        let mut all = groups(&[&[(true, 0.9), (false, 0.1)]]);
        let against =
            groups(&[&[(true, 0.1), (false, 0.9)]]).remove(0).scores.remove(&JudgeKind::Rubric).unwrap();
        all[0].scores.insert(JudgeKind::Command, against);
        let of = |rubric: f64, command: f64| {
            let weights = BTreeMap::from([(JudgeKind::Rubric, rubric), (JudgeKind::Command, command)]);
            trust(&all, of_all(&weights)).map(|trust| trust.value)
        };
        assert_eq!((of(2.0, 1.0), of(1.0, 2.0), of(1.0, 1.0)), (Some(1.0), Some(-1.0), None));
    }
}
