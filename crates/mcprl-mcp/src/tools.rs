//! Turns a server's tool list, however malformed, into the tools that the agent sees.
//!
//! Each tool gets a valid unique name, an object schema and a function declaration. All texts are cleaned. The server's
//! order of tools and schema keys is kept because both are part of the prompt.

use crate::offered::Tool;
use std::collections::BTreeSet;

use mcprl_base::{
    answer::COMPLETE_TASK,
    hash::{Digest, Encoder},
};
use serde_json::{Map, Value, json};

use super::{
    message::UNREADABLE,
    names::Names,
    untrusted::{SCHEMA_DEPTH, Untrusted},
};

/// Maximum length of one tool's schema as JSON.
const SCHEMA_BYTES: usize = 1 << 20;

/// The tools to show, with `complete_task` last, and a note for each repair.
pub(super) fn from_list(listed: &[Untrusted<Value>]) -> (Vec<Tool>, Vec<String>) {
    let mut names = Names::default();
    // Reserved first, so a server's tool of the same name is renamed.
    names.give(COMPLETE_TASK);
    let mut seen = BTreeSet::new();
    let (mut tools, mut notes) = (Vec::new(), Vec::new());
    for raw in listed {
        let Some(name) = raw.text("name").filter(|name| !name.for_server().is_empty()) else {
            notes.push("ignored a tool without a name".to_owned());
            continue;
        };
        // A call needs the name as it is.
        let (shown, server_name) = (name.line(), *name.for_server());
        if !seen.insert(server_name) {
            notes.push(format!("ignored a second tool named `{shown}`"));
            continue;
        }
        if name.has_secret() {
            notes.push(format!("ignored the tool `{shown}`: a secret is in its name"));
            continue;
        }
        if let Some(reason) = raw.text(UNREADABLE) {
            notes.push(format!("ignored the tool `{shown}`, which cannot be read: {}", reason.line()));
            continue;
        }
        let declared = raw.get("inputSchema").or_else(|| raw.get("input_schema"));
        let declared = declared.map(|declared| declared.schema()).filter(Value::is_object);
        let is_declared = declared.is_some();
        let Some(schema) = input_schema(declared) else {
            notes.push(format!("ignored the tool `{shown}`: its schema is longer than {SCHEMA_BYTES} bytes"));
            continue;
        };
        if !is_declared {
            notes.push(format!("the tool `{shown}` declares no argument schema; any arguments are accepted"));
        }
        let schemas = ["inputSchema", "input_schema", "outputSchema"];
        if schemas.iter().filter_map(|field| raw.get(field)).any(|schema| schema.is_too_deep()) {
            notes.push(format!(
                "the schema of the tool `{shown}` is nested more than {SCHEMA_DEPTH} levels deep; what is deeper is left out"
            ));
        }
        let name = names.give(server_name);
        if name != server_name {
            notes.push(format!("renamed the tool `{shown}` to `{name}`"));
        }
        let description = raw.text("description").map(|text| text.bounded()).unwrap_or_default();
        let as_json = |field: &str| {
            let value = raw.get(field).map(|value| value.schema()).filter(Value::is_object);
            value.map(|value| value.to_string())
        };
        tools.push(Tool {
            function: function(&name, &description, &schema),
            input_schema: Value::Object(schema).to_string(),
            output_schema: as_json("outputSchema").filter(|text| text.len() <= SCHEMA_BYTES),
            annotations: as_json("annotations"),
            name,
            server_name: server_name.to_owned(),
            description,
            synthetic: false,
        });
    }
    tools.push(complete_task());
    (tools, notes)
}

/// The tools with further ones before `complete_task`, under names that are free.
pub(super) fn with_added(own: &[Tool], mut added: Vec<Tool>) -> Vec<Tool> {
    let mut names = Names::default();
    own.iter().for_each(|tool| _ = names.give(&tool.name));
    added.iter_mut().for_each(|tool| rename(tool, names.give(&tool.name)));
    // A server's tool that has the name of one of them on the wire could not be called.
    let is_free = |tool: &&Tool| !added.iter().any(|added| added.server_name == tool.server_name);
    let (own, last): (Vec<_>, Vec<_>) = own.iter().filter(is_free).cloned().partition(|tool| !tool.synthetic);
    own.into_iter().chain(added.iter().cloned()).chain(last).collect()
}

