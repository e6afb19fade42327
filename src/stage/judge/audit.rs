//! How far the judges of a stage can be trusted: agreement with ground truth where it is known, and with themselves.
//!
//! Every measure is a mean over cases (groups, pairs of episodes, conversations). Its interval is a bootstrap of whole
//! groups.

use super::{
    cases::{AuditedGroup, Cases},
    trust::{of_judge, trust},
};
use crate::{
    data::JudgeAudit,
    eval::{Interval, bootstrap_mean, rate_interval},
    judge::{Flag, JudgeKind, Round, pairs, spearman},
    stage::mean,
};

const RESAMPLES: usize = 2000;

/// The rows of the audit. Scores that differ by at most `band` are equal.
pub(super) fn audit(groups: &[AuditedGroup], band: f64, seed: u64) -> Vec<JudgeAudit> {
    let mut rows = Vec::new();
    let tied: Vec<AuditedGroup> = groups.iter().map(|group| group.tied(band)).collect();
    for kind in JudgeKind::ALL.iter().copied() {
        for (measure, cases) in measures(groups, kind, band) {
            if cases.count() == 0 {
                continue;
            }
            let clusters = cases.clusters();
            let interval = bootstrap_mean(&clusters, RESAMPLES, seed);
            let value = clusters.mean();
            rows.push(row(kind.name(), measure, (value, interval), cases.count()));
        }
        let trust = trust(&tied, of_judge(kind));
        rows.extend(
            trust.map(|trust| row(kind.name(), "youden", (trust.value, trust.interval), trust.rollouts)),
        );
    }
    for flag in Flag::ALL {
        let mut cases = Cases::default();
        let mut flagged = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            for (id, flags) in group.ids.iter().zip(&group.flags) {
                cases.add(index, f64::from(u8::from(flags.contains(&flag))));
                flagged.extend(flags.contains(&flag).then(|| id.clone()));
            }
        }
        if cases.count() == 0 {
            continue;
        }
        let clusters = cases.clusters();
        let found = (clusters.mean(), rate_interval(&clusters));
        rows.push(row("episodes", flag.name(), found, cases.count()));
        rows.extend(flagged.into_iter().map(|id| JudgeAudit {
            judge: "episodes".into(),
            measure: flag.name().into(),
            trajectory_id: Some(id),
            value: 1.0,
            n: 1,
            ..JudgeAudit::default()
        }));
    }
    rows
}

fn row(judge: &str, measure: &str, (value, interval): (f64, Interval), cases: usize) -> JudgeAudit {
    let bound = |end: f64| end.is_finite().then_some(end);
    JudgeAudit {
        judge: judge.into(),
        measure: measure.into(),
        trajectory_id: None,
        value,
        low: bound(interval.low),
        high: bound(interval.high),
        n: u32::try_from(cases).unwrap_or(u32::MAX),
    }
}

/// The cases of each measure of a judge.
pub(super) fn measures(groups: &[AuditedGroup], kind: JudgeKind, band: f64) -> Vec<(&'static str, Cases)> {
    let [mut rank, mut pairwise, mut length, mut position, mut orders, mut repeats] = <[Cases; 6]>::default();
    for (index, group) in groups.iter().enumerate() {
        let Some(judged) = group.scores.get(&kind) else { continue };
        let scores: Vec<Option<f64>> =
            judged.scores.iter().map(|score| score.as_ref().map(|score| score.score)).collect();
        if let Some(correlation) = rank_correlation(&scores, &group.correct) {
            rank.add(index, correlation);
        }
        for (i, j) in pairs(scores.len()) {
            let (Some(first), Some(second)) = (scores[i], scores[j]) else { continue };
            let prefers_first = sign(first - second, band);
            match (group.correct[i], group.correct[j]) {
                (Some(true), Some(false)) => pairwise.add(index, f64::midpoint(1.0, prefers_first)),
                (Some(false), Some(true)) => pairwise.add(index, f64::midpoint(1.0, -prefers_first)),
                (Some(_), Some(_))
                    if judged.which.get(i) != judged.which.get(j) || judged.which.is_empty() =>
                {
                    #[expect(clippy::cast_precision_loss, reason = "a length")]
                    let longer = sign(group.lengths[i] as f64 - group.lengths[j] as f64, 0.0);
                    if longer != 0.0 {
                        length.add(index, longer * prefers_first);
                    }
                }
                _ => {}
            }
        }
        position_bias(&judged.rounds).into_iter().for_each(|bias| position.add(index, bias));
        for (a, b) in pairs(judged.rounds.len()) {
            let (a, b) = (&judged.rounds[a], &judged.rounds[b]);
            let cases = match (a.order == b.order, a.repeat == b.repeat) {
                (true, false) => &mut repeats,
                (false, true) => &mut orders,
                _ => continue,
            };
            for (i, j) in pairs(a.scores.len()) {
                let same = sign(a.scores[i] - a.scores[j], band) == sign(b.scores[i] - b.scores[j], band);
                cases.add(index, f64::from(u8::from(same)));
            }
        }
    }
    vec![
        ("rank_correlation", rank),
        ("pairwise_accuracy", pairwise),
        ("length_bias", length),
        ("position_bias", position),
        ("order_agreement", orders),
        ("repeat_agreement", repeats),
    ]
}

