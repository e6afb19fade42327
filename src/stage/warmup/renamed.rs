//! Traces with other words: in a share of them, the words that tools and parameters are named by change places with such words
//! of all servers.
//!
//! A small decoder remembers the servers it is trained on: a tool's name follows from the question, and the list of tools is
//! not read. Names that differ in every conversation cannot be remembered (function masking, arXiv 2410.04587). A word changes
//! alike in the tools, the task, the calls and the results, so that the list says which name fits. Words of other servers, and
//! not made-up ones, because a small decoder copies a word of one token long before it copies a word of four.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde_json::{Map, Value};

use super::traces::{Trace, TraceTurn};
use crate::{chat::ToolCall, hash::Encoder, mcp::COMPLETE_TASK, random::shuffle};

/// Gives this share of the traces other words, and tools of their own. `tools`: function schemas by server.
pub fn rename(traces: &mut [Trace], tools: &BTreeMap<Option<String>, Vec<Value>>, share: f64, seed: u64) {
    let pool: Vec<String> =
        tools.values().flat_map(|tools| named(tools)).collect::<BTreeSet<_>>().into_iter().collect();
    for (index, trace) in traces.iter_mut().enumerate() {
        let seed = Encoder::new("mcprl renamed trace v1").number(seed).number(index as u64).finish();
        let mut rng = ChaCha8Rng::from_seed(*seed.as_bytes());
        let drawn = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        if let Some(tools) = tools.get(&trace.server).filter(|_| drawn < share) {
            Words::of(tools, &pool, &mut rng).apply(trace, tools);
        }
    }
}

/// The words that tools and parameters are named by, in lower case.
fn named(tools: &[Value]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for function in tools.iter().map(function) {
        let Some(name) = function["name"].as_str().filter(|name| *name != COMPLETE_TASK) else {
            continue;
        };
        let parameters = function["parameters"]["properties"].as_object().into_iter().flatten();
        for name in parameters.map(|(name, _)| name.as_str()).chain([name]) {
            let words = words(name).filter(|(word, is_word)| *is_word && word.len() > 1);
            all.extend(words.map(|(word, _)| word.to_lowercase()));
        }
    }
    all
}

/// What a trace says instead.
struct Words {
    /// New words by old ones, in lower case.
    words: BTreeMap<String, String>,
    /// New digits by old ones, for the names of tools.
    digits: Vec<u8>,
}

impl Words {
    fn of(tools: &[Value], pool: &[String], rng: &mut ChaCha8Rng) -> Self {
        let mut new = pool.to_vec();
        shuffle(&mut new, rng);
        let mut digits: Vec<u8> = (b'0'..=b'9').collect();
        shuffle(&mut digits, rng);
        Self { words: named(tools).into_iter().zip(new).collect(), digits }
    }

    /// A tool's name.
    fn name(&self, name: &str) -> String {
        let digit = |letter: char| match letter.to_digit(10) {
            Some(digit) => char::from(self.digits[digit as usize]),
            None => letter,
        };
        self.text(name).chars().map(digit).collect()
    }

    fn apply(&self, trace: &mut Trace, tools: &[Value]) {
        trace.task = self.text(&trace.task);
        for TraceTurn { text, call, result } in &mut trace.turns {
            *text = self.text(text);
            if let Some(result) = result {
                *result = self.text(result);
            }
            if let Some(ToolCall { name, arguments }) = call {
                // Its parameter is ours, its value is the world's.
                *arguments = match name == COMPLETE_TASK {
                    true => arguments.iter().map(|(key, value)| (key.clone(), self.value(value))).collect(),
                    false => self.object(arguments),
                };
                if name != COMPLETE_TASK {
                    *name = self.name(name);
                }
            }
        }
        let is_ours = |tool: &Value| function(tool)["name"] == COMPLETE_TASK;
        let tools = tools.iter().map(|tool| if is_ours(tool) { tool.clone() } else { self.named(tool) });
        trace.tools = Some(tools.collect());
    }

    /// A function schema: names and descriptions, not the keywords of the schema.
    fn named(&self, tool: &Value) -> Value {
        let mut tool = tool.clone();
        let function = if tool["function"].is_object() { &mut tool["function"] } else { &mut tool };
        if let Some(name) = function["name"].as_str() {
            function["name"] = self.name(name).into();
        }
        if let Some(text) = function["description"].as_str() {
            function["description"] = self.text(text).into();
        }
        let parameters = &mut function["parameters"];
        if let Some(properties) = parameters["properties"].as_object() {
            let property = |(name, schema): (&String, &Value)| {
                let mut schema = schema.clone();
                if let Some(text) = schema["description"].as_str() {
                    schema["description"] = self.text(text).into();
                }
                (self.text(name), schema)
            };
            parameters["properties"] = Value::Object(properties.iter().map(property).collect());
        }
        if parameters["required"].is_array() {
            parameters["required"] = self.value(&parameters["required"]);
        }
        tool
    }

    fn object(&self, object: &Map<String, Value>) -> Map<String, Value> {
        object.iter().map(|(key, value)| (self.text(key), self.value(value))).collect()
    }

    fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.value(item)).collect(),
            Value::Object(object) => self.object(object).into(),
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let word = |(word, is_word): (&str, bool)| -> String {
            let new = is_word.then(|| self.words.get(&word.to_lowercase())).flatten();
            match new {
                Some(new) if word.starts_with(char::is_uppercase) => capital(new),
                Some(new) => new.clone(),
                None => word.to_owned(),
            }
        };
        words(text).map(word).collect()
    }
}

fn function(tool: &Value) -> &Value {
    if tool["function"].is_object() { &tool["function"] } else { tool }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The words of a text and what stands between them: `getColour_of` → get, Colour, `_`, of.
fn words(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_word = first.is_ascii_alphabetic();
        let mut end = first.len_utf8();
        for letter in rest[end..].chars() {
            let goes_on = if is_word { letter.is_ascii_lowercase() } else { !letter.is_ascii_alphabetic() };
            if !goes_on {
                break;
            }
            end += letter.len_utf8();
        }
        let (word, more) = rest.split_at(end);
        rest = more;
        Some((word, is_word))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tools() -> Vec<Value> {
        vec![
            json!({ "type": "function", "function": {
                "name": "7_lampColour", "description": "The colour of a lamp.",
                "parameters": { "type": "object", "properties": { "lamp_name": { "type": "string" } }, "required": ["lamp_name"] },
            } }),
            json!({ "type": "function", "function": {
                "name": COMPLETE_TASK, "description": "Submits the answer.",
                "parameters": { "type": "object", "properties": { "answer": { "type": "string" } } },
            } }),
        ]
    }

    /// The server of the traces, and another with more words.
    fn servers() -> BTreeMap<Option<String>, Vec<Value>> {
        let words =
            ["price_of_boat", "height_of_tower", "read_speed", "find_train", "all_clocks", "mood_lookup"];
        let other =
            words.map(|name| json!({ "name": name, "parameters": { "properties": { "title": {} } } }));
        [(None, tools()), (Some("w2".into()), other.into())].into()
    }

    fn trace() -> Trace {
        let call = |name: &str, arguments: Value| {
            let Value::Object(arguments) = arguments else { unreachable!() };
            Some(ToolCall { name: name.into(), arguments })
        };
        Trace {
            scenario_id: "s".into(),
            server: None,
            task: "Which colour has the lamp Nova?".into(),
            turns: vec![
                TraceTurn {
                    text: String::new(),
                    call: call("7_lampColour", json!({ "lamp_name": "Nova" })),
                    result: Some("Colour: red".into()),
                },
                TraceTurn {
                    text: String::new(),
                    call: call(COMPLETE_TASK, json!({ "answer": "red" })),
                    result: None,
                },
            ],
            correct: true,
            tools: None,
        }
    }

    #[test]
    fn a_word_changes_alike_wherever_it_stands() {
        let mut traces = [trace()];
        rename(&mut traces, &servers(), 1.0, 3);
        let trace = &traces[0];
        let tools = trace.tools.as_ref().unwrap();
        let function = &tools[0]["function"];
        let name = function["name"].as_str().unwrap();
        let (number, words) = name.split_once('_').unwrap();
        assert_ne!(number, "7");
        let (lamp, colour) = words.split_at(words.find(char::is_uppercase).unwrap());
        let lower = colour.to_lowercase();
        assert!(lamp != "lamp" && lower != "colour", "{name}");
        assert_eq!(function["description"], format!("The {lower} of a {lamp}."));
        assert_eq!(trace.task, format!("Which {lower} has the {lamp} Nova?"));
        let parameter = function["parameters"]["required"][0].as_str().unwrap();
        assert!(parameter.starts_with(&format!("{lamp}_")) && parameter != "lamp_name", "{parameter}");
        assert_eq!(function["parameters"]["properties"][parameter], json!({ "type": "string" }));
        let call = trace.turns[0].call.as_ref().unwrap();
        assert_eq!((call.name.as_str(), &call.arguments[parameter]), (name, &json!("Nova")));
        assert_eq!(trace.turns[0].result.as_deref(), Some(&*format!("{colour}: red")));
        assert_eq!((&trace.turns[1], &tools[1]), (&self::trace().turns[1], &self::tools()[1]));
    }

    #[test]
    fn the_share_is_kept_and_the_same_seed_gives_the_same_words() {
        let renamed = |share: f64| {
            let mut traces = vec![trace(); 400];
            rename(&mut traces, &servers(), share, 1);
            traces
        };
        let some = renamed(0.25);
        assert_eq!(renamed(0.25), some);
        let own: Vec<&Vec<Value>> = some.iter().filter_map(|trace| trace.tools.as_ref()).collect();
        assert!((70..130).contains(&own.len()), "{}", own.len());
        let names: BTreeSet<String> =
            own.iter().map(|tools| tools[0]["function"]["name"].to_string()).collect();
        assert!(names.len() > own.len() / 2, "{} names in {} traces", names.len(), own.len());
        assert_eq!(renamed(0.0), vec![trace(); 400]);
    }
}
