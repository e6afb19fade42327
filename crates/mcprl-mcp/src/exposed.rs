//! A server's resources and prompts as tools, for agents that know tools only.
//!
//! Their names on the wire are the names of the protocol's methods. Calls of them are limited, cleaned, redacted and recorded as
//! those of other tools.

use crate::offered::{Prompt, Resource, ResourceTemplate, Tool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    Description, tools,
    untrusted::{TEXT_BYTES, truncate_middle},
};

const LIST_RESOURCES: &str = "resources/list";
const READ_RESOURCE: &str = "resources/read";
const GET_PROMPT: &str = "prompts/get";

/// What of a server is offered as tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expose {
    pub resources: bool,
    pub prompts: bool,
}

/// A call of such a tool.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    ListResources,
    ReadResource {
        uri: String,
    },
    GetPrompt {
        name: String,
        arguments: Map<String, Value>,
    },
    /// An argument is missing.
    Lacking(&'static str),
}

impl Expose {
    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// The request that a call is; `None` for a tool of the server.
    pub(super) fn request(self, tool: &str, arguments: &Map<String, Value>) -> Option<Request> {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        match tool {
            LIST_RESOURCES if self.resources => Some(Request::ListResources),
            READ_RESOURCE if self.resources => {
                Some(text("uri").map_or(Request::Lacking("uri"), |uri| Request::ReadResource { uri }))
            }
            GET_PROMPT if self.prompts => Some(match text("name") {
                Some(name) => {
                    let arguments = arguments.get("arguments").and_then(Value::as_object).cloned();
                    Request::GetPrompt { name, arguments: arguments.unwrap_or_default() }
                }
                None => Request::Lacking("name"),
            }),
            _ => None,
        }
    }

    /// The tools of a server with those for what it has.
    pub(super) fn with_tools(self, described: &Description) -> Vec<Tool> {
        let Description { tools, resources, resource_templates, prompts, .. } = described;
        let mut added = Vec::new();
        if self.resources && !(resources.is_empty() && resource_templates.is_empty()) {
            let about =
                "Lists the resources: the URI, name and description of each, and templates of further URIs.";
            added.push(tools::added(LIST_RESOURCES, "list_resources", about.to_owned(), json!({}), &[]));
            let about = "Reads a resource.".to_owned();
            let properties = json!({"uri": {"type": "string"}});
            added.push(tools::added(READ_RESOURCE, "read_resource", about, properties, &["uri"]));
        }
        if self.prompts && !prompts.is_empty() {
            let lines: Vec<String> = prompts.iter().map(line).collect();
            let about = truncate_middle(format!("Gets a prompt.\n{}", lines.join("\n")), TEXT_BYTES);
            let names: Vec<&str> = prompts.iter().map(|prompt| prompt.name.as_str()).collect();
            let properties = json!({
                "name": {"type": "string", "enum": names},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            });
            added.push(tools::added(GET_PROMPT, "get_prompt", about, properties, &["name"]));
        }
        tools::with_added(tools, added)
    }
}

/// `review(code, style?): Reviews code.`
fn line(prompt: &Prompt) -> String {
    let arguments: Vec<Value> = serde_json::from_str(&prompt.arguments).unwrap_or_default();
    let argument = |argument: &Value| {
        let optional = if argument["required"] == true { "" } else { "?" };
        Some(format!("{}{optional}", argument["name"].as_str()?))
    };
    let arguments: Vec<String> = arguments.iter().filter_map(argument).collect();
    let about = prompt.description.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
    format!("{}({}){about}", prompt.name, arguments.join(", "))
}

/// What `resources/list` and `resources/templates/list` answered, as text.
pub(super) fn listed(resources: &[Resource], templates: &[ResourceTemplate]) -> String {
    let line = |uri: &str, name: &str, description: Option<&String>| match description {
        Some(description) => format!("{uri}  {name}: {description}"),
        None => format!("{uri}  {name}"),
    };
    let resources = resources.iter().map(|one| line(&one.uri, &one.name, one.description.as_ref()));
    let templates = templates.iter().map(|one| line(&one.uri_template, &one.name, one.description.as_ref()));
    let lines: Vec<String> = resources.chain(templates).collect();
    if lines.is_empty() { "there are no resources".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        tools::from_list,
        untrusted::{Redaction, Untrusted},
    };

    fn names(tools: &[Tool]) -> Vec<(&str, &str)> {
        tools.iter().map(|tool| (tool.name.as_str(), tool.server_name.as_str())).collect()
    }

    #[test]
    fn what_the_server_has_is_offered_under_free_names() {
        let all = Expose { resources: true, prompts: true };
        let listed = Untrusted::new(json!({"name": "read_resource"}), &Redaction::new([], None));
        let (own, _) = from_list(&[listed]);
        let mut described = Description { tools: own, ..Description::default() };
        let plain = [("read_resource", "read_resource"), ("complete_task", "")];
        assert_eq!(names(&all.with_tools(&described)), plain, "it has neither");
        described.resources = vec![Resource { uri: "a:b".into(), name: "b".into(), ..Default::default() }];
        let arguments = r#"[{"name": "code", "required": true}, {"name": "style"}]"#.to_owned();
        let description = Some("Reviews code.".to_owned());
        described.prompts = vec![Prompt { name: "review".into(), description, arguments }];
        assert_eq!(names(&Expose::default().with_tools(&described)), plain);
        let tools = all.with_tools(&described);
        assert_eq!(
            names(&tools),
            [
                ("read_resource", "read_resource"),
                ("list_resources", "resources/list"),
                ("read_resource_2", "resources/read"),
                ("get_prompt", "prompts/get"),
                ("complete_task", "")
            ]
        );
        insta::assert_snapshot!(tools[3].function, @r#"{"name":"get_prompt","description":"Gets a prompt.\nreview(code, style?): Reviews code.","parameters":{"type":"object","properties":{"name":{"type":"string","enum":["review"]},"arguments":{"type":"object","additionalProperties":{"type":"string"}}},"required":["name"]}}"#);
    }

    #[test]
    fn a_call_of_such_a_tool_is_a_request() {
        let all = Expose { resources: true, prompts: true };
        let request =
            |expose: Expose, tool: &str, given: Value| expose.request(tool, given.as_object().unwrap());
        assert_eq!(request(all, "resources/list", json!({})), Some(Request::ListResources));
        assert_eq!(request(all, "resources/read", json!({"uri": 7})), Some(Request::Lacking("uri")));
        let uri = "a:b".to_owned();
        assert_eq!(
            request(all, "resources/read", json!({"uri": "a:b"})),
            Some(Request::ReadResource { uri })
        );
        let prompt = Request::GetPrompt { name: "p".into(), arguments: Map::new() };
        assert_eq!(request(all, "prompts/get", json!({"name": "p"})), Some(prompt));
        assert_eq!(request(Expose::default(), "resources/list", json!({})), None);
        assert_eq!(request(all, "search", json!({})), None);
    }
}
