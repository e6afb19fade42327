//! The tools of an agent, and how its calls are handled.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::schema::Schema;
use crate::{
    chat::ToolCall,
    data::{self, CallError},
    error::Diagnostic,
};

/// The tools of a server by the agent's names for them.
#[derive(Debug, Clone)]
pub struct Toolbox {
    functions: Vec<Value>,
    /// By the agent's names; `None` for `complete_task`.
    tools: BTreeMap<String, Option<ServerTool>>,
}

#[derive(Debug, Clone)]
struct ServerTool {
    wire_name: String,
    /// Or why arguments are not checked.
    schema: Result<Schema, String>,
    /// Whether arguments are converted to the types that the schema wants.
    coerces: bool,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "agent")]
#[hint = "use the `tools` output of a stage of kind \"discover\""]
pub enum ToolboxError {
    #[error("the function schema of tool `{tool}` is not JSON")]
    #[diagnostic(code = "tool_schema")]
    Schema { tool: String, source: serde_json::Error },
    #[error("{path} contains no tools")]
    #[diagnostic(code = "no_tools")]
    Empty { path: PathBuf },
}

/// How a call is handled.
#[derive(Debug, PartialEq)]
pub(super) enum Action<'a> {
    /// Sent to the server under its own name for the tool.
    Call { wire_name: &'a str, arguments: Cow<'a, Map<String, Value>> },
    /// Ends the episode.
    Complete { answer: String },
    /// Answered by mcprl with this error.
    Refuse(CallError, String),
}

impl Toolbox {
    pub fn new(tools: &[data::Tool]) -> Result<Self, ToolboxError> {
        let function = |tool: &data::Tool| {
            serde_json::from_str(&tool.function)
                .map_err(|source| ToolboxError::Schema { tool: tool.name.clone(), source })
        };
        let tool = |tool: &data::Tool| {
            let server_tool = || ServerTool {
                wire_name: tool.server_name.clone(),
                schema: serde_json::from_str(&tool.input_schema)
                    .map_err(|_| "it is not JSON".to_owned())
                    .and_then(Schema::compile),
                coerces: false,
            };
            (tool.name.clone(), (!tool.synthetic).then(server_tool))
        };
        Ok(Self {
            functions: tools.iter().map(function).collect::<Result<_, _>>()?,
            tools: tools.iter().map(tool).collect(),
        })
    }

    /// Converts arguments to the types that the schema wants, for tools whose `server_name` says so.
    pub fn coercing(mut self, coerces: impl Fn(&str) -> bool) -> Self {
        for tool in self.tools.values_mut().flatten() {
            tool.coerces = coerces(&tool.wire_name);
        }
        self
    }

    /// A note for each tool whose schema cannot be used to check arguments.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.tools.iter().filter_map(|(name, tool)| {
            let reason = tool.as_ref()?.schema.as_ref().err()?;
            Some(format!("the arguments of `{name}` are not checked against its schema: {reason}"))
        })
    }

    /// Tools whose schema cannot be used to check arguments.
    pub fn unchecked(&self) -> BTreeSet<String> {
        let is_unchecked = |tool: &Option<ServerTool>| tool.as_ref().is_some_and(|tool| tool.schema.is_err());
        self.tools.iter().filter(|(_, tool)| is_unchecked(tool)).map(|(name, _)| name.clone()).collect()
    }

    /// The tools of the table that `discover` wrote at this path.
    pub fn of_table(path: &Path, tools: &[data::Tool]) -> Result<Self, ToolboxError> {
        match tools {
            [] => Err(ToolboxError::Empty { path: path.to_owned() }),
            tools => Self::new(tools),
        }
    }

    /// OpenAI-style function schemas, in the server's order.
    pub fn functions(&self) -> &[Value] {
        &self.functions
    }

    /// Whether the agent has `complete_task`.
    pub fn completes(&self) -> bool {
        self.tools.values().any(Option::is_none)
    }

    /// The server's name of the called tool, and the arguments that are sent; `None` if mcprl answers the call.
    pub fn request<'a>(&'a self, call: &'a ToolCall) -> Option<(&'a str, Cow<'a, Map<String, Value>>)> {
        match self.action(call) {
            Action::Call { wire_name, arguments } => Some((wire_name, arguments)),
            Action::Complete { .. } | Action::Refuse(..) => None,
        }
    }

    /// Why a call would be answered by mcprl with an error.
    pub fn problem(&self, call: &ToolCall) -> Option<String> {
        match self.action(call) {
            Action::Refuse(_, why) => Some(why),
            Action::Call { .. } | Action::Complete { .. } => None,
        }
    }

    /// The server's name of a tool. A tool that the agent does not have is returned as it is.
    pub fn wire_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.tools.get(name).and_then(Option::as_ref).map_or(name, |tool| &tool.wire_name)
    }

    pub(super) fn action<'a>(&'a self, call: &'a ToolCall) -> Action<'a> {
        match self.tools.get(&call.name) {
            Some(Some(tool)) => self.checked(tool, call),
            Some(None) => match answer_of(&call.arguments) {
                Some(answer) => Action::Complete { answer },
                None => {
                    let why = format!("{} needs the argument `answer`", call.name);
                    Action::Refuse(CallError::Schema, why)
                }
            },
            None => {
                let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
                let why = format!("no tool named {}; there is {}", call.name, known.join(", "));
                Action::Refuse(CallError::UnknownTool, why)
            }
        }
    }

    fn checked<'a>(&self, tool: &'a ServerTool, call: &'a ToolCall) -> Action<'a> {
        let mut arguments = Cow::Borrowed(&call.arguments);
        if let Ok(schema) = &tool.schema {
            if tool.coerces {
                schema.coerce(arguments.to_mut());
            }
            let violations = schema.violations(&arguments).unwrap_or_default();
            if !violations.is_empty() {
                let why = format!("wrong arguments of {}: {}", call.name, violations.join("; "));
                return Action::Refuse(CallError::Schema, why);
            }
        }
        Action::Call { wire_name: &tool.wire_name, arguments }
    }
}

/// The answer in arguments of `complete_task`, as text. Models may write a number or a list.
pub fn answer_of(arguments: &Map<String, Value>) -> Option<String> {
    match arguments.get("answer")? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => {
            let text = |item: &Value| item.as_str().map_or_else(|| item.to_string(), str::to_owned);
            Some(items.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        other => Some(other.to_string()),
    }
}
