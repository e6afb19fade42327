//! The tools of an agent, and how its calls are handled.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{chat::ToolCall, data, error::Diagnostic};

/// The tools of a server by the agent's names for them.
#[derive(Debug, Clone)]
pub struct Toolbox {
    functions: Vec<Value>,
    /// The server's names by the agent's names; `None` for `complete_task`.
    names: BTreeMap<String, Option<String>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ToolboxError {
    #[error("the function schema of tool `{tool}` is not JSON")]
    Schema {
        tool: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{path} contains no tools")]
    Empty { path: PathBuf },
}

impl Diagnostic for ToolboxError {
    fn code(&self) -> &'static str {
        match self {
            Self::Schema { .. } => "agent::tool_schema",
            Self::Empty { .. } => "agent::no_tools",
        }
    }

    fn hint(&self) -> Option<String> {
        Some("use the `tools` output of a stage of kind \"discover\"".into())
    }
}

/// How a call is handled.
#[derive(Debug, PartialEq)]
pub(super) enum Action<'a> {
    /// Sent to the server under its own name for the tool.
    Call { wire_name: &'a str },
    /// Ends the episode.
    Complete { answer: String },
    /// Answered by mcprl with this error.
    Refuse(String),
}

impl Toolbox {
    pub fn new(tools: &[data::Tool]) -> Result<Self, ToolboxError> {
        let function = |tool: &data::Tool| {
            serde_json::from_str(&tool.function)
                .map_err(|source| ToolboxError::Schema { tool: tool.name.clone(), source })
        };
        let name =
            |tool: &data::Tool| (tool.name.clone(), (!tool.synthetic).then(|| tool.server_name.clone()));
        Ok(Self {
            functions: tools.iter().map(function).collect::<Result<_, _>>()?,
            names: tools.iter().map(name).collect(),
        })
    }

    /// Reads the table that `discover` wrote.
    pub fn load(path: &Path) -> crate::error::Result<Self> {
        Ok(Self::of_table(path, &data::read::<data::Tool>(path)?)?)
    }

    /// The same, if the table is read already.
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

    /// The server's name of the called tool; `None` if mcprl answers the call.
    pub fn wire_name(&self, call: &ToolCall) -> Option<&str> {
        self.names.get(&call.name)?.as_deref()
    }

    pub(super) fn action(&self, call: &ToolCall) -> Action<'_> {
        match self.names.get(&call.name) {
            Some(Some(wire_name)) => Action::Call { wire_name },
            Some(None) => match answer(&call.arguments) {
                Some(answer) => Action::Complete { answer },
                None => Action::Refuse(format!("{} needs the argument `answer`", call.name)),
            },
            None => {
                let known: Vec<&str> = self.names.keys().map(String::as_str).collect();
                Action::Refuse(format!("no tool named {}; there is {}", call.name, known.join(", ")))
            }
        }
    }
}

/// The answer as text. Models may write a number or a list.
fn answer(arguments: &Map<String, Value>) -> Option<String> {
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
