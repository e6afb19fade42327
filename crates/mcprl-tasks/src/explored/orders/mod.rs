//! Tasks that a person orders and that change something, in one to four calls.
//!
//! Only where every session has a state of its own. An order is executed, and reading calls before and after show what it changed:
//! that becomes its checks. What the server refuses, and a condition that does not hold, must leave all as it is.

mod contents;
mod deeds;
mod making;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::{
    deeds::{Deed, Things, typed},
    making::{Expected, Maker, Order},
};
use super::{
    changes::{self, ahead},
    graph::{self, Graph},
    templates,
    tools::ToolProfile,
};
use crate::{
    admission::Today,
    answer_rule::{AnswerRule, value_of},
    candidate::{CANNOT, Candidate, Check, UNCHANGED},
    chat::ToolCall,
    data::{Checks, StateCheck, TextCheck},
    error::Result,
    harvest::{self, Record},
    judge::state,
    mcp::{Outcome, plain},
    mix::in_turn,
    runner::Runner,
    words,
};

/// Beginning of the names of families.
pub const ORDER: &str = "order";
/// Most orders that are executed, and those of each tool that are executed twice to see what differs by itself.
const ORDERS: usize = 160;
const TWICE: usize = 2;
/// Reading calls behind an order: near ones, and in all. Longest state that is compared.
const NEAR: usize = 3;
const PROBES: usize = 6;
const STATE_BYTES: usize = 24_000;
/// What stands in a result whose middle was cut.
const CUT: &str = " bytes left out …]";
/// Longest reason of a server.
const REASON: usize = 160;

/// What a reading call shows before anything is changed.
struct Before {
    value: Value,
    /// Fields that change by themselves.
    ignore: BTreeSet<String>,
}

/// What is executed: an order with the reading calls behind it.
struct Trial {
    order: Order,
    probes: Vec<ToolCall>,
}

/// Orders that wait, and what those that were executed have shown.
pub struct Orders<'g> {
    graph: &'g Graph,
    profiles: &'g [ToolProfile],
    things: Vec<Things>,
    deeds: Vec<Deed<'g>>,
    seed: u64,
    result_chars: usize,
    waiting: Vec<Order>,
    /// The sentences so far, and the number of orders that were executed.
    told: BTreeSet<String>,
    tried: usize,
    /// The states before, by call.
    before: BTreeMap<String, Before>,
    /// What differs between two executions, and how many were executed twice, by tool.
    varying: BTreeMap<usize, BTreeSet<String>>,
    twice: BTreeMap<usize, usize>,
    /// What each tool that worked does to the state of a thing.
    lessons: BTreeMap<usize, Lesson>,
    /// The tools that have orders on a condition.
    conditioned: BTreeSet<usize>,
}

impl<'g> Orders<'g> {
    pub fn new(graph: &'g Graph, profiles: &'g [ToolProfile], seed: u64, result_chars: usize) -> Self {
        let things = deeds::things(graph, profiles);
        let deeds = deeds::deeds(graph, profiles, &things);
        let mut orders = Self {
            graph,
            profiles,
            things,
            deeds,
            seed,
            result_chars,
            waiting: Vec::new(),
            told: BTreeSet::new(),
            tried: 0,
            before: BTreeMap::new(),
            varying: BTreeMap::new(),
            twice: BTreeMap::new(),
            lessons: BTreeMap::new(),
            conditioned: BTreeSet::new(),
        };
        let maker = orders.maker();
        let mut all: Vec<Order> = orders.deeds.iter().flat_map(|deed| maker.orders(deed)).flatten().collect();
        let mut named: BTreeSet<usize> = all.iter().map(|order| order.tool).collect();
        named.extend(deeds::about_nothing(graph, profiles, &orders.things));
        all.extend(plain_orders(graph, profiles).into_iter().filter(|order| !named.contains(&order.tool)));
        orders.add(all);
        orders
    }

