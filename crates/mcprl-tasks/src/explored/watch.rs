//! Calls that are made again, to see what changes: a server whose state should not, or a result by itself.
//!
//! A result that differs although nothing was called in between is random or follows a clock. Its tool is named, and no other
//! tool is blamed for it.

use std::collections::{BTreeMap, BTreeSet};

use super::{changes, changing::Changing, graph::Graph, tools::ToolProfile};
use tokio::time::{Instant, sleep_until};

use crate::{
    chat::ToolCall,
    error::Result,
    live::Live,
    runner::{Runner, TICK},
};

/// Calls whose results show the state.
const WATCHED: usize = 8;
/// Calls of a tool that are repeated, and how often. A tool without arguments has but one.
const CALLS: usize = 2;
const REPEATS: usize = 4;
const REPEATS_OF_ONE: usize = 10;

struct Watched {
    tool: usize,
    call: ToolCall,
    text: String,
}

#[derive(Default)]
pub struct Watch {
    calls: Vec<Watched>,
    /// Calls that were repeated, by tool.
    repeated: BTreeMap<usize, usize>,
    changing: BTreeMap<usize, Changing>,
    /// When a call was repeated last.
    last: Option<Instant>,
    /// Tools behind which other results differed, and the tools of these results.
    blamed: BTreeMap<usize, BTreeSet<usize>>,
}

impl Watch {
    /// What changes by itself, by tool.
    pub fn changing(&self) -> &BTreeMap<usize, Changing> {
        &self.changing
    }

    /// Repeats calls that worked, and watches them unless all of the result changes by itself.
    pub async fn add(&mut self, tool: usize, worked: Vec<ToolCall>, runner: &Runner<'_>) {
        for call in worked {
            let count = self.repeated.entry(tool).or_default();
            if *count >= CALLS || runner.is_late() {
                return;
            }
            *count += 1;
            let times = if call.arguments.is_empty() { REPEATS_OF_ONE } else { REPEATS };
            let mut texts = repeated(runner.live, &call, times).await;
            self.last = Some(Instant::now());
            self.learn(tool, &texts);
            let is_first = self.calls.iter().all(|watched| watched.tool != tool);
            if let Some(text) = texts.pop().filter(|_| is_first) {
                self.calls.push(Watched { tool, call, text });
            }
        }
    }

    /// The same where every session has a state of its own: tools that read are called several times in one.
    pub async fn try_readers(
        &mut self,
        graph: &Graph,
        profiles: &[ToolProfile],
        runner: &Runner<'_>,
    ) -> Result<()> {
        let mut calls: Vec<(usize, ToolCall)> = Vec::new();
        for seen in graph.seen.iter().filter(|seen| changes::reads(&profiles[seen.tool])) {
            if calls.iter().filter(|(tool, _)| *tool == seen.tool).count() < CALLS {
                calls.push((seen.tool, seen.call.clone()));
            }
        }
        let sequences: Vec<Vec<ToolCall>> =
            calls.iter().map(|(_, call)| vec![call.clone(); REPEATS]).collect();
        for ((tool, _), outcomes) in calls.iter().zip(runner.run(&sequences).await?) {
            let worked = outcomes.into_iter().filter(|outcome| !outcome.is_error);
            self.learn(*tool, &worked.map(|outcome| outcome.text).collect::<Vec<_>>());
        }
        Ok(())
    }

