//! Comparisons of policies: the verdict at once, the scenarios in pages.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{answers::text, query::Query, site::Site};
use crate::{
    error::Result,
    view::{
        Run,
        episodes::{Episodes, Unavailable},
        exam::{Change, Exam, Pair, exam},
    },
};

/// Most pairs of a page.
const MOST_PAIRS: usize = 200;

/// The comparisons of a run without their scenarios.
pub(super) fn exams(run: &Run) -> Value {
    let (mut found, mut unavailable) = (Vec::new(), Vec::new());
    for stage in run.writers("verdict") {
        match exam(stage) {
            Ok(Exam { stage, policies, mode, sentences, headline, rows }) => {
                let advice = headline.as_ref().and_then(|found| Some(found.advice.as_ref()?.sentence()));
                found.push(json!({
                    "stage": stage, "policies": policies, "mode": mode, "sentences": sentences,
                    "headline": headline, "advice": advice, "rows": rows,
                }));
            }
            Err(problem) => {
                unavailable.push(Unavailable { stage: stage.id.clone(), problem: problem.to_string() })
            }
        }
    }
    json!({ "exams": found, "unavailable": unavailable })
}

/// The scenarios of a comparison, filtered.
pub(super) fn pairs(site: &Site, run: &str, query: &Query) -> Result<String> {
    let stage = query.required("stage")?;
    let pairs = site.pairs(run, stage)?;
    let episodes = site.loaded(run)?;
    let change = query.named("change", |name| {
        [Change::Won, Change::Lost, Change::StillWrong, Change::StillRight]
            .into_iter()
            .find(|change| change.name().replace(' ', "-") == name)
    })?;
    let calls_tool = query.text("tool").map(|tool| scenarios_with(&episodes, stage, tool));
    let passes = |pair: &&Pair| {
        // As many as the verdict counts, unless a split is asked for.
        query.text("split").map_or(pair.is_counted, |wanted| wanted == pair.split)
            && query.allows("family", &pair.family)
            && query.allows("policy", &pair.policy)
            && calls_tool.as_ref().is_none_or(|scenarios| scenarios.contains(pair.scenario.as_str()))
    };
    let (all, problem) = match &*pairs {
        Ok(pairs) => (pairs.as_slice(), None),
        Err(problem) => (&[][..], Some(problem.to_string())),
    };
    let mut matching: Vec<&Pair> = all.iter().filter(passes).collect();
    let mut counts: BTreeMap<Change, usize> = BTreeMap::new();
    for pair in &matching {
        *counts.entry(pair.change).or_default() += 1;
    }
    matching.retain(|pair| change.is_none_or(|change| pair.change == change));
    // Failures come first.
    matching.sort_by_key(|pair| match pair.change {
        Change::Lost => 0,
        Change::StillWrong => 1,
        Change::Won => 2,
        Change::StillRight => 3,
    });
    let offset = query.parsed("offset")?.unwrap_or(0);
    let limit = query.parsed("limit")?.unwrap_or(30).min(MOST_PAIRS);
    let pairs: Vec<&&Pair> = matching.iter().skip(offset).take(limit).collect();
    text(&json!({
        "counts": counts, "matching": matching.len(), "offset": offset, "pairs": pairs, "problem": problem,
    }))
}

/// The scenarios in which a policy called a tool.
fn scenarios_with<'e>(episodes: &'e Episodes, stage: &str, tool: &str) -> BTreeSet<&'e str> {
    let rows = episodes.table(stage).into_iter().flat_map(|table| &table.episodes);
    let calling = rows.filter(|episode| episode.summary.tools.iter().any(|called| called == tool));
    calling.map(|episode| episode.summary.scenario_id.as_str()).collect()
}
