//! What a server offers, and paging through its lists. Does not assume that a list ends or has the protocol's types.

use crate::offered::{Prompt, Resource, ResourceTemplate, ServerInfo, Tool};
use std::{collections::BTreeSet, future::Future};

use rmcp::model::{ErrorCode, PaginatedRequestParams};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    failure::{Cause, Failure},
    untrusted::Untrusted,
};

/// What a server offers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Description {
    pub server: ServerInfo,
    /// With mcprl's `complete_task`.
    pub tools: Vec<Tool>,
    pub resources: Vec<Resource>,
    pub resource_templates: Vec<ResourceTemplate>,
    pub prompts: Vec<Prompt>,
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
) -> Result<Vec<Untrusted<Value>>, Failure>
where
    F: Future<Output = Result<Untrusted<Value>, Failure>>,
{
    let (mut items, mut bytes, mut cursors) = (Vec::new(), 0, BTreeSet::new());
    let mut params = None;
    let cut = 'pages: {
        for _ in 0..PAGES {
            let page = match ask(params).await {
                // The server has no such list.
                Err(Failure { cause: Cause::Error(ErrorCode::METHOD_NOT_FOUND, _), .. }) => return Ok(items),
                answer => answer?,
            };
            let too_long = |used: usize| format!("is too long; used only the first {used}");
            for item in page.items(field) {
                bytes += item.for_server().to_string().len();
                if items.len() == ITEMS || bytes > BYTES {
                    break 'pages too_long(items.len());
                }
                items.push(item);
            }
            let cursor = page.text("nextCursor").map(|next| (*next.for_server()).to_owned());
            let Some(next) = cursor.filter(|next| !next.is_empty()) else { return Ok(items) };
            bytes += next.len();
            if bytes > BYTES {
                break 'pages too_long(items.len());
            }
            if !cursors.insert(next.clone()) {
                break 'pages "repeats a page and was cut there".to_owned();
            }
            params = Some(PaginatedRequestParams::default().with_cursor(Some(next)));
        }
        format!("was cut after {PAGES} pages")
    };
    notes.push(format!("the list of {field} {cut}"));
    Ok(items)
}

/// The resources that have a URI.
pub(super) fn resources(listed: &[Untrusted<Value>]) -> Vec<Resource> {
    let resource = |raw: &Untrusted<Value>| {
        Some(Resource {
            uri: text(raw, "uri")?,
            name: text(raw, "name").unwrap_or_default(),
            description: text(raw, "description"),
            mime_type: text(raw, "mimeType"),
        })
    };
    listed.iter().filter_map(resource).collect()
}

/// The templates that have a URI template.
pub(super) fn resource_templates(listed: &[Untrusted<Value>]) -> Vec<ResourceTemplate> {
    let template = |raw: &Untrusted<Value>| {
        Some(ResourceTemplate {
            uri_template: text(raw, "uriTemplate")?,
            name: text(raw, "name").unwrap_or_default(),
            description: text(raw, "description"),
            mime_type: text(raw, "mimeType"),
        })
    };
    listed.iter().filter_map(template).collect()
}

/// The prompts that have a name.
pub(super) fn prompts(listed: &[Untrusted<Value>]) -> Vec<Prompt> {
    let prompt = |raw: &Untrusted<Value>| {
        let arguments = raw.get("arguments").map(|arguments| arguments.schema()).filter(Value::is_array);
        Some(Prompt {
            name: text(raw, "name")?,
            description: text(raw, "description"),
            arguments: arguments.map_or_else(|| "[]".to_owned(), |arguments| arguments.to_string()),
        })
    };
    listed.iter().filter_map(prompt).collect()
}

fn text(raw: &Untrusted<Value>, field: &str) -> Option<String> {
    raw.text(field).map(|text| text.bounded())
}
