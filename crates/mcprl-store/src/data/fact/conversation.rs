//! Conversations that ask or answer what an exam asks.

use std::collections::BTreeSet;

use serde_json::Value;

use mcprl_base::answer::COMPLETE_TASK;

use super::{Call, Fact, Facts, folded, lists, named, spaced, states};
use crate::data::{Message, MessageCall, Role, Trajectory, first_of_user};

/// A message of a user, and what follows before the next one.
struct Exchange {
    asked: String,
    calls: BTreeSet<String>,
    /// What the assistant says, the arguments of its calls included.
    said: String,
}

impl Fact {
    /// The fact of a played episode: what the user asked first, the last call, and the answer.
    pub fn of_episode(episode: &Trajectory) -> Self {
        let messages = &episode.messages;
        let first = first_of_user(messages).filter(|text| !text.trim().is_empty());
        let asked = first.unwrap_or(&episode.scenario_id);
        let mut calls = messages.iter().flat_map(|message| &message.calls);
        let last = calls.rfind(|call| call.name != COMPLETE_TASK);
        let call = last.map(|call| Call::from(call).normal());
        Self { call, ..Self::asked(asked, &[], episode.answer.as_deref()) }
    }
}

impl Facts {
    /// The first of these facts that a conversation is about. A sentence of a user is the same; or the calls behind a message look up
    /// the same, or the message names the values, and the answer is said then, if the task has one.
    pub fn in_conversation(&self, messages: &[Message]) -> Option<&Fact> {
        let exchanges = exchanges(messages);
        // An answer may come after another question.
        let all = Exchange {
            asked: exchanges.iter().map(|one| one.asked.as_str()).collect::<Vec<_>>().join("\n"),
            calls: exchanges.iter().flat_map(|one| one.calls.clone()).collect(),
            said: exchanges.iter().map(|one| one.said.as_str()).collect::<Vec<_>>().join(" "),
        };
        let whole = (exchanges.len() > 1).then_some(all);
        exchanges.iter().chain(&whole).find_map(|exchange| self.told(exchange))
    }

    fn told(&self, exchange: &Exchange) -> Option<&Fact> {
        let lines = exchange.asked.lines();
        let sentences = exchange.asked.split_inclusive(['?', '!', '.', '\n']);
        let behind = exchange.asked.lines().filter_map(|line| Some(line.split_once(": ")?.1));
        let mut parts = std::iter::once(exchange.asked.as_str()).chain(lines).chain(sentences).chain(behind);
        if let Some(place) = parts.find_map(|part| self.by_task.get(&folded(part))) {
            return Some(&self.facts[*place]);
        }
        let (asked, said) = (spaced(&exchange.asked), spaced(&exchange.said));
        let fact = Fact::asked(&exchange.asked, &[], None);
        let named = named(&exchange.asked);
        self.facts.iter().find(|other| {
            let is_called =
                other.call.as_ref().is_some_and(|call| !lists(call) && exchange.calls.contains(call));
            let is_answered = || match &other.answer {
                Some(answer) => answer.split(", ").all(|item| states(&said, &spaced(item))),
                None => is_called,
            };
            let is_named = || match other.spaced_values.is_empty() {
                true => named.is_empty() && fact.names_the_same(other),
                false => other.spaced_values.iter().all(|value| states(&asked, value)),
            };
            // Within a longer message, over several lines.
            let is_asked = other.spaced.split_whitespace().nth(2).is_some() && states(&asked, &other.spaced);
            is_asked || (is_called || is_named()) && is_answered()
        })
    }
}

fn exchanges(messages: &[Message]) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for message in messages {
        match (message.role, exchanges.last_mut()) {
            (Role::User, _) => {
                let asked = message.text.clone();
                exchanges.push(Exchange { asked, calls: BTreeSet::new(), said: String::new() });
            }
            (Role::Assistant, Some(exchange)) => {
                exchange.said.extend([" ", &message.text]);
                for call in &message.calls {
                    call.arguments.values().for_each(|value| say(value, &mut exchange.said));
                    exchange.calls.insert(Call::from(call).normal());
                }
            }
            _ => {}
        }
    }
    exchanges
}

impl From<&MessageCall> for Call {
    fn from(call: &MessageCall) -> Self {
        Self { name: call.name.clone(), arguments: call.arguments.clone() }
    }
}

/// The texts and numbers in a value, one behind the other.
fn say(value: &Value, said: &mut String) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| say(item, said)),
        Value::Object(fields) => fields.values().for_each(|value| say(value, said)),
        Value::String(text) => said.extend([" ", text]),
        value => said.extend([" ", &value.to_string()]),
    }
}
