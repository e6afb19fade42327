//! Which lists may be pages of something longer. They give values, and what one of their records says; they are no wholes.

use std::collections::BTreeMap;

use super::{
    graph::{Graph, SuccessfulCall},
    seeds::Param,
    sql,
    tools::ToolProfile,
};
use crate::{harvest::List, mcp::plain};

/// Shorter lists are no pages, if nothing else says so.
const SHORT: usize = 3;
/// Lengths that pages often have.
const USUAL: [usize; 9] = [10, 20, 25, 50, 100, 200, 250, 500, 1000];

/// Marks the lists that may be pages.
pub fn mark(graph: &mut Graph, profiles: &[ToolProfile]) {
    let longest = longest(graph, profiles);
    let is_sql: Vec<bool> = (0..graph.seen.len()).map(|call| sql::is_sql(graph, profiles, call)).collect();
    for (seen, _) in graph.seen.iter_mut().zip(is_sql).filter(|(_, is_sql)| !is_sql) {
        let profile = &profiles[seen.tool];
        let is_page = has_page(seen, profile);
        let limit = limit(seen, profile);
        let tool = seen.tool;
        for list in seen.reading.lists.iter_mut().filter(|list| list.is_list && !list.is_nested) {
            let length = list.records.len();
            let shared = longest.get(&(tool, list.name.clone()));
            // Several calls that end at the same length, or one of a tool that has pages.
            let is_longest = shared
                .is_some_and(|(most, calls)| length == *most && (*calls > 1 || limit == Limit::Unknown));
            let is_cut = match limit {
                Limit::Known(most) => length >= most,
                Limit::Unknown | Limit::None => false,
            };
            if is_page || is_cut || is_longest && length >= SHORT || USUAL.contains(&length) {
                list.cut();
            }
        }
    }
}

/// The length of the longest lists of each tool, and how many different results have it.
fn longest(graph: &Graph, profiles: &[ToolProfile]) -> BTreeMap<(usize, String), (usize, usize)> {
    let mut found: BTreeMap<(usize, String), BTreeMap<usize, Vec<&List>>> = BTreeMap::new();
    for seen in graph.seen.iter().filter(|seen| !has_page(seen, &profiles[seen.tool])) {
        for list in seen.reading.lists.iter().filter(|list| !list.is_nested) {
            let of_length = found.entry((seen.tool, list.name.clone())).or_default();
            let lists = of_length.entry(list.records.len()).or_default();
            if lists.iter().all(|other| other.records != list.records) {
                lists.push(list);
            }
        }
    }
    let last = |of_length: BTreeMap<usize, Vec<&List>>| {
        of_length.into_iter().next_back().map(|(most, lists)| (most, lists.len()))
    };
    found.into_iter().filter_map(|(list, of_length)| Some((list, last(of_length)?))).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Limit {
    None,
    Known(usize),
    /// The tool has a limit, and nothing says which.
    Unknown,
}

fn limit(seen: &SuccessfulCall, profile: &ToolProfile) -> Limit {
    let of = |param: &Param| {
        let given = seen.call.arguments.get(&param.name).or(param.default.as_ref());
        given.and_then(|value| plain(value).parse().ok())
    };
    match profile.params.iter().find(|param| param.is_limit()) {
        Some(param) => of(param).map_or(Limit::Unknown, Limit::Known),
        None if profile.params.iter().any(Param::is_page) => Limit::Unknown,
        None => Limit::None,
    }
}

/// Whether a call asks for one page.
fn has_page(seen: &SuccessfulCall, profile: &ToolProfile) -> bool {
    let is_given = |param: &&Param| seen.call.arguments.contains_key(&param.name);
    profile.params.iter().filter(is_given).any(Param::is_page)
}

/// Whether a call says how much of something it wants, which nobody asks for.
pub fn is_paged(seen: &SuccessfulCall, profile: &ToolProfile) -> bool {
    let is_given = |param: &&Param| seen.call.arguments.contains_key(&param.name);
    profile.params.iter().filter(is_given).any(|param| param.is_page() || param.is_limit())
}
