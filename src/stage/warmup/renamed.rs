//! Traces of servers that do not exist: in a share of them, the names of tools and parameters have other words, in another order.
//!
//! A small decoder remembers the servers it is trained on: a tool's name follows from the question, and the list of tools is
//! not read. Names that differ cannot be remembered (function masking, arXiv 2410.04587). Words change places with words of all
//! servers, alike in the tools, the task, the calls and the results, so that only the list says which name fits. They are not
//! made up, because a small decoder copies a word of one token long before it copies a word of four. What a task asks about
//! changes with what other tasks ask about, and words that most tasks have (`of`) stay: they say where in a task these stand.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde_json::{Map, Value};

use super::traces::{Trace, TraceTurn};
use crate::{
    answer::COMPLETE_TASK,
    chat::ToolCall,
    hash::Encoder,
    random::{shuffle, unit},
};

/// Traces with the same new names. Their prompts begin alike, and this part is computed once for those in one step.
const TOGETHER: usize = 4;
/// Words that a larger share of the tasks has stay.
const USUAL: f64 = 0.1;

/// Gives this share of the traces other names, and tools of their own. `tools`: function schemas by server.
///
/// Traces with the same new names follow each other, and share their tools ([`groups`]). The order of all changes.
pub fn rename(traces: &mut Vec<Trace>, tools: &BTreeMap<Option<String>, Vec<Value>>, share: f64, seed: u64) {
    let pools = Pools::of(traces, tools);
    let mut rng =
        ChaCha8Rng::from_seed(*Encoder::new("mcprl renamed traces v2").number(seed).finish().as_bytes());
    let mut chosen: BTreeMap<Option<String>, Vec<Trace>> = BTreeMap::new();
    let mut usual = Vec::new();
    for trace in traces.drain(..) {
        match unit(&mut rng) < share && tools.contains_key(&trace.server) {
            true => chosen.entry(trace.server.clone()).or_default().push(trace),
            false => usual.push(trace),
        }
    }
    *traces = usual;
    for (server, mut chosen) in chosen {
        for group in chosen.chunks_mut(TOGETHER) {
            Words::draw(&tools[&server], &pools, &mut rng).apply(group, &tools[&server]);
        }
        traces.append(&mut chosen);
    }
}

/// The traces with the same new names, together; others alone.
pub fn groups(traces: &[Trace]) -> impl Iterator<Item = &[Trace]> {
    traces.chunk_by(|one, next| match (&one.tools, &next.tools) {
        (Some(one), Some(next)) => Arc::ptr_eq(one, next),
        _ => false,
    })
}

/// The words that tools of all servers are named by, in lower case.
struct Pools {
    /// Words that tasks ask about, such as a thing or a property.
    asked: Vec<String>,
    /// Words that no task has, such as `lookup`.
    other: Vec<String>,
}

impl Pools {
    fn of(traces: &[Trace], tools: &BTreeMap<Option<String>, Vec<Value>>) -> Self {
        let mut tasks: BTreeMap<String, usize> = BTreeMap::new();
        for trace in traces {
            let distinct: BTreeSet<String> = lower_case(&trace.task).collect();
            distinct.into_iter().for_each(|word| *tasks.entry(word).or_default() += 1);
        }
        let most = (traces.len() as f64 * USUAL) as usize;
        let all: BTreeSet<String> = tools.values().flat_map(|tools| named(tools)).collect();
        let (asked, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|word| tasks.contains_key(word));
        Self { asked: asked.into_iter().filter(|word| tasks[word] <= most).collect(), other }
    }
}

/// The words that tools and parameters are named by, in lower case.
fn named(tools: &[Value]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (name, function) in others(tools) {
        let parameters = function["parameters"]["properties"].as_object().into_iter().flatten();
        for name in parameters.map(|(name, _)| name.as_str()).chain([name]) {
            all.extend(lower_case(name).filter(|word| word.len() > 1));
        }
    }
    all
}

/// The server's tools, by name: all but ours.
fn others(tools: &[Value]) -> impl Iterator<Item = (&str, &Value)> {
    let functions = tools.iter().map(function);
    let named = functions.filter_map(|function| Some((function["name"].as_str()?, function)));
    named.filter(|(name, _)| *name != COMPLETE_TASK)
}

/// What a group of traces says instead.
struct Words {
    /// New words by old ones, in lower case.
    words: BTreeMap<String, String>,
    /// New names of tools by old ones.
    names: BTreeMap<String, String>,
}

impl Words {
    fn draw(tools: &[Value], pools: &Pools, rng: &mut ChaCha8Rng) -> Self {
        let (named, mut all) = (named(tools), BTreeMap::new());
        for pool in [&pools.asked, &pools.other] {
            let mut new = pool.clone();
            shuffle(&mut new, rng);
            let old = pool.iter().filter(|word| named.contains(*word)).cloned();
            all.extend(old.zip(new));
        }
        let mut words = Self { words: all, names: BTreeMap::new() };
        words.names = words.new_names(tools, rng);
        words
    }

