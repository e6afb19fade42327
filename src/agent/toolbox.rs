//! The tools an agent is shown, and what becomes of a call.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{chat::ToolCall, data, error::Diagnostic};

/// The tools of a server, by the names the agent knows them by.
#[derive(Debug, Clone)]
pub struct Toolbox {
    functions: Vec<Value>,
    /// Wire names by shown names; `None` for `complete_task`.
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
    #[error("{path} lists no tool")]
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
        Some("the table of tools is written by a stage of kind \"discover\"".into())
    }
}

/// What is to be done about a call.
#[derive(Debug, PartialEq)]
pub(super) enum Action<'a> {
    /// The server's to answer, under its own name.
    Call { wire_name: &'a str },
    /// The episode is over.
    Complete { answer: String },
    /// Answered here, in these words.
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
        let tools: Vec<data::Tool> = data::read(path)?;
        if tools.is_empty() {
            return Err(ToolboxError::Empty { path: path.to_owned() }.into());
        }
        Ok(Self::new(&tools)?)
    }

    /// OpenAI-style function schemas, in the server's order.
    pub fn functions(&self) -> &[Value] {
        &self.functions
    }

    /// The server's own name of the tool that a call reaches; `None` where it is answered here.
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

/// The answer as text; a model may well write a number or a list.
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