    /// Notes what differs between results of one call.
    fn learn(&mut self, tool: usize, texts: &[String]) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let Some(found) = Changing::between(&texts) else { return };
        let known = self.changing.remove(&tool);
        let both = match (known, found) {
            (Some(Changing::Fields(one)), Changing::Fields(other)) => Changing::Fields(&one | &other),
            (None, found) => found,
            _ => Changing::All,
        };
        self.changing.insert(tool, both);
    }

    fn stable(&self, tool: usize, text: &str) -> String {
        Changing::stable(self.changing.get(&tool), text)
    }

    /// The tools whose results differ from the last ones, with both. Those that differ again at once are none of them.
    async fn differing(&mut self, live: &Live, most: usize) -> Vec<(usize, String, String)> {
        let mut differing = Vec::new();
        for at in 0..self.calls.len().min(most) {
            let Watched { tool, call, text } = &self.calls[at];
            let (tool, before) = (*tool, text.clone());
            if self.changing.get(&tool) == Some(&Changing::All) {
                continue;
            }
            let Some(now) = repeated(live, call, 1).await.pop() else { continue };
            if self.stable(tool, &now) == self.stable(tool, &before) {
                continue;
            }
            let mut texts = vec![now.clone()];
            texts.extend(repeated(live, call, REPEATS).await);
            self.learn(tool, &texts);
            self.calls[at].text.clone_from(&now);
            let is_random = self.changing.get(&tool) == Some(&Changing::All);
            if !is_random && self.stable(tool, &now) != self.stable(tool, &before) {
                differing.push((tool, before, now));
            }
        }
        differing
    }

    /// Whether a tool that was called since then has changed something.
    pub async fn blames(&mut self, tool: usize, worked: &[ToolCall], live: &Live) -> bool {
        let differing = self.differing(live, WATCHED).await;
        // What differs alone, and in its digits, may count time. Then another call does not change it once more.
        if let [(other, before, now)] = &*differing
            && without_digits(before) == without_digits(now)
        {
            if let Some(call) = worked.first() {
                repeated(live, call, 1).await;
            }
            if self.differing(live, WATCHED).await.is_empty() {
                self.learn(*other, &[before.clone(), now.clone()]);
                return false;
            }
        }
        let differing: BTreeSet<usize> = differing.into_iter().map(|(other, ..)| other).collect();
        let is_blamed = !differing.is_empty();
        if is_blamed {
            self.blamed.entry(tool).or_default().extend(differing);
        }
        is_blamed
    }

    /// Notes what differs although nothing was called in between, but for the time that a clock needs.
    pub async fn refresh(&mut self, live: &Live) {
        if let Some(last) = self.last {
            sleep_until(last + TICK).await;
        }
        for (tool, before, now) in self.differing(live, WATCHED).await {
            self.learn(tool, &[before, now]);
        }
    }

    /// Whether the state differs from the last one that was seen: results of several tools do. One alone follows a clock.
    pub async fn has_changed(&mut self, live: &Live) -> bool {
        let differing = self.differing(live, usize::MAX).await;
        for (tool, before, now) in &differing {
            self.learn(*tool, &[before.clone(), now.clone()]);
        }
        differing.iter().map(|(tool, ..)| tool).collect::<BTreeSet<_>>().len() > 1
    }

    /// The names of tools that changed what does not change by itself.
    pub fn blamed(&self, profiles: &[ToolProfile]) -> BTreeSet<String> {
        let is_changed = |tool: &usize| !self.changing.contains_key(tool);
        let blamed = self.blamed.iter().filter(|(_, others)| others.iter().any(is_changed));
        blamed.map(|(tool, _)| profiles[*tool].name.clone()).collect()
    }

    /// What the user should know.
    pub fn notes(&self, profiles: &[ToolProfile]) -> Vec<String> {
        let breaking = self.blamed(profiles).into_iter().map(|name| {
            format!(
                "`{name}` changes the server's state, although state = \"read-only\": it is not called again"
            )
        });
        let is_read =
            |changing: &Changing| !matches!(changing, Changing::Fields(fields) if fields.is_empty());
        let changing =
            self.changing.iter().filter(|(_, changing)| is_read(changing)).map(|(tool, changing)| {
                let name = &profiles[*tool].name;
                match changing {
                    Changing::All => {
                        format!("`{name}` answers the same call differently by itself: no task uses it")
                    }
                    Changing::Fields(fields) => {
                        let fields = Vec::from_iter(fields.iter().map(String::as_str)).join(", ");
                        format!("{fields} of `{name}` change by themselves: no task asks for them")
                    }
                }
            });
        breaking.chain(changing).collect()
    }
}

fn without_digits(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// The results of a call that is made so often, without those that fail.
async fn repeated(live: &Live, call: &ToolCall, times: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..times {
        match live.call_again(call).await {
            Ok(outcome) if !outcome.is_error => texts.push(outcome.text),
            _ => {}
        }
    }
    texts
}