    /// Names with other words in any order, joined in any of three ways, after a beginning that all have.
    fn new_names(&self, tools: &[Value], rng: &mut ChaCha8Rng) -> BTreeMap<String, String> {
        let names: Vec<&str> = others(tools).map(|(name, _)| name).collect();
        let common = names.iter().skip(1).fold(names.first().map_or("", |name| name), |common, name| {
            let alike = common.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
            common.get(..alike).unwrap_or("")
        });
        let common = &common[..common.rfind(['_', '-', '.']).map_or(0, |at| at + 1)];
        let mut digits: Vec<char> = ('0'..='9').collect();
        shuffle(&mut digits, rng);
        let digit = |letter: char| letter.to_digit(10).map_or(letter, |digit| digits[digit as usize]);
        let with_digits = |text: String| text.chars().map(digit).collect::<String>();
        let beginning = with_digits(self.text(common));

        let (mut new, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for name in names {
            let mut words: Vec<String> =
                lower_case(&name[common.len()..]).map(|word| self.text(&word)).collect();
            shuffle(&mut words, rng);
            let camel = |(at, word): (usize, &String)| if at == 0 { word.clone() } else { capital(word) };
            let rest = match rng.next_u64() % 3 {
                0 => words.join("_"),
                1 => words.join("-"),
                _ => words.iter().enumerate().map(camel).collect(),
            };
            let mut renamed = format!("{beginning}{rest}");
            if rest.is_empty() || taken.contains(&renamed) {
                renamed = with_digits(self.text(name));
            }
            taken.insert(renamed.clone());
            new.insert(name.to_owned(), renamed);
        }
        new
    }

    fn apply(&self, traces: &mut [Trace], tools: &[Value]) {
        let tools: Arc<Vec<Value>> = Arc::new(tools.iter().map(|tool| self.renamed(tool)).collect());
        for trace in traces {
            trace.task = self.text(&trace.task);
            for tool in &mut trace.planned {
                if let Some(new) = self.names.get(tool) {
                    tool.clone_from(new);
                }
            }
            for TraceTurn { text, call, result } in &mut trace.turns {
                *text = self.text(text);
                if let Some(result) = result {
                    *result = self.text(result);
                }
                if let Some(ToolCall { name, arguments }) = call {
                    match self.names.get(name) {
                        Some(new) => (*name, *arguments) = (new.clone(), self.object(arguments)),
                        // Its parameter is ours, its value is the server's.
                        None => arguments.values_mut().for_each(|value| *value = self.value(value)),
                    }
                }
            }
            trace.tools = Some(tools.clone());
        }
    }

    /// A function schema: names and descriptions, not the keywords of the schema.
    fn renamed(&self, tool: &Value) -> Value {
        let mut tool = tool.clone();
        let function = if tool["function"].is_object() { &mut tool["function"] } else { &mut tool };
        let Some(name) = function["name"].as_str().and_then(|name| self.names.get(name)) else {
            return tool;
        };
        function["name"] = name.as_str().into();
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

/// The function of an OpenAI-style schema.
pub fn function(tool: &Value) -> &Value {
    if tool["function"].is_object() { &tool["function"] } else { tool }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn lower_case(text: &str) -> impl Iterator<Item = String> {
    words(text).filter(|(_, is_word)| *is_word).map(|(word, _)| word.to_lowercase())
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

    /// What the other server's tools are about: a thing, a property, and names of tools.
    const OTHERS: [(&str, &str); 12] = [
        ("boat", "price"),
        ("tower", "height"),
        ("train", "speed"),
        ("clock", "mood"),
        ("horse", "age"),
        ("mine", "depth"),
        ("sofa", "width"),
        ("vase", "rank"),
        ("bridge", "fee"),
        ("garden", "owner"),
        ("island", "shape"),
        ("museum", "debt"),
    ];

    /// The server of the first trace, and another with more words.
    fn servers() -> BTreeMap<Option<String>, Vec<Value>> {
        let names = |(thing, property): (&str, &str)| {
            [format!("w2_{property}_of_{thing}"), format!("w2_read_{thing}"), format!("w2_lookup-{property}")]
        };
        let tool = |name| json!({ "name": name, "parameters": { "properties": { "title": {} } } });
        let other = OTHERS.into_iter().flat_map(names).map(tool).collect();
        [(None, tools()), (Some("w2".into()), other)].into()
    }

    fn trace() -> Trace {
        let call = |name: &str, arguments: Value| {
            let Value::Object(arguments) = arguments else { unreachable!() };
            Some(ToolCall { name: name.into(), arguments })
        };
        let turn = |call, result: Option<&str>| TraceTurn {
            text: String::new(),
            call,
            result: result.map(str::to_owned),
        };
        Trace {
            scenario_id: "s".into(),
            server: None,
            task: "Find the colour of the lamp Nova.".into(),
            turns: vec![
                turn(call("7_lampColour", json!({ "lamp_name": "Nova" })), Some("Colour: red")),
                turn(call(COMPLETE_TASK, json!({ "answer": "red" })), None),
            ],
            planned: vec!["7_lampColour".into()],
            correct: true,
            tools: None,
        }
    }

    /// The first trace, and two about each thing of the other server.
    fn traces() -> Vec<Trace> {
        let other = |(thing, property): (&str, &str)| Trace {
            server: Some("w2".into()),
            task: format!("Find the {property} of the {thing} Nova."),
            turns: Vec::new(),
            ..trace()
        };
        [trace()].into_iter().chain(OTHERS.into_iter().cycle().take(24).map(other)).collect()
    }

    #[test]
    fn a_word_changes_alike_wherever_it_stands() {
        let mut traces = traces();
        rename(&mut traces, &servers(), 1.0, 3);
        let trace = &traces[0];
        let tools = trace.tools.as_ref().unwrap();
        let function = &tools[0]["function"];
        let description: Vec<&str> = function["description"].as_str().unwrap().split(' ').collect();
        let (colour, lamp) = (description[1], description[4].trim_end_matches('.'));
        assert_eq!(description, ["The", colour, "of", "a", &format!("{lamp}.")]);
        assert!(lamp != "lamp" && colour != "colour", "{description:?}");
        assert_eq!(trace.task, format!("Find the {colour} of the {lamp} Nova."));

        let name = function["name"].as_str().unwrap();
        let joined = |[first, second]: [&str; 2]| {
            [format!("{first}_{second}"), format!("{first}-{second}"), format!("{first}{}", capital(second))]
        };
        let (number, words) = name.split_once('_').unwrap();
        assert!(number != "7" && number.parse::<u8>().is_ok(), "{name}");
        assert!(
            [[colour, lamp], [lamp, colour]].into_iter().any(|both| joined(both).contains(&words.into()))
        );
        let parameter = function["parameters"]["required"][0].as_str().unwrap();
        assert!(parameter.starts_with(&format!("{lamp}_")), "{parameter}");
        assert_eq!(function["parameters"]["properties"][parameter], json!({ "type": "string" }));

        assert_eq!(trace.planned, [name]);
        let call = trace.turns[0].call.as_ref().unwrap();
        assert_eq!((call.name.as_str(), &call.arguments[parameter]), (name, &json!("Nova")));
        assert_eq!(trace.turns[0].result.as_deref(), Some(&*format!("{}: red", capital(colour))));
        assert_eq!((&trace.turns[1], &tools[1]), (&self::trace().turns[1], &self::tools()[1]));
    }

    #[test]
    fn the_tools_of_a_server_keep_distinct_names_with_one_beginning() {
        for seed in 0..20 {
            let mut traces = traces();
            rename(&mut traces, &servers(), 1.0, seed);
            for trace in &traces[1..] {
                assert!(
                    trace.task.starts_with("Find the ") && trace.task.contains(" of the "),
                    "{}",
                    trace.task
                );
                let tools = trace.tools.as_ref().unwrap();
                let names: BTreeSet<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
                assert_eq!(names.len(), 3 * OTHERS.len());
                let beginnings: BTreeSet<&str> =
                    names.iter().map(|name| name.split_once('_').unwrap().0).collect();
                assert_eq!(beginnings.len(), 1, "{beginnings:?}");
            }
        }
    }

    #[test]
    fn the_share_is_kept_and_the_same_seed_gives_the_same_names() {
        let renamed = |share: f64| {
            let mut traces = vec![trace(); 400];
            rename(&mut traces, &servers(), share, 1);
            let groups = groups(&traces).map(<[_]>::len).collect::<Vec<_>>();
            (traces, groups)
        };
        let some = renamed(0.25);
        assert_eq!(renamed(0.25), some);
        let own = some.0.iter().filter(|trace| trace.tools.is_some()).count();
        assert!((70..130).contains(&own), "{own}");
        assert_eq!(renamed(0.0), (vec![trace(); 400], vec![1; 400]));
    }

    #[test]
    fn the_traces_of_a_group_have_the_same_tools_and_those_of_another_have_others() {
        let mut traces = traces();
        rename(&mut traces, &servers(), 1.0, 1);
        let groups: Vec<usize> = groups(&traces).map(<[_]>::len).collect();
        assert_eq!(groups, [1, 4, 4, 4, 4, 4, 4]);
        let (mut rest, mut seen) = (&traces[..], BTreeSet::new());
        for size in groups {
            let (group, others) = rest.split_at(size);
            let tools: BTreeSet<String> =
                group.iter().map(|trace| serde_json::to_string(&trace.tools.as_deref()).unwrap()).collect();
            assert_eq!(tools.len(), 1);
            assert!(seen.insert(tools), "two groups have the same tools");
            rest = others;
        }
        assert!(rest.is_empty());
    }
}
