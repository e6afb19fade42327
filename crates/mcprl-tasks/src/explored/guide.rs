//! A short text about what a server holds, for an agent's system prompt: its tables or kinds of records, and a call of each tool
//! that reads.
//!
//! It has names of tables, columns and fields and arguments of calls, and no other value that results have.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{changes, graph::Graph, sql, tools::ToolProfile};
use crate::{
    chat::ToolCall,
    data::{Scenario, folded},
    mcp::plain,
    words,
};

/// Most characters of a guide.
const MOST: usize = 1500;
/// Of these, the most that calls take from what is held, if both are long.
const OF_CALLS: usize = 600;
/// Most characters of a line, of a name in it, of a call, and of the names that are left out.
const LINE: usize = 300;
const NAME: usize = 60;
const CALL: usize = 160;
const LEFT_OUT: usize = 80;

/// What is known of a server.
#[derive(Debug, Default, PartialEq)]
pub struct Guide {
    /// Tables or kinds of records, each with what it has.
    held: Vec<(String, Vec<String>)>,
    /// Calls that worked, by tool, the shortest first.
    calls: Vec<(String, Vec<ToolCall>)>,
}

impl Guide {
    pub fn of(graph: &Graph, profiles: &[ToolProfile], breaking: &BTreeSet<String>) -> Self {
        // Also of a tool whose name says that it reads, such as `set_status`.
        let writing: BTreeSet<usize> = (0..graph.seen.len())
            .filter(|call| changes::writes(graph, profiles, *call))
            .map(|call| graph.seen[call].tool)
            .collect();
        let is_shown = |tool: usize| {
            changes::reads(&profiles[tool])
                && !writing.contains(&tool)
                && !breaking.contains(&profiles[tool].name)
                && !graph.is_random(tool)
        };
        let mut held = sql::described(graph, profiles);
        if held.is_empty() {
            held = kinds(graph, profiles, is_shown);
        }
        let calls = (0..profiles.len()).filter(|tool| is_shown(*tool)).filter_map(|tool| {
            let of_tool = graph.seen.iter().filter(|seen| seen.tool == tool).map(|seen| seen.call.clone());
            let mut calls: Vec<ToolCall> = of_tool.collect();
            calls.sort_by_cached_key(|call| written(call).len());
            (!calls.is_empty()).then(|| (profiles[tool].name.clone(), calls))
        });
        Self { held, calls: calls.collect() }
    }

    /// The text, empty if nothing is known. No argument of a call is the answer of one of these tasks.
    pub fn text(&self, held_out: &[Scenario]) -> String {
        let answers = answers(held_out);
        let calls = self.calls.iter().map(|(name, calls)| {
            let is_free = |call: &&ToolCall| {
                written(call).chars().count() <= CALL
                    && leaves(call).iter().all(|leaf| !answers.contains(&folded(leaf)))
            };
            let example = calls.iter().find(is_free).map(written);
            (name.clone(), example.unwrap_or_else(|| format!("{}(…)", short(name, NAME))))
        });
        let calls: Vec<(String, String)> = calls.collect();
        let held = self.held.iter().map(|(name, parts)| (name.clone(), line(name, parts)));
        let held: Vec<(String, String)> = held.collect();
        let heads = ["What the server holds:", "Calls that work:"];
        let of_calls = length(&calls).min(OF_CALLS.max(MOST.saturating_sub(length(&held) + 60)));
        let room = MOST.saturating_sub(of_calls + 60);
        let parts = [(heads[0], section(&held, room)), (heads[1], section(&calls, of_calls))];
        let parts = parts.iter().filter(|(_, lines)| !lines.is_empty());
        parts.map(|(head, lines)| format!("{head}\n{lines}")).collect::<Vec<_>>().join("\n\n")
    }
}

/// The lines that have room, and which do not.
fn section(lines: &[(String, String)], room: usize) -> String {
    let room_for = |count: &usize| {
        let note = if *count < lines.len() { LEFT_OUT + 40 } else { 0 };
        length(&lines[..*count]) + note <= room
    };
    let count = (0..=lines.len()).rev().find(room_for).unwrap_or(0);
    let mut shown: Vec<String> = lines[..count].iter().map(|(_, line)| format!("- {line}")).collect();
    let cut: Vec<&str> = lines[count..].iter().map(|(name, _)| name.as_str()).collect();
    if !cut.is_empty() {
        shown.push(format!("- {} more, left out here: {}", cut.len(), short(&cut.join(", "), LEFT_OUT)));
    }
    shown.join("\n")
}

/// Characters of a line with its mark and its end.
fn width(line: &str) -> usize {
    line.chars().count() + 3
}

fn length(lines: &[(String, String)]) -> usize {
    lines.iter().map(|(_, line)| width(line)).sum()
}

/// `orders: id number key, total number`, up to the parts that have room.
fn line(name: &str, parts: &[String]) -> String {
    let mut text = format!("{}: ", short(name, NAME));
    for (place, part) in parts.iter().enumerate() {
        let part = short(part, NAME);
        if text.chars().count() + part.chars().count() > LINE {
            text += &format!("and {} more", parts.len() - place);
            return text;
        }
        text += &part;
        if place + 1 < parts.len() {
            text += ", ";
        }
    }
    text
}

/// The beginning of a text in one line.
fn short(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn written(call: &ToolCall) -> String {
    format!("{}({})", call.name, Value::Object(call.arguments.clone()))
}

/// The texts of a call's arguments.
fn leaves(call: &ToolCall) -> Vec<String> {
    fn add(value: &Value, leaves: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| add(item, leaves)),
            Value::Object(fields) => fields.values().for_each(|field| add(field, leaves)),
            scalar => leaves.push(plain(scalar)),
        }
    }
    let mut leaves = Vec::new();
    call.arguments.values().for_each(|value| add(value, &mut leaves));
    leaves
}