/// The declared schema as an object schema; `None` if it is too long.
fn input_schema(declared: Option<Value>) -> Option<Map<String, Value>> {
    let mut schema = match declared {
        Some(Value::Object(schema)) => schema,
        _ => Map::new(),
    };
    schema.insert("type".into(), "object".into());
    if !schema.get("properties").is_some_and(Value::is_object) {
        schema.insert("properties".into(), json!({}));
    }
    let bytes = Value::Object(schema.clone()).to_string().len();
    (bytes <= SCHEMA_BYTES).then_some(schema)
}

/// `{"name", "description", "parameters"}`, the order models were trained on.
fn function(name: &str, description: &str, schema: &Map<String, Value>) -> String {
    let mut parameters = schema.clone();
    parameters.shift_remove("$schema");
    json!({ "name": name, "description": description, "parameters": parameters }).to_string()
}

/// The tools as an agent with several servers sees them. Unchanged if the server has no name.
pub(super) fn prefixed(server: &str, mut tools: Vec<Tool>) -> Vec<Tool> {
    if server.is_empty() {
        return tools;
    }
    let mut names = Names::default();
    names.give(COMPLETE_TASK);
    for tool in tools.iter_mut().filter(|tool| !tool.synthetic) {
        rename(tool, names.give(&format!("{server}_{}", tool.name)));
        tool.server_name = format!("{server}/{}", tool.server_name);
    }
    tools
}

fn complete_task() -> Tool {
    let description = "Call this last, when the task is done, with the final answer: only the value that is asked for, without a \
                       sentence.";
    let properties = json!({ "answer": { "type": "string" } });
    let tool = added("", COMPLETE_TASK, description.to_owned(), properties, &["answer"]);
    Tool { annotations: None, synthetic: true, ..tool }
}

/// A tool that mcprl adds, which changes nothing.
pub(super) fn added(
    wire_name: &str,
    name: &str,
    description: String,
    properties: Value,
    required: &[&str],
) -> Tool {
    let mut schema = Map::from_iter([("type".into(), "object".into()), ("properties".into(), properties)]);
    if !required.is_empty() {
        schema.insert("required".into(), json!(required));
    }
    Tool {
        name: name.to_owned(),
        server_name: wire_name.to_owned(),
        function: function(name, &description, &schema),
        description,
        input_schema: Value::Object(schema).to_string(),
        output_schema: None,
        annotations: Some(json!({"readOnlyHint": true}).to_string()),
        synthetic: false,
    }
}

/// Gives a tool another name, in its function declaration too.
fn rename(tool: &mut Tool, name: String) {
    if let Ok(Value::Object(mut function)) = serde_json::from_str(&tool.function) {
        function.insert("name".into(), name.clone().into());
        tool.function = Value::Object(function).to_string();
    }
    tool.name = name;
}