    fn maker(&self) -> Maker<'_> {
        Maker {
            profiles: self.profiles,
            things: &self.things,
            result_chars: self.result_chars,
            seed: self.seed,
        }
    }

    /// Puts orders among those that wait: tool by tool, and kind by kind.
    fn add(&mut self, orders: Vec<Order>) {
        let is_new = |order: &Order| {
            !is_of_server(&self.profiles[order.tool].name) && self.told.insert(order.task.clone())
        };
        let mut all = std::mem::take(&mut self.waiting);
        all.extend(orders.into_iter().filter(is_new));
        let of_kind = |all| in_turn(all, |order: &Order| order.kind, |orders| orders);
        self.waiting = in_turn(all, |order: &Order| order.tool, of_kind);
    }

    /// Orders on a condition, of the tools that have worked by now.
    fn add_conditional(&mut self) {
        let mut found = Vec::new();
        for deed in &self.deeds {
            if let Some(lesson) = self.lessons.get(&deed.tool)
                && self.conditioned.insert(deed.tool)
            {
                found.extend(self.maker().conditional_orders(deed, lesson));
            }
        }
        if !found.is_empty() {
            self.add(found);
        }
    }

    /// Whether none is left.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() || self.tried >= ORDERS
    }

    /// Executes the next orders, and makes candidates of those that do what they say.
    ///
    /// # Errors
    /// If the stage is cancelled or the server is lost.
    pub async fn next(&mut self, most: usize, runners: &[Runner<'_>; 2]) -> Result<Vec<Candidate>> {
        self.add_conditional();
        let count = most.min(ORDERS.saturating_sub(self.tried)).min(self.waiting.len());
        self.tried += count;
        let orders: Vec<Order> = self.waiting.drain(..count).collect();
        let trials: Vec<Trial> = orders
            .into_iter()
            .map(|order| Trial { probes: probes(self.graph, self.profiles, &self.things, &order), order })
            .collect();
        runners[0].observer.phase("orders", trials.len() as u64);
        self.look(&trials, runners).await?;
        self.executed(trials, runners).await
    }

    /// Notes the states before that are not known yet. A call whose result is long, fails or changes by itself is none.
    async fn look(&mut self, trials: &[Trial], runners: &[Runner<'_>; 2]) -> Result<()> {
        let mut calls: BTreeMap<String, ToolCall> = BTreeMap::new();
        for probe in trials.iter().flat_map(|trial| &trial.probes) {
            if !self.before.contains_key(&written(probe)) {
                calls.entry(written(probe)).or_insert_with(|| probe.clone());
            }
        }
        let sequences: Vec<Vec<ToolCall>> = calls.values().map(|call| vec![call.clone()]).collect();
        let outcomes = [runners[0].run(&sequences).await?, runners[1].run(&sequences).await?];
        for (key, outcomes) in calls.into_keys().zip(outcomes[0].iter().zip(&outcomes[1])) {
            let (Some(one), Some(other)) =
                (outcomes.0.first().and_then(shown), outcomes.1.first().and_then(shown))
            else {
                continue;
            };
            if let Some(ignore) = state::differing(&one, &other) {
                self.before.insert(key, Before { value: one, ignore });
            }
        }
        Ok(())
    }

    async fn executed(&mut self, trials: Vec<Trial>, runners: &[Runner<'_>; 2]) -> Result<Vec<Candidate>> {
        let sequence = |trial: &Trial| -> Vec<ToolCall> {
            let probes = trial.probes.iter().filter(|probe| self.before.contains_key(&written(probe)));
            trial.order.calls.iter().chain(probes).cloned().collect()
        };
        let sequences: Vec<Vec<ToolCall>> = trials.iter().map(sequence).collect();
        let first = runners[0].run(&sequences).await?;
        self.vary(&trials, &sequences, &first, &runners[1]).await?;
        let today = Today::now();
        let mut found = Vec::new();
        for (trial, outcomes) in trials.into_iter().zip(first) {
            let varying = self.varying.get(&trial.order.tool).cloned().unwrap_or_default();
            let Some(states) = states(&trial, &outcomes, &self.before, varying, &today) else { continue };
            let (target, tool) = (trial.order.target, trial.order.tool);
            let made = candidate(trial.order, &outcomes, states, self.profiles);
            let works = made.as_ref().is_some_and(|(_, is_refused)| !is_refused);
            if let Some((things, record)) = target {
                let lesson = works.then(|| self.lessons.entry(tool).or_default());
                lesson.into_iter().for_each(|lesson| lesson.learn(&self.things[things], record, &outcomes));
            } else if works {
                self.lessons.entry(tool).or_default();
            }
            found.extend(made.map(|(candidate, is_refused)| (candidate, tool, is_refused)));
        }
        // A tool that never works refuses its values, and no order.
        found.retain(|(_, tool, is_refused)| !is_refused || self.lessons.contains_key(tool));
        Ok(found.into_iter().map(|(candidate, ..)| candidate).collect())
    }

    /// Executes some orders that worked a second time, and notes what differs.
    async fn vary(
        &mut self,
        trials: &[Trial],
        sequences: &[Vec<ToolCall>],
        first: &[Vec<Outcome>],
        runner: &Runner<'_>,
    ) -> Result<()> {
        let mut places = Vec::new();
        for (place, trial) in trials.iter().enumerate() {
            let works = first[place].len() == sequences[place].len()
                && first[place][..trial.order.calls.len()].iter().all(|outcome| !outcome.is_failure());
            let count = self.twice.entry(trial.order.tool).or_default();
            if works && *count < TWICE {
                *count += 1;
                places.push(place);
            }
        }
        let again: Vec<Vec<ToolCall>> = places.iter().map(|place| sequences[*place].clone()).collect();
        for (place, other) in places.into_iter().zip(runner.run(&again).await?) {
            for (one, other) in first[place].iter().zip(&other) {
                let (Some(one), Some(other)) = (shown(one), shown(other)) else { continue };
                self.varying
                    .entry(trials[place].order.tool)
                    .or_default()
                    .extend(state::differing(&one, &other).unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// What a tool does to the state of the things that it changes.
#[derive(Debug, Default)]
pub struct Lesson {
    /// The values of a field before it is changed.
    pub changed: BTreeMap<String, BTreeSet<String>>,
    /// The values of fields of the things that it worked on.
    pub worked: BTreeMap<String, BTreeSet<String>>,
}

impl Lesson {
    /// Compares a thing with what the calls behind an order show of it.
    fn learn(&mut self, things: &Things, record: usize, outcomes: &[Outcome]) {
        let before = &things.records[record];
        let key = things.key_of(before);
        let after = outcomes.iter().rev().find_map(|outcome| record_in(&outcome.text, &things.key, key));
        for (field, _) in things.categories() {
            let Some(old) = value_of(before, field) else { continue };
            self.worked.entry(field.to_owned()).or_default().insert(old.to_owned());
            let new = after.as_ref().and_then(|after| value_of(after, field));
            if new.is_some_and(|new| new != old) {
                self.changed.entry(field.to_owned()).or_default().insert(old.to_owned());
            }
        }
    }
}

/// The record with a key in a result.
fn record_in(text: &str, key: &str, value: &str) -> Option<Record> {
    let lists = harvest::read(text).lists.into_iter().filter(|list| !list.is_nested);
    lists.flat_map(|list| list.records).find(|record| value_of(record, key) == Some(value))
}

/// Whether a tool is about the server itself or computes: nobody orders that something changes by it.
fn is_of_server(tool: &str) -> bool {
    const WORDS: [&str; 13] = [
        "calculate",
        "compute",
        "evaluate",
        "think",
        "convert",
        "echo",
        "ping",
        "sleep",
        "wait",
        "state",
        "session",
        "cache",
        "reset",
    ];
    words::split(tool).iter().any(|word| WORDS.contains(&word.as_str()))
}

/// The state that a result shows, if it can be compared.
fn shown(outcome: &Outcome) -> Option<Value> {
    let is_good = !outcome.is_failure() && outcome.text.len() <= STATE_BYTES && !outcome.text.contains(CUT);
    is_good.then(|| state::structure(&outcome.text))
}

fn written(call: &ToolCall) -> String {
    serde_json::json!(call).to_string()
}

/// The state afterwards by call, and whether it is another one. None if a call is missing, or fails.
fn states(
    trial: &Trial,
    outcomes: &[Outcome],
    before: &BTreeMap<String, Before>,
    varying: BTreeSet<String>,
    today: &Today,
) -> Option<Vec<(StateCheck, bool)>> {
    let known = trial.probes.iter().filter_map(|probe| Some((probe, before.get(&written(probe))?)));
    let known: Vec<(&ToolCall, &Before)> = known.collect();
    let after = outcomes.get(trial.order.calls.len()..)?;
    if after.len() != known.len() {
        return None;
    }
    let ordered: String = trial.order.calls.iter().map(written).collect();
    let state = |((probe, before), outcome): ((&ToolCall, &Before), &Outcome)| {
        let after = shown(outcome)?;
        let mut ignore = &before.ignore | &varying;
        // A time of the call is another one next time.
        let times = state::fields_with(&after, &|text| today.is_now(text));
        ignore.extend(
            times.difference(&state::fields_with(&before.value, &|text| today.is_now(text))).cloned(),
        );
        // So is one that is counted from today, which neither the order nor the state before says.
        let is_new = |day: &str| !ordered.contains(day) && !before.value.to_string().contains(day);
        ignore.extend(state::fields_with(&after, &|text| ahead(today, text).is_some_and(is_new)));
        let stands = |name: &String| {
            let own = |value: &Value| !state::fields_with(value, &|_| true).contains(name);
            !(own(&after) && own(&before.value))
        };
        let ignore: Vec<String> = ignore.into_iter().filter(stands).collect();
        let (same, old) = (state::normal(&after, &ignore), state::normal(&before.value, &ignore));
        let is_changed = same != old;
        let expect = TextCheck { same: Some(same), ignore, ..TextCheck::default() };
        let before = is_changed.then_some(old);
        Some((
            StateCheck { tool: probe.name.clone(), arguments: probe.arguments.clone(), expect, before },
            is_changed,
        ))
    };
    known.into_iter().zip(after).map(state).collect()
}

/// A candidate, and whether the server refuses it.
fn candidate(
    mut order: Order,
    executed: &[Outcome],
    states: Vec<(StateCheck, bool)>,
    profiles: &[ToolProfile],
) -> Option<(Candidate, bool)> {
    let outcomes = &executed[..order.calls.len()];
    let is_changed = states.iter().any(|(_, is_changed)| *is_changed);
    if states.is_empty() {
        return None;
    }
    let (last, earlier) = outcomes.split_last()?;
    if earlier.iter().any(Outcome::is_failure) {
        return None;
    }
    let fails = last.is_failure();
    let reason = reason(&last.text);
    let is_refused = match order.expected {
        Expected::Changed if !fails && is_changed => false,
        // Someone orders what is done already.
        Expected::Changed if fails && order.kind == "direct" && !is_changed && says_state(&reason) => {
            order.kind = "refused";
            true
        }
        Expected::Refused if (fails || says_state(&last.text) && last.text.len() < 300) && !is_changed => {
            true
        }
        Expected::Unchanged if !fails && !is_changed => false,
        _ => return None,
    };
    if let Some((key, values)) = &order.found {
        let found = keys_in(&outcomes.first()?.text, key);
        if found != values.iter().cloned().collect() {
            return None;
        }
    }
    let pattern = match (is_refused, order.expected) {
        (true, _) => Some(CANNOT),
        (_, Expected::Unchanged) => Some(UNCHANGED),
        _ => None,
    };
    let closing = if is_refused { format!("It cannot be done: {reason}.") } else { order.closing };
    let answer = pattern.map(|pattern| TextCheck { matches: Some(pattern.into()), ..TextCheck::default() });
    let name = &profiles[order.tool].name;
    let server_name = |check: StateCheck| {
        let own = profiles.iter().find(|profile| profile.name == check.tool);
        StateCheck { tool: own.map_or(check.tool, |own| own.server_name.clone()), ..check }
    };
    let state = states.into_iter().map(|(check, _)| server_name(check)).collect();
    let candidate = Candidate {
        family: format!("{ORDER} {}: {name}", order.kind),
        entity: order.entity,
        task: order.task,
        phrasing: format!("{ORDER} {}", order.kind),
        calls: order.calls,
        rule: AnswerRule::Nothing,
        check: Check::None,
        checks: Some(Checks { answer: answer.into_iter().collect(), state, ..Checks::default() }),
        may_fail: is_refused,
        closing: Some(templates::sentence(&closing)),
        executed: executed.to_vec(),
        ..Candidate::default()
    };
    Some((candidate, is_refused))
}

/// The values of a field in a result's lists.
fn keys_in(text: &str, key: &str) -> BTreeSet<String> {
    let lists = harvest::read(text).lists.into_iter().filter(|list| !list.is_nested);
    let fields = lists.flat_map(|list| list.records).flatten();
    fields.filter(|field| field.name == key).map(|field| field.value).collect()
}

/// What the server says, in a short sentence without its frame.
fn reason(text: &str) -> String {
    let structure = state::structure(text);
    let said =
        ["error", "message", "detail", "reason"].iter().find_map(|name| structure.get(name)).map(plain);
    let text = said.unwrap_or_else(|| text.to_owned());
    let mut line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    while let Some((head, rest)) = line.split_once(": ") {
        let head = head.to_lowercase();
        let is_frame = ["error", "exception", "failed", "calling tool", "executing tool"]
            .iter()
            .any(|word| head.contains(word));
        if !is_frame || rest.trim().is_empty() {
            break;
        }
        line = rest.trim();
    }
    let line = line.trim_end_matches(['.', '!']);
    match line.chars().count() {
        0 => "the server refuses it".into(),
        count if count > REASON => "the server refuses it".into(),
        _ => line.to_owned(),
    }
}

/// Whether a text says that something is not there or not possible, and no more than that an argument has the wrong form.
fn says_state(text: &str) -> bool {
    let text = text.to_lowercase();
    let form =
        ["validation", "must be", "should be", "invalid", "expected", "required", "missing argument", "type"];
    let says = [
        "not",
        "already",
        "no ",
        "cannot",
        "can't",
        "unavailable",
        "only",
        "unknown",
        "exceed",
        "insufficient",
        "full",
    ];
    says.iter().any(|word| text.contains(word)) && !form.iter().any(|word| text.contains(word))
}

/// Reading calls that show what an order changes, and what it must not: those about its values, and lists without arguments.
fn probes(graph: &Graph, profiles: &[ToolProfile], things: &[Things], order: &Order) -> Vec<ToolCall> {
    let writes = order.calls.iter().filter(|call| profiles[order.tool].name == call.name);
    let mut values: BTreeSet<String> = BTreeSet::new();
    writes.for_each(|call| call.arguments.values().for_each(|value| changes::add_values(value, &mut values)));
    values.extend(order.entity.values().cloned());
    let mut near: Vec<ToolCall> = Vec::new();
    let add = |calls: &mut Vec<ToolCall>, call: ToolCall| {
        if !calls.contains(&call) {
            calls.push(call);
        }
    };
    for list in things {
        let own = list.records.iter().map(|record| list.key_of(record)).find(|key| values.contains(*key));
        let Some(key) = own else { continue };
        for (tool, param) in &list.getters {
            let profile = &profiles[*tool];
            let param = profile.params.iter().find(|own| own.name == *param);
            if let Some((param, value)) = param.and_then(|param| Some((param, typed(param, key)?))) {
                add(&mut near, deeds::call(profile, [(param.name.clone(), value)]));
            }
        }
    }
    for index in changes::probes(graph, profiles, order.tool, &order.calls[order.calls.len() - 1]) {
        let seen = &graph.seen[index];
        if !seen.args.is_empty() && !near.iter().any(|call| call.name == seen.call.name) {
            add(&mut near, seen.call.clone());
        }
    }
    near.truncate(NEAR);
    let mut probes = near;
    let own = |seen: &&graph::SuccessfulCall| {
        seen.args.is_empty() && changes::reads(&profiles[seen.tool]) && !graph.is_random(seen.tool)
    };
    for seen in graph.seen.iter().filter(own).take(PROBES) {
        add(&mut probes, seen.call.clone());
    }
    probes.truncate(PROBES);
    probes
}

/// Orders in the words of the tool's description, for tools that take structures or whose verb is not known.
fn plain_orders(graph: &Graph, profiles: &[ToolProfile]) -> Vec<Order> {
    let order = |effect: &graph::Effect| {
        let seen = &graph.seen[effect.call];
        let profile = &profiles[seen.tool];
        let (task, closing) = changes::request(profile, seen)?;
        Some(Order {
            tool: seen.tool,
            kind: "direct",
            task,
            closing,
            calls: vec![seen.call.clone()],
            expected: Expected::Changed,
            entity: seen.args.iter().map(graph::Arg::said).collect(),
            found: None,
            target: None,
        })
    };
    let is_opaque = |effect: &&graph::Effect| {
        let leaves = graph.seen[effect.call].args.iter().filter_map(|arg| arg.leaf.as_deref());
        leaves.into_iter().any(words::is_opaque)
    };
    graph.effects.iter().filter(|effect| !is_opaque(effect)).filter_map(order).collect()
}
