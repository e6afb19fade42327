//! What a server offers, and paging through its lists. Does not assume that a list ends or has the protocol's types.

use std::{collections::BTreeSet, future::Future};

use rmcp::{
    ServiceError,
    model::{ErrorCode, PaginatedRequestParams},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::redact::Redaction;
use crate::data;

/// What a server offers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub server: data::Server,
    /// With mcprl's `complete_task`.
    pub tools: Vec<data::Tool>,
    pub resources: Vec<data::Resource>,
    pub resource_templates: Vec<data::ResourceTemplate>,
    pub prompts: Vec<data::Prompt>,
}

const PAGES: usize = 100;
/// Maximum items of one list.
const ITEMS: usize = 1000;
/// Maximum bytes of one list as JSON, with its cursors.
const BYTES: usize = 16 << 20;

/// Collects `result[field]` over all pages. A repeated cursor or a limit ends the list with a note.
pub(super) async fn all_pages<F>(
    field: &str,
    notes: &mut Vec<String>,
    mut ask: impl FnMut(Option<PaginatedRequestParams>) -> F,
) -> Result<Vec<Value>, ServiceError>
where
    F: Future<Output = Result<Value, ServiceError>>,
{
    let (mut items, mut bytes, mut cursors) = (Vec::new(), 0, BTreeSet::new());
    let mut cursor: Option<String> = None;
    for _ in 0..PAGES {
        let params = cursor.take().map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor)));
        let page = match ask(params).await {
            // The server has no such list.
            Err(ServiceError::McpError(error)) if error.code == ErrorCode::METHOD_NOT_FOUND => {
                return Ok(items);
            }
            answer => answer?,
        };
        for item in page.get(field).and_then(Value::as_array).into_iter().flatten() {
            bytes += item.to_string().len();
            if items.len() == ITEMS || bytes > BYTES {
                notes.push(format!("the list of {field} is too long; used only the first {}", items.len()));
                return Ok(items);
            }
            items.push(item.clone());
        }
        match page.get("nextCursor").and_then(Value::as_str) {
            None | Some("") => return Ok(items),
            Some(next) => {
                bytes += next.len();
                if bytes > BYTES {
                    notes.push(format!(
                        "the list of {field} is too long; used only the first {}",
                        items.len()
                    ));
                    return Ok(items);
                }
                if !cursors.insert(next.to_owned()) {
                    notes.push(format!("the list of {field} repeats a page and was cut there"));
                    return Ok(items);
                }
                cursor = Some(next.to_owned());
            }
        }
    }
    notes.push(format!("the list of {field} was cut after {PAGES} pages"));
    Ok(items)
}

/// The resources that have a URI.
pub(super) fn resources(listed: &[Value], redaction: &Redaction) -> Vec<data::Resource> {
    let text = |raw: &Value, field: &str| text(raw, field, redaction);
    let resource = |raw: &Value| {
        Some(data::Resource {
            uri: text(raw, "uri")?,
            name: text(raw, "name").unwrap_or_default(),
            description: text(raw, "description"),
            mime_type: text(raw, "mimeType"),
        })
    };
    listed.iter().filter_map(resource).collect()
}

/// The templates that have a URI template.
pub(super) fn resource_templates(listed: &[Value], redaction: &Redaction) -> Vec<data::ResourceTemplate> {
    let text = |raw: &Value, field: &str| text(raw, field, redaction);
    let template = |raw: &Value| {
        Some(data::ResourceTemplate {
            uri_template: text(raw, "uriTemplate")?,
            name: text(raw, "name").unwrap_or_default(),
            description: text(raw, "description"),
            mime_type: text(raw, "mimeType"),
        })
    };
    listed.iter().filter_map(template).collect()
}

/// The prompts that have a name.
pub(super) fn prompts(listed: &[Value], redaction: &Redaction) -> Vec<data::Prompt> {
    let text = |raw: &Value, field: &str| text(raw, field, redaction);
    let prompt = |raw: &Value| {
        let arguments = raw.get("arguments").filter(|arguments| arguments.is_array());
        Some(data::Prompt {
            name: text(raw, "name")?,
            description: text(raw, "description"),
            arguments: arguments
                .map_or_else(|| "[]".to_owned(), |arguments| redaction.schema(arguments).to_string()),
        })
    };
    listed.iter().filter_map(prompt).collect()
}

fn text(raw: &Value, field: &str, redaction: &Redaction) -> Option<String> {
    raw.get(field).and_then(Value::as_str).map(|text| redaction.bounded(text))
}
