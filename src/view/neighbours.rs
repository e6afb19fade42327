//! Where an episode stands among those that a filter leaves: the page goes from one to the next.

use serde::Serialize;

use super::episodes::{Episodes, Filter, PageSpec};
use crate::data::{DataError, Label};

/// An episode by name. Two policies with equal weights have episodes with equal ids, so its row counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Named<'e> {
    pub stage: &'e str,
    pub id: &'e str,
    pub row: usize,
}

/// The place of an episode, and those beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Neighbours<'e> {
    /// From 1; none if the filter does not leave the episode.
    pub at: Option<usize>,
    pub matching: usize,
    pub before: Option<Named<'e>>,
    pub after: Option<Named<'e>>,
}

/// Filters and sorts as a page of the table, and finds the row of a stage's table.
///
/// # Errors
/// If conversations cannot be read for a search.
pub fn neighbours<'e>(
    episodes: &'e Episodes,
    filter: &Filter,
    order: &PageSpec,
    labels: &[Label],
    (stage, row): (&str, usize),
) -> Result<Neighbours<'e>, DataError> {
    let rows = episodes.rows(filter, order, labels)?;
    let table = |(table, _): &(u32, u32)| &episodes.tables[*table as usize];
    let is_it = |found: &(u32, u32)| found.1 as usize == row && table(found).source.stage == stage;
    let at = rows.iter().position(is_it);
    let named = |at: usize| {
        let found = rows.get(at)?;
        let (table, row) = (table(found), found.1 as usize);
        Some(Named { stage: &table.source.stage, id: &table.episodes[row].summary.id, row })
    };
    Ok(Neighbours {
        at: at.map(|at| at + 1),
        matching: rows.len(),
        before: at.and_then(|at| at.checked_sub(1)).and_then(named),
        after: at.and_then(|at| named(at + 1)),
    })
}
