//! The tokens of one episode: exactly what was sampled and trained on.

use std::path::PathBuf;

use serde::Serialize;

use super::episodes::{EpisodeTable, IndexedEpisode};
use crate::{
    chat::Vocabulary,
    data::{self, DataError, REFERENCE, Trajectory},
    hash::Digest,
    stage::policy::AdapterOf,
    store::Store,
};

/// A part of an episode's tokens. The lists have equal length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenPage {
    /// Tokens of the episode, all rows together.
    pub total: usize,
    pub from: usize,
    /// Index of the first token of each row that is trained on.
    pub rows: Vec<u32>,
    pub ids: Vec<u32>,
    /// Text of each token. Where several tokens make one character, the first has it and the others have none. Absent
    /// without a tokenizer.
    pub texts: Option<Vec<String>>,
    /// Why there is no tokenizer.
    pub problem: Option<String>,
    /// Whether the token is a control token.
    pub control: Vec<bool>,
    /// Whether the policy sampled the token. The policy's loss covers these alone.
    pub sampled: Vec<bool>,
    /// Log-probability at sampling, in nats; absent for given tokens and those of a reference solution.
    pub logprobs: Vec<Option<f32>>,
    /// The advantage that every sampled token carries; absent if none is trained on.
    pub advantage: Option<f64>,
    /// Over the whole episode.
    pub sampled_count: usize,
    pub mean_logprob: Option<f64>,
    /// The least likely sampled tokens of the whole episode, by index.
    pub least_likely: Vec<usize>,
}

/// Number of least likely tokens that are listed.
const LEAST: usize = 10;

/// The folder with the tokenizer of a policy: its own, or that of its adapter's model.
pub fn tokenizer_folder(store: &Store, policy: &str) -> Option<(Digest, PathBuf)> {
    let digest: Digest = policy.parse().ok()?;
    let folder = store.artifact(&digest);
    match std::fs::read(folder.join("policy.json")) {
        Ok(text) => {
            let base = serde_json::from_slice::<AdapterOf>(&text).ok()?.base;
            Some((base, store.artifact(&base)))
        }
        Err(_) => Some((digest, folder)),
    }
}

/// Reads `limit` tokens of an episode, from this one.
///
/// # Errors
/// If the table cannot be read.
pub fn tokens(
    table: &EpisodeTable,
    row: usize,
    found: &IndexedEpisode,
    vocabulary: Result<&Vocabulary, String>,
    from: usize,
    limit: usize,
) -> Result<TokenPage, DataError> {
    let trajectory: Trajectory = data::read_part(&table.source.path, Some(&[row]))?.pop().unwrap_or_default();
    let total = trajectory.tokens.len();
    let is_sampled = |index: usize| trajectory.sampled.get(index).copied().unwrap_or(false);
    let is_reference = trajectory.policy == REFERENCE;
    let logprob = |index: usize| {
        let logprob = trajectory.logprobs.get(index).copied().filter(|logprob| logprob.is_finite());
        logprob.filter(|_| is_sampled(index) && !is_reference)
    };
    let mut sampled: Vec<(usize, f32)> =
        (0..total).filter_map(|index| Some((index, logprob(index)?))).collect();
    let sum: f64 = sampled.iter().map(|(_, logprob)| f64::from(*logprob)).sum();
    let mean = (!sampled.is_empty()).then(|| sum / sampled.len() as f64);
    sampled.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let range = from.min(total)..from.saturating_add(limit).min(total);
    let ids = trajectory.tokens[range.clone()].to_vec();
    let (texts, control, problem) = match vocabulary {
        Ok(vocabulary) => {
            // A token before the part decides whether the first one begins with a space.
            let before = range.start.saturating_sub(1);
            let texts = vocabulary.pieces(&trajectory.tokens[before..range.end]);
            let texts = texts[range.start - before..].to_vec();
            (Some(texts), ids.iter().map(|id| vocabulary.is_control(*id)).collect(), None)
        }
        Err(problem) => (None, vec![false; ids.len()], Some(problem)),
    };
    Ok(TokenPage {
        total,
        from: range.start,
        rows: std::iter::once(0).chain(trajectory.row_starts.iter().flatten().copied()).collect(),
        ids,
        texts,
        problem,
        control,
        sampled: range.clone().map(is_sampled).collect(),
        logprobs: range.map(logprob).collect(),
        advantage: found.advantage.map(|advantage| advantage.unwrap_or(0.0)),
        sampled_count: (0..total).filter(|index| is_sampled(*index)).count(),
        mean_logprob: mean,
        least_likely: sampled.iter().take(LEAST).map(|(index, _)| *index).collect(),
    })
}