/// The answers of tasks, and the items of those that are lists.
fn answers(tasks: &[Scenario]) -> BTreeSet<String> {
    let mut answers = BTreeSet::new();
    for answer in tasks.iter().filter_map(|task| task.answer.as_deref()) {
        answers.insert(folded(answer));
        if let Ok(Value::Array(items)) = serde_json::from_str(answer) {
            answers.extend(items.iter().map(|item| folded(&plain(item))));
        }
    }
    answers
}

/// The kinds of records in results, each with its fields. A field whose values other tools take says which.
fn kinds(
    graph: &Graph,
    profiles: &[ToolProfile],
    is_shown: impl Fn(usize) -> bool,
) -> Vec<(String, Vec<String>)> {
    let mut order: Vec<String> = Vec::new();
    let mut kinds: BTreeMap<String, Vec<(String, BTreeSet<String>)>> = BTreeMap::new();
    for seen in graph.seen.iter().filter(|seen| is_shown(seen.tool)) {
        let profile = &profiles[seen.tool];
        for list in &seen.reading.lists {
            let thing = match profile.thing(&list.name) {
                thing if thing != "entry" => thing,
                _ => profile.nouns.last().map_or_else(|| profile.name.clone(), |noun| words::singular(noun)),
            };
            for field in list.records.iter().flatten().filter(|field| !field.name.is_empty()) {
                if !kinds.contains_key(&thing) {
                    order.push(thing.clone());
                }
                let source = format!("{}/{}/{}", profile.name, list.name, field.name);
                let fields = kinds.entry(thing.clone()).or_default();
                let place = fields.iter().position(|(name, _)| *name == field.name).unwrap_or_else(|| {
                    fields.push((field.name.clone(), BTreeSet::new()));
                    fields.len() - 1
                });
                fields[place].1.extend(takers(graph, &source, &is_shown, profiles));
            }
        }
    }
    let parts = |thing: String| {
        let fields = kinds.remove(&thing).unwrap_or_default();
        let part = |(name, takers): (String, BTreeSet<String>)| match takers.len() {
            0 => name,
            _ => format!("{name} (for {})", takers.into_iter().collect::<Vec<_>>().join(", ")),
        };
        // What leads to other calls first.
        let (ids, others): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(_, takers)| !takers.is_empty());
        (thing, ids.into_iter().chain(others).map(part).collect())
    };
    order.into_iter().map(parts).collect()
}

/// The tools with a parameter that takes the values of a field.
fn takers<'g>(
    graph: &'g Graph,
    source: &'g str,
    is_shown: &'g impl Fn(usize) -> bool,
    profiles: &'g [ToolProfile],
) -> impl Iterator<Item = String> + 'g {
    let working = graph.edges.iter().filter(move |((from, _), (worked, _))| from == source && *worked > 0);
    working.filter_map(move |((_, to), _)| {
        let tool = to.split('.').next()?;
        let place = profiles.iter().position(|profile| profile.name == tool)?;
        is_shown(place).then(|| tool.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(name: &str, arguments: Value) -> ToolCall {
        ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() }
    }

    fn columns(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_guide_has_what_is_held_and_one_call_of_each_tool() {
        let guide = Guide {
            held: vec![("orders".into(), columns(&["id number key", "total number"]))],
            calls: vec![
                ("list_tables".into(), vec![call("list_tables", json!({}))]),
                (
                    "get_order".into(),
                    vec![call("get_order", json!({"id": 7})), call("get_order", json!({"id": 8}))],
                ),
            ],
        };
        assert_eq!(
            guide.text(&[]),
            "What the server holds:\n- orders: id number key, total number\n\nCalls that work:\n- list_tables({})\n- \
             get_order({\"id\":7})"
        );
        assert_eq!(Guide::default().text(&[]), "");
    }

    #[test]
    fn no_argument_of_a_call_is_a_held_out_answer() {
        let calls = vec![call("get_order", json!({"id": "A7"})), call("get_order", json!({"id": "B8"}))];
        let guide = Guide { held: Vec::new(), calls: vec![("get_order".into(), calls)] };
        let task = |answer: &str| Scenario { answer: Some(answer.into()), ..Scenario::default() };
        assert!(guide.text(&[task("a7")]).ends_with("get_order({\"id\":\"B8\"})"));
        assert!(guide.text(&[task("[\"A7\", \"B8\"]")]).ends_with("get_order(…)"));
    }

    #[test]
    fn a_long_guide_is_cut_and_says_what_is_missing() {
        let held =
            (0..60).map(|n| (format!("table_{n}"), columns(&["id number key", "name text", "since date"])));
        let calls = (0..60).map(|n| (format!("tool_{n}"), vec![call(&format!("tool_{n}"), json!({"x": n}))]));
        let guide = Guide { held: held.collect(), calls: calls.collect() };
        let text = guide.text(&[]);
        assert!(text.chars().count() <= MOST, "{}", text.chars().count());
        assert!(text.contains("- table_0: ") && text.contains("- tool_0({"), "{text}");
        assert_eq!(text.matches(" more, left out here: ").count(), 2, "{text}");
        let wide = Guide {
            held: vec![("t".into(), (0..100).map(|n| format!("column_{n}")).collect())],
            calls: Vec::new(),
        };
        assert!(wide.text(&[]).lines().all(|line| line.chars().count() < LINE + 20));
        assert!(wide.text(&[]).contains(" more"));
    }
}