/// Digest of the tools an agent sees and may call. Equal lists have equal digests, whatever server sent them.
///
/// | hashed, per tool in order | why |
/// |---|---|
/// | `server_name` | what a call reaches |
/// | `function` (name, description, parameters; keys sorted) | what the model reads |
/// | `output_schema`, `annotations` | what a later stage may read |
pub fn tools_digest(tools: &[Tool]) -> Digest {
    let mut encoder = Encoder::new("mcprl tool list v1");
    encoder.number(tools.len() as u64);
    for tool in tools {
        encoder.text(&tool.server_name);
        let texts = [Some(&tool.function), tool.output_schema.as_ref(), tool.annotations.as_ref()];
        for text in texts {
            let value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
            encoder.json(&value);
        }
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::untrusted::Redaction;

    fn from_list(listed: &[Value]) -> (Vec<Tool>, Vec<String>) {
        from_list_without([], listed)
    }

    fn from_list_without<const N: usize>(secrets: [&str; N], listed: &[Value]) -> (Vec<Tool>, Vec<String>) {
        let redaction = Redaction::new(secrets.map(str::to_owned), None);
        let listed = listed.iter().map(|raw| Untrusted::new(raw.clone(), &redaction));
        super::from_list(&listed.collect::<Vec<_>>())
    }

    fn named(listed: Value) -> Vec<(String, String)> {
        let (tools, _) = from_list(listed.as_array().unwrap());
        tools.into_iter().map(|tool| (tool.name, tool.server_name)).collect()
    }

    fn pairs(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(name, server)| ((*name).to_owned(), (*server).to_owned())).collect()
    }

    #[test]
    fn names_are_repaired_duplicates_dropped_and_complete_task_comes_last() {
        let listed =
            json!([{"name": "get time"}, {"name": "a"}, {"name": "a"}, {"title": "nameless"}, {"name": ""}]);
        assert_eq!(named(listed), pairs(&[("get_time", "get time"), ("a", "a"), ("complete_task", "")]));
    }

    #[test]
    fn a_tool_with_a_secret_in_its_name_is_ignored() {
        let listed = [json!({"name": "get_s3c\u{200b}r3t"}), json!({"name": "a\u{200b}", "inputSchema": {}})];
        let (tools, notes) = from_list_without(["s3cr3t"], &listed);
        assert_eq!(
            notes,
            ["ignored the tool `get_[redacted]`: a secret is in its name", "renamed the tool `a` to `a_`"]
        );
        assert_eq!(tools[0].server_name, "a\u{200b}", "a call needs the name as it is");
    }

    #[test]
    fn a_server_may_have_a_tool_named_complete_task() {
        assert_eq!(
            named(json!([{"name": "complete_task"}])),
            pairs(&[("complete_task_2", "complete_task"), ("complete_task", "")])
        );
    }

    #[test]
    fn a_missing_null_or_boolean_schema_becomes_an_empty_object() {
        for schema in [
            json!({"name": "t"}),
            json!({"name": "t", "inputSchema": null}),
            json!({"name": "t", "inputSchema": true}),
        ] {
            let (tools, notes) = from_list(&[schema]);
            assert_eq!(tools[0].input_schema, r#"{"type":"object","properties":{}}"#);
            assert_eq!(notes.len(), 1);
        }
    }

    #[test]
    fn a_schema_that_is_nested_too_deeply_is_cut_and_noted() {
        let deep = (0..60).fold(json!({"type": "string"}), |inner, _| json!({"items": inner}));
        let shallow = json!({"name": "a", "inputSchema": {"type": "object", "properties": {}}});
        let (tools, notes) = from_list(&[json!({"name": "t", "inputSchema": deep}), shallow]);
        assert!(!tools[0].input_schema.contains("string"));
        assert_eq!(
            notes,
            ["the schema of the tool `t` is nested more than 48 levels deep; what is deeper is left out"]
        );
    }

    #[test]
    fn the_function_has_the_usual_keys_in_the_usual_order() {
        let listed = json!([{
            "name": "t", "description": " Does\u{200B} it.\n",
            "inputSchema": {"$schema": "x", "type": "object", "required": ["b"], "properties": {"b": {"type": "string"}, "a": {}}},
        }]);
        let (tools, notes) = from_list(listed.as_array().unwrap());
        insta::assert_snapshot!(tools[0].function, @r#"{"name":"t","description":"Does it.","parameters":{"type":"object","required":["b"],"properties":{"b":{"type":"string"},"a":{}}}}"#);
        insta::assert_snapshot!(tools[1].function, @r#"{"name":"complete_task","description":"Call this last, when the task is done, with the final answer: only the value that is asked for, without a sentence.","parameters":{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}}"#);
        assert!(notes.is_empty());
    }

    #[test]
    fn a_tool_with_too_long_a_schema_is_ignored() {
        let listed =
            json!([{"name": "t", "inputSchema": {"type": "object", "description": "x".repeat(2 << 20)}}]);
        assert_eq!(named(listed), pairs(&[("complete_task", "")]));
    }

    #[test]
    fn tools_of_a_named_server_are_prefixed() {
        let listed = json!([{"name": "search", "description": "Finds."}, {"name": "n".repeat(64)}]);
        let (tools, _) = from_list(listed.as_array().unwrap());
        let prefixed = prefixed("crm", tools.clone());
        insta::assert_snapshot!(prefixed[0].function, @r#"{"name":"crm_search","description":"Finds.","parameters":{"type":"object","properties":{}}}"#);
        assert_eq!((&*prefixed[0].name, &*prefixed[0].server_name), ("crm_search", "crm/search"));
        assert_eq!(prefixed[1].name.len(), 64);
        assert_eq!(prefixed[2], tools[2], "complete_task belongs to no server");
        assert_eq!(super::prefixed("", tools.clone()), tools);
    }

    #[test]
    fn the_digest_sees_what_the_model_reads_and_ignores_key_order() {
        let digest = |listed: &str| tools_digest(&from_list(&[serde_json::from_str(listed).unwrap()]).0);
        let one =
            digest(r#"{"name": "t", "inputSchema": {"type": "object", "properties": {"a": {}, "b": {}}}}"#);
        let same =
            digest(r#"{"inputSchema": {"properties": {"b": {}, "a": {}}, "type": "object"}, "name": "t"}"#);
        let other = digest(
            r#"{"name": "t", "description": "now evil", "inputSchema": {"type": "object", "properties": {"a": {}, "b": {}}}}"#,
        );
        assert_eq!(one, same);
        assert_ne!(one, other);
    }
}