/// Of the scores with ground truth, in a group with right and wrong episodes. A judge that scores all alike has none.
fn rank_correlation(scores: &[Option<f64>], correct: &[Option<bool>]) -> Option<f64> {
    let known = scores
        .iter()
        .zip(correct)
        .filter_map(|(score, correct)| Some(((*score)?, f64::from(u8::from((*correct)?)))));
    let (scores, truth): (Vec<f64>, Vec<f64>) = known.unzip();
    let varies = truth.iter().any(|right| *right != truth[0]);
    varies.then(|| spearman(&scores, &truth).unwrap_or(0.0))
}

/// For each conversation: its mean score when it is shown in the first half, minus that in the second half.
fn position_bias(rounds: &[Round]) -> Vec<f64> {
    let count = rounds.first().map_or(0, |round| round.places.len());
    let bias = |conversation: usize| {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for round in rounds {
            match (2 * round.places[conversation] + 1).cmp(&count) {
                std::cmp::Ordering::Less => first.push(round.scores[conversation]),
                std::cmp::Ordering::Greater => second.push(round.scores[conversation]),
                // The middle of an odd number.
                std::cmp::Ordering::Equal => {}
            }
        }
        Some(mean(first)? - mean(second)?)
    };
    (0..count).filter_map(bias).collect()
}

fn sign(difference: f64, band: f64) -> f64 {
    // Decimal scores are not exact in binary.
    if difference.abs() <= band + 1e-12 { 0.0 } else { difference.signum() }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use std::collections::BTreeMap;

    use super::*;
    use crate::judge::{Score, Scores};

    #[derive(Deserialize)]
    struct Fixture {
        audits: Vec<Sample>,
    }

    #[derive(Deserialize)]
    struct Sample {
        band: f64,
        groups: Vec<SampleGroup>,
        measures: BTreeMap<String, (f64, usize)>,
    }

    #[derive(Deserialize)]
    struct SampleGroup {
        correct: Vec<Option<bool>>,
        lengths: Vec<usize>,
        rounds: Vec<SampleRound>,
    }

    #[derive(Deserialize)]
    struct SampleRound {
        order: u32,
        repeat: u32,
        places: Vec<usize>,
        scores: Vec<f64>,
    }

    fn group(sample: SampleGroup) -> AuditedGroup {
        let rounds: Vec<Round> = sample
            .rounds
            .into_iter()
            .map(|SampleRound { order, repeat, places, scores }| Round { order, repeat, places, scores })
            .collect();
        let count = sample.correct.len();
        let mean = |index: usize| {
            let score = rounds.iter().map(|round| round.scores[index]).sum::<f64>() / rounds.len() as f64;
            Some(Score { score, ..Score::default() })
        };
        let scores = Scores { scores: (0..count).map(mean).collect(), which: (0..count).collect(), rounds };
        AuditedGroup {
            correct: sample.correct,
            lengths: sample.lengths,
            scores: BTreeMap::from([(JudgeKind::Relative, scores)]),
            ..AuditedGroup::default()
        }
    }

    #[test]
    fn measures_match_scipy() {
        // Written by `tests/reference/judge_audit.py`.
        let fixture: Fixture =
            serde_json::from_str(include_str!("../../../tests/reference/fixtures/judge_audit.json")).unwrap();
        for Sample { band, groups, measures: expected } in fixture.audits {
            let groups: Vec<_> = groups.into_iter().map(group).collect();
            for (name, cases) in measures(&groups, JudgeKind::Relative, band) {
                let (value, n) = expected.get(name).copied().unwrap_or((f64::NAN, 0));
                assert_eq!(cases.count(), n, "{name}");
                let ours = if n == 0 { f64::NAN } else { cases.clusters().mean() };
                assert!(n == 0 || (ours - value).abs() < 1e-12, "{name}: {ours} against {value}");
            }
        }
    }

    #[test]
    fn a_measure_of_one_group_has_no_interval() {
        let judged = Scores {
            scores: [0.9, 0.1].map(|score| Some(Score { score, ..Score::default() })).to_vec(),
            ..Scores::default()
        };
        let one = AuditedGroup {
            ids: vec!["a".into(), "b".into()],
            correct: vec![Some(true), Some(false)],
            lengths: vec![1, 2],
            flags: vec![vec![], vec![Flag::Injection]],
            scores: BTreeMap::from([(JudgeKind::Command, judged)]),
        };
        let line = |row: &JudgeAudit| {
            let id = row.trajectory_id.as_deref().unwrap_or("-");
            format!("{} {} {id} {} {} n={}", row.judge, row.measure, row.value, row.low.is_some(), row.n)
        };
        let rows: Vec<String> = audit(std::slice::from_ref(&one), 0.0, 1).iter().map(line).collect();
        assert_eq!(
            rows,
            [
                "command rank_correlation - 1 false n=1",
                "command pairwise_accuracy - 1 false n=1",
                "command youden - 1 true n=2",
                "episodes empty - 0 true n=2",
                "episodes hedging - 0 true n=2",
                "episodes copied - 0 true n=2",
                "episodes injection - 0.5 true n=2",
                "episodes injection b 1 false n=1",
            ]
        );
        let two = audit(&[one.clone(), one], 0.0, 1);
        assert_eq!(two[0].low, Some(1.0));
        assert!(audit(&[], 0.0, 1).is_empty());
    }
}
