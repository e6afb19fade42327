//! Example values that a user gives for parameters: `values = { user_id = ["ada_1"], "book.date" = "dates.txt" }`.
//!
//! Many servers never list the ids that their tools take. Examples are tried first, in the given order, and count as known
//! values: what a result says about them can be asked.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use super::{
    seeds::{self, Kind, Param},
    tools::ToolProfile,
};
use crate::{TaskError, data::Tool, error::did_you_mean, mcp::plain, words};

/// Values by parameter: its name in the schema, of a nested one its own name, or `tool.name` for one tool alone.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Examples(BTreeMap<String, Vec<Value>>);

impl Examples {
    /// Checks the names and values against these tools.
    ///
    /// # Errors
    /// If no tool has such a parameter, or none that has it takes the value.
    pub fn check(&self, tools: &[Tool]) -> Result<(), TaskError> {
        let mut of_tools: Vec<([&str; 2], Vec<Param>)> = Vec::new();
        for tool in tools.iter().filter(|tool| !tool.synthetic) {
            let schema: Value = serde_json::from_str(&tool.input_schema).unwrap_or_default();
            of_tools.push(([&tool.name, &tool.server_name], seeds::params(&schema)));
        }
        let mut leaves: Vec<([&str; 2], String, &mut Param)> = Vec::new();
        for (names, params) in &mut of_tools {
            leaves.extend(self::leaves(params).into_iter().map(|(name, param)| (*names, name, param)));
        }
        for (key, values) in &self.0 {
            let named: Vec<&Param> = leaves
                .iter()
                .filter(|(tool, name, _)| key == name || is_of(key, tool, name))
                .map(|(.., param)| &**param)
                .collect();
            if named.is_empty() {
                let known: BTreeSet<&str> = leaves.iter().map(|(_, name, _)| name.as_str()).collect();
                let near = did_you_mean(key, known.iter().copied()).map(str::to_owned);
                let known = known.into_iter().collect::<Vec<_>>().join(", ");
                return Err(TaskError::UnknownExample { name: key.clone(), near, known });
            }
            let unfit = |value: &&Value| named.iter().all(|param| fitted(param, value).is_none());
            if let Some(value) = values.iter().find(unfit) {
                let expected = expected(named[0]);
                return Err(TaskError::UnfitExample {
                    name: key.clone(),
                    value: value.to_string(),
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Gives the parameters of these tools their examples.
    pub fn apply(&self, profiles: &mut [ToolProfile]) {
        for profile in profiles {
            let tool = [profile.name.as_str(), profile.server_name.as_str()];
            for (name, param) in leaves(&mut profile.params) {
                let own = self.0.iter().find(|(key, _)| is_of(key, &tool, &name)).map(|(_, values)| values);
                let values = own.or_else(|| self.0.get(&name));
                param.examples =
                    values.into_iter().flatten().filter_map(|value| fitted(param, value)).collect();
            }
        }
    }

    /// The required parameters that take names of things, such as `user_id`, without an example and without a tool that
    /// lists such things.
    pub fn unlisted(&self, profiles: &mut [ToolProfile]) -> BTreeSet<String> {
        self.apply(profiles);
        let mut wants: Vec<(String, BTreeSet<String>)> = Vec::new();
        let mut listed: BTreeSet<String> = BTreeSet::new();
        for profile in profiles {
            let wanted = wanted(profile);
            if wanted.is_empty() {
                listed.extend(profile.nouns.iter().map(|noun| words::singular(noun)));
            }
            let open = wanted.into_iter().filter(|(_, has_examples)| !has_examples);
            wants.extend(open.map(|(name, _)| (name.clone(), words::tokens(&name))));
        }
        let is_name = |words: &BTreeSet<String>| {
            words.len() > 1 && ["id", "no", "number", "code"].iter().any(|end| words.contains(*end))
        };
        let is_listed = |words: &BTreeSet<String>| words.iter().any(|word| listed.contains(word));
        let unlisted = wants.into_iter().filter(|(_, words)| is_name(words) && !is_listed(words));
        unlisted.map(|(name, _)| name).collect()
    }
}

/// Whether a key is `tool.param`.
fn is_of(key: &str, tool: &[&str; 2], param: &str) -> bool {
    tool.iter().any(|tool| key.strip_prefix(tool).and_then(|rest| rest.strip_prefix('.')) == Some(param))
}

/// The parameters that take a single value, with the names that the schema has for them: an item has its list's name.
pub fn leaves(params: &mut [Param]) -> Vec<(String, &mut Param)> {
    fn add<'p>(name: &str, param: &'p mut Param, found: &mut Vec<(String, &'p mut Param)>) {
        match param.kind {
            Kind::Object(ref mut fields) => {
                fields.iter_mut().for_each(|field| add(&field.name.clone(), field, found));
            }
            Kind::List(ref mut item) => add(name, item, found),
            _ => found.push((name.to_owned(), param)),
        }
    }
    let mut found = Vec::new();
    params.iter_mut().for_each(|param| add(&param.name.clone(), param, &mut found));
    found
}

/// The required parameters whose values nothing in the schema gives, each with whether it has examples.
pub fn wanted(profile: &mut ToolProfile) -> Vec<(String, bool)> {
    let required: Vec<&mut Param> = profile.params.iter_mut().filter(|param| param.is_required).collect();
    let mut wanted: Vec<(String, bool)> = Vec::new();
    for param in required {
        for (name, param) in leaves(std::slice::from_mut(param)) {
            let is_open = param.is_required && !param.is_closed && param.kind != Kind::Sql;
            if is_open && wanted.iter().all(|(other, _)| *other != name) {
                wanted.push((name, !param.examples.is_empty()));
            }
        }
    }
    wanted
}

/// The value in the type of the parameter, if it can have it.
fn fitted(param: &Param, value: &Value) -> Option<Value> {
    let text = plain(value);
    if param.is_closed {
        return param.seeds.iter().find(|seed| plain(seed) == text).cloned();
    }
    match param.kind {
        Kind::Integer => text.parse::<i64>().ok().map(Value::from),
        Kind::Number => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(seeds::number),
        _ => Some(text.into()),
    }
}

/// What a parameter takes, in words.
fn expected(param: &Param) -> String {
    match param.kind {
        _ if param.is_closed => {
            let values: Vec<String> = param.seeds.iter().map(plain).collect();
            format!("one of {}", values.join(", "))
        }
        Kind::Integer => "an integer".into(),
        _ => "a number".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::mcp::{ServerSpec, Servers, State, Transport};

    fn tool(name: &str, properties: Value) -> Tool {
        let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
        let schema = json!({"type": "object", "required": required, "properties": properties});
        Tool {
            name: name.into(),
            server_name: name.into(),
            input_schema: schema.to_string(),
            ..Tool::default()
        }
    }

    fn tools() -> [Tool; 2] {
        let text = json!({"type": "string"});
        [
            tool(
                "open",
                json!({"user_id": text, "amount": {"type": "integer"}, "kind": {"enum": ["a", "b"]}}),
            ),
            tool(
                "book",
                json!({
                    "user_id": text,
                    "ids": {"type": "array", "items": text},
                    "flights": {"type": "array", "items": {"type": "object", "properties": {"date": text}}},
                }),
            ),
        ]
    }

    fn profiles(tools: &[Tool]) -> Vec<ToolProfile> {
        let transport =
            Transport::Stdio { command: vec!["x".into()], env: BTreeMap::new(), cwd: None, files: vec![] };
        crate::explored::profiles(
            tools,
            &Servers::from(ServerSpec::new(transport, State::ReadOnly)),
            &crate::explored::ExploreWrites::default(),
        )
    }

    fn examples(values: Value) -> Examples {
        serde_json::from_value(values).unwrap()
    }

    #[test]
    fn examples_reach_the_parameters_that_they_name() {
        let mut profiles = profiles(&tools());
        let given = json!({
            "user_id": ["ada"], "book.user_id": ["bob"], "amount": ["7", 8], "ids": ["x"], "date": ["2024-05-01"],
            "kind": ["b"],
        });
        let given = examples(given);
        given.check(&tools()).unwrap();
        given.apply(&mut profiles);
        let mut found = BTreeMap::new();
        for profile in &mut profiles {
            for (name, param) in leaves(&mut profile.params) {
                found.insert(format!("{}.{name}", profile.name), json!(param.examples));
            }
        }
        let expected = json!({
            "open.user_id": ["ada"], "open.amount": [7, 8], "open.kind": ["b"], "book.user_id": ["bob"],
            "book.ids": ["x"], "book.date": ["2024-05-01"],
        });
        assert_eq!(json!(found), expected);
    }

    #[test]
    fn names_of_things_that_no_tool_lists_want_examples() {
        let unlisted = |given: Value, tools: &[Tool]| {
            examples(given).unlisted(&mut profiles(tools)).into_iter().collect::<Vec<_>>()
        };
        let (mut list, ids) = (tools().to_vec(), || json!({}));
        assert_eq!(unlisted(ids(), &list), ["user_id"]);
        assert_eq!(unlisted(json!({"user_id": ["ada"]}), &list), [""; 0]);
        list.push(tool("list_users", json!({})));
        assert_eq!(unlisted(ids(), &list), [""; 0]);
    }

    #[test]
    fn an_unknown_name_and_an_unfit_value_are_errors_that_name_it() {
        for (given, parts) in [
            (json!({"user_ids": ["ada"]}), &["`values.user_ids`", "did you mean `user_id`?"][..]),
            (json!({"zzz": ["ada"]}), &["`values.zzz`", "amount, date, ids, kind, user_id"]),
            (json!({"open.date": ["ada"]}), &["`values.open.date`"]),
            (json!({"amount": [1, "many"]}), &["`values.amount`", "\"many\"", "an integer"]),
            (json!({"kind": ["c"]}), &["`values.kind`", "\"c\"", "one of a, b"]),
        ] {
            use crate::error::Diagnostic as _;
            let error = examples(given.clone()).check(&tools()).unwrap_err();
            let text = format!("{error} {}", error.hint().unwrap_or_default());
            assert!(parts.iter().all(|part| text.contains(part)), "{given}: {text}");
        }
    }
}
