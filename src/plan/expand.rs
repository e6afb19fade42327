//! A run file with everything that it extends and overrides, as one TOML text.

use std::fmt::Write as _;

use super::{
    layers::{BASE, Entry, Layers, MODEL, Origin, Overrides, top_level},
    reader::Reader,
    source::{RunFile, SECRET_TABLES},
};
use crate::{error::Result, secret::is_secret};

/// Whether the table at this path has a header of its own.
fn has_header(path: &str) -> bool {
    let parts: Vec<&str> = path.split('.').collect();
    matches!(
        parts[..],
        [_] | ["stages" | "servers" | "loop" | "track", _]
            | ["loop", _, "stages"]
            | ["loop", _, "stages", _]
            | ["overrides", "tools"]
            | ["overrides", "tools", _]
    )
}

/// The merged run file. A value that is not the lowest file's has a comment with its place. Cards' defaults are left out.
///
/// # Errors
/// If an override cannot be read.
pub fn expanded(source: &RunFile, overrides: &Overrides) -> Result<String> {
    let (layers, mistakes) = Layers::new(source, overrides);
    Reader::new(mistakes).finish(Some(()))?;
    let mut text = String::new();
    table(&layers.top(), &mut text);
    Ok(text.trim_start().to_owned())
}

fn table(entry: &Entry<'_>, text: &mut String) {
    let mut fields: Vec<(&str, Entry<'_>)> = entry.fields().unwrap_or_default().into_iter().collect();
    // `model` at the top is a stage in the merged tree.
    fields.retain(|(name, field)| !(entry.path == "stages" && *name == BASE && field.path == MODEL));
    let sections = top_level();
    let section =
        |name: &str| sections.iter().position(|known| *known == name).filter(|_| entry.path.is_empty());
    fields.sort_by_cached_key(|(name, field)| (section(name), field.order()));
    let is_table = |field: &Entry<'_>| field.fields().is_some() && has_header(&field.path);
    let (tables, values): (Vec<_>, Vec<_>) = fields.into_iter().partition(|(_, field)| is_table(field));
    if !entry.path.is_empty() && (!values.is_empty() || tables.is_empty()) {
        _ = writeln!(text, "\n[{}]", entry.path);
    }
    for (name, field) in &values {
        let line = format!("{} = {}", key(name), value(name, field));
        match place(field) {
            Some(place) => _ = writeln!(text, "{line:<40}  # {place}"),
            None => _ = writeln!(text, "{line}"),
        }
    }
    tables.iter().for_each(|(_, field)| table(field, text));
}

fn key(name: &str) -> String {
    let is_bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
    if is_bare && !name.is_empty() { name.to_owned() } else { toml::Value::from(name).to_string() }
}

/// As TOML in one line. A literal secret is not shown.
fn value(name: &str, entry: &Entry<'_>) -> String {
    if let Some(fields) = entry.fields() {
        let mut fields: Vec<(&str, Entry<'_>)> = fields.into_iter().collect();
        fields.sort_by_cached_key(|(_, field)| field.order());
        let fields = fields.iter().map(|(name, field)| format!("{} = {}", key(name), value(name, field)));
        return format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "));
    }
    if let Some(text) = entry.text() {
        let may_be_secret = entry.path.split('.').any(|part| SECRET_TABLES.contains(&part));
        let is_hidden = may_be_secret && !text.contains("${") && is_secret(name, text);
        return toml::Value::from(if is_hidden { "…" } else { text }).to_string();
    }
    match entry.value.as_array() {
        Some(_) => {
            format!("[{}]", entry.items().map(|item| value(name, &item)).collect::<Vec<_>>().join(", "))
        }
        None => toml::Value::try_from(entry.json())
            .map_or_else(|_| entry.json().to_string(), |value| value.to_string()),
    }
}

/// Where a value comes from, unless that is the lowest file.
fn place(entry: &Entry<'_>) -> Option<String> {
    match entry.origin() {
        Origin::File(source, span) if source.extends_another() => {
            let line = source.text().get(..span.key.start)?.matches('\n').count() + 1;
            Some(format!("{}:{line}", source.path().display()))
        }
        Origin::Override(text) => Some(text.split('=').next().unwrap_or(text).to_owned()),
        Origin::File(..) | Origin::Card => None,
    }
}
